"""The example on real ranks (gloo): it saves, resumes to the last digit, and its faults are real."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.model.checkpoint import Checkpoint

ARGUMENTS = ("--iterations", "30", "--ring-every", "4", "--milestone-every", "10", "--iteration-s", "0")
JOB = count(random.SystemRandom().randrange(1, 10**8))
"""The port where the ranks meet follows from the job: two runs of this file may go on at once."""


@dataclass
class Training:
    """One job with one rank a node, each node with a disk of its own, all with one shared directory."""

    server: subprocess.Popen[str]
    root: Path
    world_size: int = 2
    environment: dict[str, str] = field(default_factory=dict)

    def ring(self, node: int) -> Path:
        return self.root / f"node{node}" / f"c-{self.environment['SLURM_JOB_ID']}"

    def run(
        self,
        *arguments: str,
        attempt: int = 0,
        limit_s: float = 180,
        until: str = "",
        still_s: float = 0,
        **environment: str,
    ) -> list[Any]:
        """Exit code of each rank; the state letter of one that lived at the limit, or when rank 0 had said
        `until` and all ranks then stood still for `still_s`.
        """
        for output in self.root.glob("out*"):
            output.unlink()
        job = {**self.environment, **environment, "SLURM_RESTART_COUNT": str(attempt)}
        ranks = [
            {"environment": job | self._rank(i), "output": str(self.root / f"out{i}")}
            for i in range(self.world_size)
        ]
        assert self.server.stdin
        assert self.server.stdout
        limits = {"limit_s": limit_s, "until": until, "still_s": still_s}
        order = {"ranks": ranks, "argv": [*ARGUMENTS, *arguments], **limits}
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        ends: list[Any] = json.loads(self.server.stdout.readline())
        return ends

    def lines(self, rank: int = 0) -> list[str]:
        return (self.root / f"out{rank}").read_text().splitlines()

    def milestones(self) -> dict[int, Checkpoint]:
        good, _ = read_checkpoints(str(self.root / "milestones"))
        return {checkpoint.iteration: checkpoint for checkpoint in good}

    def _rank(self, i: int) -> dict[str, str]:
        return {
            "SLURM_PROCID": str(i),
            "SLURM_LOCALID": "0",
            "SLURM_GUARD_RING_DIR": str(self.root / f"node{i}"),
            "SLURM_GUARD_MILESTONE_DIR": str(self.root / "milestones"),
        }


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, str(Path(__file__).with_name("ranks.py"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert json.loads(process.stdout.readline()) == "ready"
        yield process
        process.kill()


def job(world_size: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(next(JOB)),
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_STEP_NUM_TASKS": str(world_size),
        "SLURM_STEP_NODELIST": f"no-such-node[0-{world_size - 1}]",
    }


@pytest.fixture
def training(server: subprocess.Popen[str], tmp_path: Path) -> Training:
    return Training(server, tmp_path, environment=job(2))


@pytest.fixture(scope="module")
def undisturbed(server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The loss lines of a run that nothing happens to, by iteration."""
    calm = Training(server, tmp_path_factory.mktemp("undisturbed"), environment=job(2))
    assert calm.run() == [0, 0]
    assert calm.lines()[-1] == "training finished at iteration 30"
    assert calm.milestones().keys() == {10, 20, 30}
    return {**losses(calm), -1: repr(calm.milestones()[30].loss)}


def losses(training: Training) -> dict[int, str]:
    """The loss that was printed for each iteration."""
    words = [line.split() for line in training.lines() if line.startswith("iteration ")]
    return {int(word[1]): word[3] for word in words}


def resumed_at(training: Training) -> tuple[str, int] | None:
    """Source and iteration of the resume that was printed."""
    words = [line.split() for line in training.lines() if line.startswith("resumed from ")]
    return (words[0][2], int(words[0][-1])) if words else None


def assert_continues(training: Training, undisturbed: dict[int, str], source: str, iteration: int) -> None:
    """It resumed there, and every loss from then on is that of the undisturbed run, to the last digit."""
    assert resumed_at(training) == (source, iteration)
    assert losses(training) == {i: undisturbed[i] for i in range(iteration + 1, 31)}
    assert repr(training.milestones()[30].loss) == undisturbed[-1]


def test_after_a_nan_it_resumes_from_the_last_good_ring(
    training: Training, undisturbed: dict[int, str]
) -> None:
    """One rank's poisoned input is everybody's NaN at once and for ever; what was saved then is not used."""
    assert training.run("--fault", "nan@18", "--fault-rank", "1") == [0, 0]
    shown = losses(training)
    assert [shown[i] for i in range(1, 18)] == [undisturbed[i] for i in range(1, 18)]
    assert {shown[i] for i in range(18, 31)} == {"nan"}
    assert not training.milestones()[20].finite
    assert training.run("--fault", "nan@18", attempt=1) == [0, 0]
    assert_continues(training, undisturbed, "ring", 16)
    assert all(milestone.finite for milestone in training.milestones().values())


