"""The real watchdog on two pipes: it reports, looks, captures, kills and leaves, whatever happens."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_tree import STUBBORN, WITH_WORKERS, Tree, tree, wait_up, watchdog

from slurm_guard.model.order import (
    Dumped,
    DumpStarted,
    Killed,
    Leave,
    Look,
    Looked,
    Pulse,
    RankGone,
    RankSeen,
    Stack,
    Stop,
    Term,
    TermSent,
    Trouble,
)


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


def test_a_stop_from_first_sight_to_the_last_death(step: Tree, tmp_path: Path) -> None:
    """Every report of an incident, in its order; afterwards a new attempt is watched like the first."""
    step.start(0, WITH_WORKERS.format(workers=2))
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen, rank=0, children=2)
        dog.send(Stop("001", str(tmp_path / "faults" / "001"), 10.0, 5.0))
        dumped = dog.wait_for(Dumped)
        assert dumped.directory == str(tmp_path / "faults" / "001")
        dog.send(Term("001"))
        assert dog.wait_for(TermSent).processes == 3
        assert dog.wait_for(Killed).left == ()
        dog.wait_for(RankGone, rank=0)
        step.start(0)
        dog.wait_for(RankSeen, 2.0, rank=0, children=0)
        kinds = [type(report) for report in dog.reports]
        order = [kinds.index(kind) for kind in (DumpStarted, Dumped, TermSent, Killed, RankGone)]
        assert order == sorted(order)
        assert Trouble not in kinds
    assert (tmp_path / "faults" / "001" / "stacks" / "n1.json").exists()


def test_an_observed_breach_only_leaves_a_scene(step: Tree, tmp_path: Path) -> None:
    """No TERM and no ABRT, even where somebody says so; stacks are there, and every process lives on."""
    rank = step.start(0, WITH_WORKERS.format(workers=2))
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen, rank=0, children=2)
        dog.send(Stop("001", str(tmp_path / "001"), 3.0, 0.0, kill=False))
        assert dog.wait_for(Stack).rank == 0
        dog.wait_for(Dumped)
        dog.send(Term("001"))
        time.sleep(1.0)
        assert not {TermSent, Killed, RankGone, Trouble} & {type(report) for report in dog.reports}
    assert rank.poll() is None
    assert (tmp_path / "001" / "stacks" / "n1.json").exists()


def test_a_new_rank_is_seen_within_about_a_second(step: Tree) -> None:
    """And the pulse beats meanwhile."""
    with watchdog(step.run) as dog:
        assert dog.wait_for(Pulse).ranks == 0
        time.sleep(1.2)
        begun_s = time.monotonic()
        step.start(5)
        dog.wait_for(RankSeen, rank=5)
        assert time.monotonic() - begun_s < 2


def test_a_look_answers_with_a_stack_a_rank(step: Tree) -> None:
    """And says when it is over."""
    wait_up(step.start(0))
    wait_up(step.start(1, WITH_WORKERS.format(workers=1)))
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen, rank=0)
        dog.wait_for(RankSeen, rank=1)
        dog.send(Look(4, 5.0))
        assert dog.wait_for(Looked).refused == ""
        stacks = [report for report in dog.reports if isinstance(report, Stack)]
        assert sorted((s.look, s.rank, s.top[:6]) for s in stacks) == [(4, 0, "stand "), (4, 1, "stand ")]


def test_the_kill_comes_without_another_word(step: Tree, tmp_path: Path) -> None:
    """No Term, a rank that ignores TERM: its own timers bring both."""
    wait_up(step.start(0, STUBBORN))
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen)
        begun_s = time.monotonic()
        dog.send(Stop("001", str(tmp_path / "001"), 1.0, 0.5))
        dog.wait_for(TermSent)
        assert time.monotonic() - begun_s >= 0.95
        assert dog.wait_for(Killed).left == ()
        assert time.monotonic() - begun_s < 3


def test_the_order_for_the_kill_waits_for_no_scene(step: Tree, tmp_path: Path) -> None:
    """Term right behind Stop kills at once; the scene still arrives."""
    step.start(0)
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen)
        dog.send(Stop("001", str(tmp_path / "001"), 10.0, 5.0), Term("001"))
        assert dog.wait_for(Killed, 3.0).left == ()
        dog.hear(Dumped)
        kinds = [type(report) for report in dog.reports]
        assert kinds.index(DumpStarted) < kinds.index(TermSent) < kinds.index(Dumped)


def test_a_fault_folder_that_hangs_holds_up_nothing(step: Tree, tmp_path: Path) -> None:
    """Shared storage blocks for ever: the ranks die on time, the scene stays on the node and says so."""
    step.start(0)
    wall = tmp_path / "001"
    (wall / "stacks").mkdir(parents=True)
    os.mkfifo(wall / "processes-n1.json")  # opening it for writing blocks, as a frozen file system does
    with watchdog(step.run, TMPDIR=str(tmp_path)) as dog:
        dog.wait_for(RankSeen)
        begun_s = time.monotonic()
        dog.send(Stop("001", str(wall), 2.0, 1.0))
        assert dog.wait_for(Killed).left == ()
        assert time.monotonic() - begun_s < 4
        dumped = dog.hear(Dumped)
    assert dumped.missing.endswith("the fault folder hangs")
    assert (Path(dumped.directory) / "stacks" / "n1.txt").exists()
    assert Path(dumped.directory).parent == tmp_path


def test_without_room_for_a_scene_the_kill_goes_on(step: Tree, tmp_path: Path) -> None:
    """No TMPDIR: the reason is in the report."""
    step.start(0)
    with watchdog(step.run, TMPDIR="/proc/none") as dog:
        dog.wait_for(RankSeen)
        dog.send(Stop("001", str(tmp_path / "001"), 5.0, 1.0))
        assert "/proc/none" in dog.wait_for(Dumped).missing
        dog.send(Term("001"))
        assert dog.wait_for(Killed).left == ()


def test_observing_captures_and_kills_nobody(step: Tree, tmp_path: Path) -> None:
    """kill=False."""
    child = step.start(0)
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen)
        dog.send(Stop("001", str(tmp_path / "001"), 1.0, 0.1, kill=False))
        dog.wait_for(Dumped)
        time.sleep(1.5)
        assert child.poll() is None


def test_the_end_of_the_channel_finishes_the_kill(step: Tree, tmp_path: Path) -> None:
    """guarded-srun is gone right after its order."""
    child = step.start(0, STUBBORN)
    wait_up(child)
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen)
        dog.send(Stop("001", str(tmp_path / "001"), 10.0, 0.5))
        begun_s = time.monotonic()
        assert dog.close() == 0
        assert time.monotonic() - begun_s < 4
    assert child.wait(1) == -signal.SIGKILL


def test_it_leaves_on_order_and_at_the_end_of_the_channel_only(step: Tree) -> None:
    """No signal of Slurm's ends it."""
    with watchdog(step.run) as dog:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            dog.process.send_signal(number)
        dog.wait_for(Pulse)
        dog.wait_for(Pulse)
        dog.send(Leave())
        assert dog.process.wait(3) == 0
    with watchdog(step.run) as dog:
        assert dog.close() == 0


