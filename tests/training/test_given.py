"""Mistakes in what training code gives to the guard are said at once, in their own line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.errors import CheckpointError, UsageError
from slurm_guard.training.given import make_stamp
from slurm_guard.training.guard import Guard


def make(root: Path, **given: Any) -> Guard:
    environment = {"SLURM_GUARD_RING_DIR": str(root / "ring"), "SLURM_GUARD_STATE_DIR": str(root / "state")}
    return Guard.from_environment(environment=environment, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ring_every": 2.5}, 'ring_every=2.5: give a number of iterations, "auto", or None'),
        ({"ring_every": float("nan")}, "ring_every=nan: give a number"),
        ({"ring_every": True}, "ring_every=True: give a number"),
        ({"ring_every": "100"}, "ring_every='100': give a number"),
        ({"ring_every": "AUTO"}, "ring_every='AUTO': give a number"),
        ({"ring_every_s": "30m"}, "ring_every_s='30m': give seconds from 1 on"),
        ({"ring_every_s": 0.5}, r"ring_every_s=0.5: give seconds from 1 on"),
        ({"ring_every_s": float("inf")}, "ring_every_s=inf: give seconds"),
        ({"ring_every": 5, "ring_every_s": "x"}, "ring_every_s='x': give seconds"),
        ({"milestone_every": "500"}, "milestone_every='500': give a number of iterations, or None for never"),
        ({"milestone_epochs": 0.5}, r"milestone_epochs=0.5: give a number of epochs"),
    ],
)
def test_what_is_no_interval_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    """A float would save at odd moments, or never."""
    with pytest.raises(CheckpointError, match=said):
        make(tmp_path, **given)


@pytest.mark.parametrize("stop_on", ["USR1", ("SIGUSR1",), (10_000,), None])
def test_what_is_no_signal_is_refused(tmp_path: Path, stop_on: Any) -> None:
    """With what would be one."""
    with pytest.raises(UsageError, match=r"stop_on=.*: give signals, as \(signal.SIGUSR1,\)"):
        make(tmp_path, stop_on=stop_on)


def test_one_signal_need_not_be_a_list(tmp_path: Path) -> None:
    """It is clear what is meant."""
    before = signal.getsignal(signal.SIGUSR2)
    try:
        make(tmp_path, stop_on=signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is not before
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "the state is a NoneType"),
        ([1], "the state is a list"),
        ({1: 2}, "the state has 1 as a name: give it a text"),
    ],
)
def test_a_state_without_names_is_refused(tmp_path: Path, state: Any, said: str) -> None:
    """Names that cannot be sorted among ours made each checkpoint look unreadable: training began anew."""
    with pytest.raises(CheckpointError, match=said):
        make(tmp_path).resume(state)
    with pytest.raises(CheckpointError, match="per_rank is a list: give names with it"):
        make(tmp_path).resume({}, per_rank=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("i", ["a", 1.5, -1, None, True])
def test_what_is_no_number_of_an_iteration_is_refused(tmp_path: Path, i: Any) -> None:
    """Before a save is due that could not be written."""
    one = make(tmp_path, ring_every=1)
    one.resume({"x": 1})
    with pytest.raises(CheckpointError, match=r"guard.iteration\(.*\): give its number"):
        one.iteration(i)
    with pytest.raises(CheckpointError, match=r"guard.epoch_end\(.*\): give its number"):
        one.epoch_end(i)


def test_numbers_of_numpy_and_of_torch_are_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A training that counts by np.arange has its checkpoints too."""
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    one = make(tmp_path, ring_every=1)
    one.resume({"x": 1})
    one.iteration(np.int64(3), loss=np.float32(2.5), epoch=np.float32(0.5))
    assert one.finish(60)
    one.iteration(torch.tensor(4), loss=torch.tensor(2.5), epoch=torch.tensor(0.5))
    assert one.finish(60)
    found = read_checkpoints(str(tmp_path / "ring" / "cluster-local"))[0]
    assert [(c.iteration, c.loss, c.epoch) for c in found] == [(3, 2.5, 0.5), (4, 2.5, 0.5)]
    assert not caplog.records


def test_a_variable_that_is_nearly_a_setting_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By rank 0, and by guarded-srun where that is around."""
    wrong = {"SLURM_GUARD_RING_DIRR": str(tmp_path), "SLURM_GUARD_STATE_DIR": str(tmp_path)}
    said = "slurm-guard: SLURM_GUARD_RING_DIRR is no setting: did you mean SLURM_GUARD_RING_DIR?"
    for other, expected in (
        ({}, [said]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, []),
        ({"SLURM_GUARD_RUN": "7.ab"}, []),
    ):
        caplog.clear()
        Guard.from_environment(ring_every=5, environment={**wrong, **other})
        assert caplog.messages == expected


@pytest.mark.parametrize(
    ("given", "silent"),
    [
        ({}, False),
        ({"ring_every": 5}, True),
        ({"ring_every_s": 60}, True),
        ({"milestone_every": 5}, True),
        ({"milestone_epochs": 2}, True),
    ],
)
def test_a_guard_that_never_saves_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], silent: bool
) -> None:
    """Nobody calls it for that."""
    make(tmp_path, **given).resume({"x": 1})
    said = 'slurm-guard: nothing is saved by itself: give ring_every="auto" and milestone_every'
    assert caplog.messages == ([] if silent else [said])


def test_it_is_imported_beside_the_heartbeat_and_only_when_asked_for() -> None:
    """A training that only says its heartbeats starts as fast as before; neither loads torch."""
    program = (
        "import sys\n"
        "from slurm_guard.training import heartbeat\n"
        "before = 'slurm_guard.training.guard' in sys.modules\n"
        "from slurm_guard.training import Guard, ResumePoint\n"
        "print(before, Guard.__module__, ResumePoint.__name__, 'torch' in sys.modules)\n"
        "import slurm_guard.training\n"
        "print(hasattr(slurm_guard.training, 'Gard'))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False slurm_guard.training.guard ResumePoint False\nFalse\n"


@pytest.mark.parametrize(
    ("loss", "epoch", "said"), [([0.5, 0.2], None, "its loss"), (0.5, "two", "its epoch")]
)
def test_what_is_no_number_is_named_where_it_costs_the_checkpoint(loss: Any, epoch: Any, said: str) -> None:
    """A loss of each sample, say: torch's own words don't tell which of the numbers it was."""
    import torch

    given = torch.tensor(loss) if isinstance(loss, list) else loss
    with pytest.raises(CheckpointError, match=f"^{said} cannot be read as one number: .+"):
        make_stamp(3, given, epoch)