def test_a_node_that_comes_new_gets_what_it_lacks_from_the_others(
    training: Training, undisturbed: dict[int, str]
) -> None:
    """The replica from any holder, and its own shard from the partner that keeps a copy."""
    assert training.run("--fault", "crash@19", "--fault-rank", "1") == [1, 1]
    assert "InjectedError: the crash that was asked for" in training.lines(1)[-1]
    shutil.rmtree(training.ring(1))
    assert training.run(attempt=1, SLURM_GUARD_RESUME_FROM="ring:16") == [0, 0]
    assert_continues(training, undisturbed, "ring", 16)


def test_without_copies_a_node_without_its_ring_sends_all_to_the_milestone(
    training: Training, undisturbed: dict[int, str]
) -> None:
    """The state of the model is there, this rank's place in the data is not: ranks never mix iterations."""
    training.environment["SLURM_GUARD_RING_COPIES"] = "0"
    assert training.run("--fault", "crash@19", "--fault-rank", "1") == [1, 1]
    shutil.rmtree(training.ring(1))
    assert training.run(attempt=1) == [0, 0]
    assert_continues(training, undisturbed, "milestone", 10)
    why = "iteration-0000000016: no node that is there holds the shard of rank 1"
    assert any(why in line for line in training.lines())


def _flip_bit(path: Path) -> None:
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)


def test_damage_on_one_node_is_mended_from_another(training: Training, undisturbed: dict[int, str]) -> None:
    """A flipped bit is seen before anything is loaded, and a good copy takes its place."""
    assert training.run("--fault", "crash@19") == [1, 1]
    _flip_bit(training.ring(1) / "iteration-0000000016" / "state.pt")
    assert training.run("--workers", "1", attempt=1) == [0, 0]
    assert_continues(training, undisturbed, "ring", 16)
    assert any("rank 1: state.pt does not have its checksum" in line for line in training.lines())


def test_damage_everywhere_makes_all_take_the_older_one(
    training: Training, undisturbed: dict[int, str]
) -> None:
    """All of them step back together."""
    assert training.run("--fault", "crash@19") == [1, 1]
    for node in (0, 1):
        _flip_bit(training.ring(node) / "iteration-0000000016" / "state.pt")
    assert training.run(attempt=1) == [0, 0]
    assert_continues(training, undisturbed, "ring", 12)


def test_a_milestone_that_is_named_wins_over_newer_rings(
    training: Training, undisturbed: dict[int, str]
) -> None:
    """SLURM_GUARD_RESUME_FROM says where to start; what was computed after it is computed again."""
    assert training.run() == [0, 0]
    named = str(training.root / "milestones" / "iteration-0000000020")
    assert training.run(attempt=1, SLURM_GUARD_RESUME_FROM=named) == [0, 0]
    assert_continues(training, undisturbed, "milestone", 20)


def test_a_named_directory_without_any_checkpoint_is_an_error(training: Training) -> None:
    """Whoever names a directory does not mean: from scratch."""
    assert training.run(SLURM_GUARD_RESUME_FROM=str(training.root / "typo")) == [1, 1]
    assert "CheckpointError: nothing to resume from" in training.lines()[-1]
    assert "typo: MANIFEST.json is missing" in training.lines()[-1]


def test_a_finished_training_ends_at_once(training: Training) -> None:
    """Run again after its end, it has nothing to do and says so."""
    assert training.run("--iterations", "8") == [0, 0]
    assert training.run("--iterations", "8", attempt=1) == [0, 0]
    assert losses(training) == {}
    assert training.lines()[-1] == "training finished at iteration 8"


@pytest.mark.parametrize(
    ("fault", "ends"),
    [("stuck", ["S", "R"]), ("stopped", ["S", "T"])],
)
def test_a_fault_that_hangs_is_a_real_hang(training: Training, fault: str, ends: list[str]) -> None:
    """The other rank waits in its collective, alive, for as long as one cares to look."""
    fault = f"{fault}@6"
    assert training.run("--fault", fault, "--fault-rank", "1", until="iteration 5 ", still_s=1.5) == ends
    assert max(losses(training)) == 5


def test_a_rank_that_leaves_with_code_0_is_not_the_end_of_training(training: Training) -> None:
    """Code 0 in the middle of training: nothing was finished."""
    ends = training.run("--fault", "exit0@6", "--fault-rank", "1")
    assert ends[1] == 0
    assert max(losses(training)) == 5
    assert not any("finished" in line for line in training.lines())


def test_a_notice_to_one_rank_makes_all_save_and_leave_together(
    training: Training, undisturbed: dict[int, str]
) -> None:
    """Slurm's signal reaches the ranks at different moments: they leave after the same iteration."""
    assert training.run("--fault", "notice@6", "--fault-rank", "1") == [85, 85]
    assert max(losses(training)) == 7
    assert training.lines()[-1] == "slurm-guard: asked to leave: saved after iteration 7, exit code 85"
    assert training.milestones().keys() == {7}
    assert training.run("--workers", "1", attempt=1) == [0, 0]
    assert_continues(training, undisturbed, "ring", 7)