def test_a_channel_that_nobody_reads_stops_no_kill(step: Tree, tmp_path: Path) -> None:
    """stdout is full: the order is obeyed all the same."""
    ranks = [step.start(rank) for rank in range(4)]
    with watchdog(step.run) as dog:
        for rank in range(4):
            dog.wait_for(RankSeen, rank=rank)
        assert dog.process.stdout is not None
        os.set_blocking(dog.process.stdout.fileno(), True)
        with open(f"/proc/{dog.process.pid}/fd/1", "wb", buffering=0) as pipe:
            os.set_blocking(pipe.fileno(), False)
            while pipe.write(b"\n" * 4096):
                pass
        dog.send(Stop("001", str(tmp_path / "001"), 1.0, 0.5))
        for child in ranks:
            assert child.wait(4) == -signal.SIGTERM
        dog.process.kill()


def test_garbage_on_the_channel_is_no_trouble(step: Tree) -> None:
    """Lines that are no orders are passed over."""
    with watchdog(step.run) as dog:
        assert dog.process.stdin is not None
        dog.process.stdin.write(b"\xff\x00{}\n[1]\n" + b'{"t":"stop"}\n' + b"x" * 5000 + b"\n")
        dog.process.stdin.flush()
        dog.send(Look(1, 2.0))
        dog.wait_for(Looked, look=1)
