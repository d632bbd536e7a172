"""The three lines in a training script, in a single process."""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from state_file import read_state

from slurm_guard.adapters.heartbeat import read_heartbeat
from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.errors import CheckpointError, MisfitError
from slurm_guard.model.checkpoint import Stamp
from slurm_guard.model.heartbeat import Heartbeat
from slurm_guard.model.phase import Phase
from slurm_guard.training.guard import Guard
from slurm_guard.training.loading import Loader
from slurm_guard.training.state import has_nan, write_state


def guard(
    root: Path,
    ring_every: int | None = 2,
    milestone_every: int | None = None,
    milestone_epochs: int | None = None,
) -> Guard:
    environment = {"SLURM_GUARD_RING_DIR": str(root / "ring"), "SLURM_GUARD_STATE_DIR": str(root / "state")}
    return Guard.from_environment(
        ring_every=ring_every,
        milestone_every=milestone_every,
        milestone_epochs=milestone_epochs,
        environment=environment,
    )


def ring(root: Path) -> list[int]:
    return [c.iteration for c in read_checkpoints(str(root / "ring" / "cluster-local"))[0]]


def milestones(root: Path) -> list[int]:
    return [c.iteration for c in read_checkpoints(str(root / "state" / "milestones"))[0]]


def train(one: Guard, i: int, **told: Any) -> None:
    """An iteration that takes longer than the disk does."""
    one.iteration(i, **told)
    assert one.finish(60)


@pytest.fixture
def state() -> dict[str, Any]:
    import torch

    model = torch.nn.Linear(4, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "seen": 0}


def test_saves_when_due_and_resumes_what_was_saved(tmp_path: Path, state: dict[str, Any]) -> None:
    """Modules get their tensors back, plain values are replaced in the mapping."""
    import torch

    first = guard(tmp_path, milestone_every=3)
    assert first.resume(state) is None
    for i in range(6):
        state["seen"] = i * 32
        train(first, i, loss=torch.tensor(0.5), epoch=0.25 * i)
    assert (ring(tmp_path), milestones(tmp_path)) == ([2, 4], [3])
    kept = state["model"].weight.detach().clone()
    torch.nn.init.zeros_(state["model"].weight)
    state["seen"] = -1
    point = guard(tmp_path).resume(state)
    assert point is not None
    assert (point.iteration, point.epoch, point.source, point.checkpoint.loss) == (4, 1.0, "ring", 0.5)
    assert torch.equal(state["model"].weight, kept)
    assert state["seen"] == 4 * 32