@pytest.fixture
def sharded(server: subprocess.Popen[str], tmp_path: Path) -> Training:
    """FSDP2 on four nodes, one rank each."""
    return Training(server, tmp_path, 4, job(4))


@pytest.fixture(scope="module")
def undisturbed_sharded(
    server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, str]:
    calm = Training(server, tmp_path_factory.mktemp("undisturbed"), 4, job(4))
    assert calm.run("--sharded") == [0] * 4
    return {**losses(calm), -1: repr(calm.milestones()[30].loss)}


@pytest.mark.parametrize("lost", [0, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_of_sharded_state_any_one_node_may_be_lost(
    sharded: Training, undisturbed_sharded: dict[int, str], lost: int
) -> None:
    """Its partner has a copy of what it alone held: the whole goes on from the ring, to the last digit."""
    assert sharded.run("--sharded", "--fault", "crash@19") == [1] * 4
    shutil.rmtree(sharded.ring(lost))
    assert sharded.run("--sharded", attempt=1) == [0] * 4
    assert_continues(sharded, undisturbed_sharded, "ring", 16)


def test_with_two_partners_lost_it_falls_back_to_the_milestone(
    sharded: Training, undisturbed_sharded: dict[int, str]
) -> None:
    """And says whose shard is nowhere."""
    assert sharded.run("--sharded", "--fault", "crash@19") == [1] * 4
    for lost in (1, 2):
        shutil.rmtree(sharded.ring(lost))
    assert sharded.run("--sharded", attempt=1) == [0] * 4
    assert_continues(sharded, undisturbed_sharded, "milestone", 10)
    why = "iteration-0000000016: no node that is there holds the shard of rank 1"
    assert any(why in line for line in sharded.lines())


@pytest.mark.parametrize("arguments", [(), ("--sharded",)])
def test_a_milestone_is_read_by_another_number_of_ranks(
    server: subprocess.Popen[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Four ranks wrote it, two go on: the loss goes on too, though each rank has other data."""
    four, two = Training(server, tmp_path, 4, job(4)), Training(server, tmp_path, 2, job(2))
    assert four.run(*arguments, "--iterations", "150") == [0] * 4
    before = list(losses(four).values())
    assert two.run(*arguments, "--iterations", "160") == [0] * 2
    assert resumed_at(two) == ("milestone", 150)
    after = list(losses(two).values())
    assert len(after) == 10
    assert _mean(after) < _mean(before[-10:]) + 0.02 < _mean(before[:10]) - 0.05
    assert any("2 of 2 ranks begin anew with what each has for itself" in line for line in two.lines())


@pytest.mark.parametrize(("lost", "expected"), [((), ("ring", 16)), (range(4), ("milestone", 10))])
def test_what_ddp_saved_is_gone_on_from_with_fsdp2(
    sharded: Training, undisturbed_sharded: dict[int, str], lost: Sequence[int], expected: tuple[str, int]
) -> None:
    """And back again, from a milestone: a ring of sharded state is for a training that is sharded."""
    assert sharded.run("--fault", "crash@19") == [1] * 4
    for node in lost:
        shutil.rmtree(sharded.ring(node))
    assert sharded.run("--sharded", "--fault", "crash@26", "--fault-attempt", "1", attempt=1) == [1] * 4
    assert resumed_at(sharded) == expected
    shown = losses(sharded)
    assert list(shown) == list(range(expected[1] + 1, 26))
    assert _floats(shown) == pytest.approx({i: float(undisturbed_sharded[i]) for i in shown}, abs=2e-4)
    if lost:
        return
    assert sharded.run(attempt=2) == [0] * 4
    assert resumed_at(sharded) == ("milestone", 20)
    assert any("lies otherwise now: start with the same mesh" in line for line in sharded.lines())


def _floats(shown: dict[int, str]) -> dict[int, float]:
    return {i: float(text) for i, text in shown.items()}


def _mean(numbers: list[str]) -> float:
    return sum(map(float, numbers)) / len(numbers)


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("arguments", [(), ("--sharded",)])
def test_no_kill_and_no_lost_node_mixes_iterations_or_costs_more_than_the_save_in_flight(
    sharded: Training, arguments: tuple[str, ...], rounds: int
) -> None:
    """All ranks are killed while they save all the time, and one node comes back empty each time: what is
    computed again is the same to the last digit.
    """
    chance, seen, reached = random.Random(1), dict[int, str](), 0
    always = ("--iterations", "100000", "--ring-every", "2", "--milestone-every", "100000")
    for attempt in range(rounds):
        until = f"iteration {reached + chance.randint(5, 20)} "
        ends = sharded.run(*arguments, *always, attempt=attempt, until=until)
        assert set(ends) <= set("SRD"), [sharded.lines(rank)[-3:] for rank in range(4)]
        shown, point = losses(sharded), resumed_at(sharded)
        if attempt:
            assert point, sharded.lines()
            assert point[0] == "ring"
            assert reached - 4 <= point[1] <= reached
        assert {i: seen.get(i, shown[i]) for i in shown} == shown
        seen |= shown
        reached = max(shown)
        shutil.rmtree(sharded.ring(chance.randrange(4)), ignore_errors=True)
