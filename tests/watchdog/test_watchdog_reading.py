"""The real watchdog reads heartbeats, GPU load and bytes of real ranks, and what their stacks say they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_library import build_nvml
from process_tree import Tree, tree, wait_up, watchdog

from slurm_guard.model.order import Beat, Load, Look, Looked, Pulse, RankSeen, Stack, Trouble
from slurm_guard.model.phase import Phase

BEATING = """
import time
from slurm_guard.training import heartbeat
number = 0
while True:
    number += 1
    heartbeat(iteration=number, loss=2.5, epoch=0.5)
    time.sleep(0.01)
"""

BEATING_CHILD = "import os, time\nif os.fork():\n    time.sleep(600)\n" + BEATING

EVALUATING = """
import time
def evaluate():
    print("up", flush=True)
    time.sleep(600)
evaluate()
"""


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


@pytest.mark.parametrize("code", [BEATING, BEATING_CHILD], ids=["the rank", "its child"])
def test_a_rank_that_beats_is_reported_again_and_again(step: Tree, code: str) -> None:
    """Whether the rank itself calls or a fork of it; the iteration goes on from one report to the next."""
    child = step.start(3, code)
    with watchdog(step.run) as dog:
        first = dog.wait_for(Beat)
        second = dog.wait_for(Beat)
        assert (first.node, first.rank, first.pid, first.phase) == ("n1", 3, child.pid, Phase.TRAINING)
        assert (first.loss, first.epoch) == (2.5, 0.5)
        assert second.iteration > first.iteration
        assert second.beats > first.beats
        assert 0 <= second.age_s < 5


def test_bytes_read_and_written_come_with_the_rank(step: Tree) -> None:
    """Python alone reads some when it starts."""
    step.start(0)
    with watchdog(step.run) as dog:
        assert dog.wait_for(RankSeen).io_bytes > 1000


def test_a_stack_says_what_the_rank_does(step: Tree) -> None:
    """By the name of its function; the other one only stands."""
    wait_up(step.start(0, EVALUATING))
    wait_up(step.start(1))
    with watchdog(step.run) as dog:
        dog.wait_for(RankSeen, rank=0)
        dog.wait_for(RankSeen, rank=1)
        dog.send(Look(1, 5.0))
        dog.wait_for(Looked)
        stacks = [report for report in dog.reports if isinstance(report, Stack)]
        assert {s.rank: s.phase for s in stacks} == {0: Phase.EVALUATION, 1: None}


def test_the_load_of_the_gpus_comes_from_the_driver(step: Tree, tmp_path: Path) -> None:
    """Through the real binding and a library that answers like one."""
    state = tmp_path / "state"
    state.write_text("count 1\n0.utilization_percent 97\n0.power_mw 650500\n")
    library = str(build_nvml(tmp_path))
    with watchdog(step.run, LD_LIBRARY_PATH=library, FAKE_NVML=str(state)) as dog:
        assert dog.wait_for(Load) == Load("n1", 0, 97, 650.5)


def test_a_driver_that_hangs_holds_up_nothing(step: Tree, tmp_path: Path) -> None:
    """The watchdog reports its ranks and leaves when it is told to."""
    state = tmp_path / "state"
    state.write_text("count 1\n0.nvmlDeviceGetUtilizationRates.sleep_s 600\n")
    library = str(build_nvml(tmp_path))
    step.start(0)
    with watchdog(step.run, LD_LIBRARY_PATH=library, FAKE_NVML=str(state)) as dog:
        dog.wait_for(RankSeen)
        dog.wait_for(Pulse)
        dog.wait_for(Pulse)
        assert dog.close() == 0
        assert not [report for report in dog.reports if isinstance(report, (Load, Trouble))]