def test_a_ring_directory_that_is_named_is_read_with_the_shard_beside_it(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    """As `slurm-guard checkpoint latest` prints it: the place in the data goes with the weights."""
    one, place = guard(tmp_path), {"order": 0}
    one.resume(state, per_rank=place)
    for i in range(2, 6, 2):
        place["order"] = i * 32
        train(one, i)
    named = tmp_path / "ring" / "cluster-local" / "iteration-0000000002"
    environment = {
        "SLURM_GUARD_RING_DIR": str(tmp_path / "new"),
        "SLURM_GUARD_STATE_DIR": str(tmp_path / "new"),
        "SLURM_GUARD_RESUME_FROM": str(named),
    }
    again, place["order"] = Guard.from_environment(ring_every=2, environment=environment), -1
    point = again.resume(state, per_rank=place)
    assert point is not None
    assert (point.iteration, place["order"]) == (2, 64)


@pytest.mark.parametrize(
    ("ranks", "why"),
    [(3, "the shard of rank 1 of 3 is not beside it"), (2, "it is of 3 ranks, and this run")],
)
def test_a_shard_that_is_named_without_ours_beside_it_cannot_be_read(
    tmp_path: Path, ranks: int, why: str
) -> None:
    """Why, in words that say what can be."""
    stamp = Stamp(8, fork="a", world_size=3, rank=0, replica=False, shards=3)
    unit = write_unit(str(tmp_path / "ring"), stamp, lambda path: [write_state({}, path)])
    with pytest.raises(CheckpointError, match=why):
        Loader({}, 1, ranks).load_milestone(unit.directory)


def test_a_training_that_goes_to_another_directory_resumes_where_it_saved(
    tmp_path: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative names are those of where it was started."""
    environment = {"SLURM_GUARD_RING_DIR": "rings", "SLURM_GUARD_MILESTONE_DIR": "milestones"}
    (tmp_path / "run").mkdir()
    points = []
    for _ in range(2):
        monkeypatch.chdir(tmp_path)
        one = Guard.from_environment(ring_every=2, milestone_every=2, environment=environment)
        points.append(one.resume(state))
        monkeypatch.chdir("run")
        train(one, 2)
    assert points[0] is None
    assert points[1] is not None
    assert points[1].checkpoint.directory == f"{tmp_path}/rings/cluster-local/iteration-0000000002"
    assert os.listdir(tmp_path / "milestones") == ["iteration-0000000002"]


def test_where_new_tensors_go_to_another_device_all_is_saved_as_ever(tmp_path: Path) -> None:
    """As with torch.set_default_device("cuda"); one that cannot be read shows what is not on the CPU."""
    import torch

    model = torch.nn.Linear(1000, 1000)  # of more than 2 MiB: memory with pages of its own
    kept = model.weight.detach().clone()
    with torch.device("meta"):
        one = guard(tmp_path)
        one.resume({"model": model}, per_rank={"seen": 3})
        train(one, 2)
        torch.nn.init.zeros_(model.weight)
        point = guard(tmp_path).resume({"model": model}, per_rank={"seen": 3})
    assert point is not None
    assert torch.equal(model.weight, kept)


def test_save_now_saves_both(tmp_path: Path, state: dict[str, Any]) -> None:
    """The next attempt may have this node's disk or not."""
    one = guard(tmp_path, ring_every=None)
    one.resume(state)
    train(one, 7)
    assert (ring(tmp_path), milestones(tmp_path)) == ([], [])
    one.save_now()
    assert (ring(tmp_path), milestones(tmp_path)) == ([7], [7])


def test_a_nan_in_the_state_is_not_finite_though_the_loss_was(tmp_path: Path, state: dict[str, Any]) -> None:
    """The loss is older than the step that made the weights NaN."""
    import torch

    one = guard(tmp_path)
    one.resume(state)
    train(one, 2, loss=1.0)
    torch.nn.init.constant_(state["model"].bias, float("nan"))
    train(one, 4, loss=1.0)
    point = guard(tmp_path).resume(state)
    assert point is not None
    assert point.iteration == 2


def test_a_nan_in_the_stage_of_a_rank_is_not_finite(tmp_path: Path, state: dict[str, Any]) -> None:
    """A stage of a pipeline is given as per_rank, as the place in the data is: a NaN in that is no fault."""
    import torch

    place = {"stage": state["model"], "optimizer": state["optimizer"], "buffered": [float("nan")]}
    one = guard(tmp_path)
    one.resume({"seen": 0}, per_rank=place)
    train(one, 2, loss=1.0)
    torch.nn.init.constant_(state["model"].bias, float("nan"))
    for i in (4, 6, 8):
        train(one, i, loss=1.0)
    point = guard(tmp_path).resume({"seen": 0}, per_rank=place)
    assert point is not None
    assert point.iteration == 2
    assert not has_nan(state["model"].state_dict())


def test_a_save_that_fails_is_a_warning(
    tmp_path: Path, state: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on without it: the checkpoint is there for the training."""
    one = guard(tmp_path)
    one.resume(state)
    (tmp_path / "ring").write_text("a file where the ring should be")
    with caplog.at_level(logging.WARNING):
        train(one, 2, loss=1.0)
    assert "cannot make the ring directory" in caplog.text


def test_objects_that_could_never_be_loaded_safely_are_refused_when_saved(
    tmp_path: Path, state: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Better a warning at the first save than a surprise at the resume."""
    state["config"] = Path("/somewhere")
    one = guard(tmp_path)
    one.resume(state)
    train(one, 2)
    assert "cannot be loaded safely" in caplog.text
    assert ring(tmp_path) == []


def test_a_state_dict_that_raises_is_a_warning(
    tmp_path: Path, state: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The user's object fails, the training does not."""

    class Broken:
        def state_dict(self) -> dict[str, Any]:
            raise ValueError("not now")

    state["broken"] = Broken()
    one = guard(tmp_path)
    one.resume(state)
    train(one, 2)
    assert "no checkpoint of iteration 2: not now" in caplog.text


def test_a_state_that_does_not_fit_is_an_error_that_names_it(tmp_path: Path, state: dict[str, Any]) -> None:
    """Another model, or other names: never a half-restored training."""
    import torch

    one = guard(tmp_path)
    one.resume(state)
    train(one, 2)
    where = re.escape(str(tmp_path))
    remedy = "(?s:.*)SLURM_GUARD_RESUME_FROM=none"
    with pytest.raises(MisfitError, match=f"{where}.* does not fit .* model refuses its saved state{remedy}"):
        guard(tmp_path).resume({**state, "model": torch.nn.Linear(5, 5)})
    with pytest.raises(MisfitError, match=f"{where}.* does not fit .* the training has{remedy}"):
        guard(tmp_path).resume({"model": state["model"]})


@pytest.mark.filterwarnings("error")
def test_a_loss_that_still_has_its_graph_is_saved_without_a_warning(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    """It is what `criterion(…)` gives."""
    one = guard(tmp_path)
    one.resume(state)
    loss = next(state["model"].parameters()).square().sum()
    train(one, 2, loss=loss)
    [saved], _ = read_checkpoints(str(tmp_path / "ring" / "cluster-local"))
    assert saved.loss == pytest.approx(loss.item())


def test_misuse_is_said_at_once(tmp_path: Path) -> None:
    """Before the first iteration, not at the first save."""
    with pytest.raises(CheckpointError, match="ring_every=0"):
        guard(tmp_path, ring_every=0)
    with pytest.raises(CheckpointError, match="milestone_epochs=-1: give a number of epochs"):
        guard(tmp_path, milestone_epochs=-1)
    with pytest.raises(CheckpointError, match="before the first iteration"):
        guard(tmp_path).iteration(1)


def test_only_the_local_rank_0_writes_the_ring_and_rank_0_the_milestone(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    """Replicated state is written once a node and once a job."""
    for rank, local, expected in ((1, 1, ([], [])), (2, 0, ([5], [])), (0, 0, ([5], [5]))):
        place = {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": "4"}
        root = tmp_path / str(rank)
        paths = {"SLURM_GUARD_RING_DIR": str(root / "ring"), "SLURM_GUARD_STATE_DIR": str(root / "state")}
        one = Guard.from_environment(ring_every=5, milestone_every=5, environment={**place, **paths})
        one.resume(state)
        train(one, 5)
        assert (ring(root), milestones(root)) == expected


def test_numbers_that_torch_only_stores_are_saved_and_resumed(tmp_path: Path) -> None:
    """Four bits have no NaN, and torch computes nothing with them."""
    import torch

    kind = getattr(torch, "float4_e2m1fn_x2", None)
    if kind is None:
        pytest.skip("this torch has none")
    state: dict[str, Any] = {"weights": torch.arange(8, dtype=torch.uint8).view(kind)}
    one = guard(tmp_path)
    one.resume(state)
    train(one, 2)
    state["weights"] = None
    point = guard(tmp_path).resume(state)
    assert point is not None
    assert state["weights"].view(torch.uint8).tolist() == list(range(8))
    assert has_nan({**state, "best": float("nan")})


def test_infinity_is_no_nan(tmp_path: Path) -> None:
    """Attention masks are full of it; nested containers are looked through."""
    import torch

    assert not has_nan(
        {"mask": torch.tensor([float("-inf"), 0.0]), "step": 3, "name": "x", "best": float("inf")}
    )
    assert has_nan({"groups": [{"momentum": torch.tensor([0.0, float("nan")])}]})
    assert has_nan({"best": float("nan")})
    assert has_nan({"sparse": torch.tensor([0.0, float("nan")]).to_sparse()})
    complex_ = torch.tensor([0j, complex(1.0, float("nan"))])
    assert has_nan({"complex": complex_})
    assert has_nan({"both": complex_.conj().to_sparse()})
    assert not has_nan({"complex": complex_[:1], "both": complex_[:1].to_sparse()})
    assert has_nan({"transposed": torch.tensor([[0.0, 1.0], [float("nan"), float("inf")]]).t()})
    short = torch.tensor([1.0, float("nan")]).to(torch.float8_e5m2)
    assert has_nan({"short": short})
    assert not has_nan({"short": short[:1], "none": torch.empty(0), "meta": torch.empty(3, device="meta")})
    write_state({"half": torch.ones(2, dtype=torch.bfloat16)}, str(tmp_path))
    assert read_state(tmp_path)["half"].dtype is torch.bfloat16


class _Witness:
    """Sees what the process says of itself while it is saved."""

    def __init__(self) -> None:
        self.said: list[Heartbeat | None] = []

    def state_dict(self) -> dict[str, int]:
        self.said.append(read_heartbeat(os.getpid()))
        return {}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        pass


def test_an_iteration_is_a_heartbeat_and_a_save_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a guard; afterwards it is training again."""
    monkeypatch.setenv("SLURM_GUARD_RUN", "run")
    monkeypatch.setattr(sys.modules["slurm_guard.training.heartbeat"], "_beaters", {})
    witness, saver = _Witness(), guard(tmp_path)
    saver.resume({"witness": witness})
    for i in (1, 2):
        train(saver, i, loss=0.5 * i, epoch=0.25)
    (saving,), after = witness.said, read_heartbeat(os.getpid())
    assert saving is not None
    assert after is not None
    assert (saving.phase, after.phase) == (Phase.CHECKPOINT, Phase.TRAINING)
    for said in (saving, after):
        assert (said.iteration, said.loss, said.loss_iteration, said.epoch) == (2, 1.0, 2, 0.25)


def test_the_end_of_an_epoch_saves_a_milestone(tmp_path: Path, state: dict[str, Any]) -> None:
    """Every second epoch here; where to go on is the number of epochs that are done."""
    one = guard(tmp_path, ring_every=None, milestone_epochs=2)
    one.resume(state)
    for e in range(5):
        one.iteration(e * 10 + 9, epoch=e + 0.9)
        one.epoch_end(e)
        assert one.finish(60)
    assert milestones(tmp_path) == [19, 39]
    point = guard(tmp_path).resume(state)
    assert point is not None
    assert (point.iteration, point.epoch, point.source) == (39, 4.0, "milestone")


def test_a_phase_has_its_name_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it ends by an error, and when a save happens inside."""
    monkeypatch.setenv("SLURM_GUARD_RUN", "run")
    monkeypatch.setattr(sys.modules["slurm_guard.training.heartbeat"], "_beaters", {})

    def said() -> Phase:
        beat = read_heartbeat(os.getpid())
        assert beat is not None
        return beat.phase

    one = guard(tmp_path)
    one.resume({})
    one.iteration(1)
    with one.phase("evaluation"):
        assert said() is Phase.EVALUATION
        one.save_now()
        assert said() is Phase.EVALUATION
    assert said() is Phase.TRAINING
    with suppress(ZeroDivisionError), one.phase("evaluation"):
        raise ZeroDivisionError
    assert said() is Phase.TRAINING


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_of_the_training_saves_nothing(tmp_path: Path, state: dict[str, Any]) -> None:
    """A DataLoader worker has a copy of the guard, and no business with the ring."""
    one = guard(tmp_path)
    one.resume(state)
    train(one, 2)
    pid = os.fork()
    if pid == 0:
        try:
            one.iteration(4)
            one.save_now()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ring(tmp_path) == [2]
    train(one, 6)
    assert ring(tmp_path) == [2, 6]


def test_resuming_again_waits_for_the_save_in_flight(tmp_path: Path, state: dict[str, Any]) -> None:
    """A training that rolls back by itself, in the same process."""
    one = guard(tmp_path)
    one.resume(state)
    one.iteration(2)
    point = one.resume(state)
    assert point is not None
    assert point.iteration == 2


def test_the_clipping_goes_on_where_it_was(tmp_path: Path, state: dict[str, Any]) -> None:
    """A spike before the save still tightens after the resume; without a checkpoint it begins anew."""
    import torch

    def clip(one: Guard, size: float) -> float:
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([size])
        one.clip_gradients([weight], 100.0)
        return float(weight.grad)

    first = guard(tmp_path)
    first.resume(state)
    for i in range(1, 61):
        clip(first, 1.0 if i != 60 else 1000.0)
    train(first, 60)
    tightened = clip(first, 1000.0)
    assert tightened < 100
    second = guard(tmp_path)
    assert second.resume(state)
    assert clip(second, 1000.0) == tightened
    other = guard(tmp_path / "empty")
    other.resume(state)
    assert clip(other, 1000.0) == pytest.approx(100)


def test_a_checkpoint_from_before_there_was_clipping_is_resumed(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    """And a name that is the guard's own is refused before anything is saved under it."""
    saved = {"model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict(), "seen": 7}
    write_unit(str(tmp_path / "ring" / "cluster-local"), Stamp(8), lambda path: [write_state(saved, path)])
    one = guard(tmp_path)
    assert one.resume(state)
    assert state["seen"] == 7
    with pytest.raises(CheckpointError, match="give the state another name"):
        one.resume({**state, "slurm_guard.clipping": 1})


def test_milestones_stay_as_the_environment_says(tmp_path: Path, state: dict[str, Any]) -> None:
    """A rule that is none is said before the training begins."""
    paths = {"SLURM_GUARD_RING_DIR": str(tmp_path / "ring"), "SLURM_GUARD_STATE_DIR": str(tmp_path / "state")}
    rule = {**paths, "SLURM_GUARD_MILESTONE_KEEP": "last 2"}
    one = Guard.from_environment(ring_every=None, milestone_every=1, environment=rule)
    one.resume(state)
    for i in range(1, 5):
        one.iteration(i)
    one.finish()
    assert milestones(tmp_path) == [3, 4]
    with pytest.raises(
        CheckpointError, match="SLURM_GUARD_MILESTONE_KEEP=two is no rule: write all, or last N"
    ):
        Guard.from_environment(
            ring_every=None, milestone_every=1, environment={**paths, "SLURM_GUARD_MILESTONE_KEEP": "two"}
        )
