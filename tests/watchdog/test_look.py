"""A look: where each rank stands, and whose stand it is when the rank only waits."""

from __future__ import annotations

import select
import time

import pytest

from slurm_guard.model.order import Look, Looked, Stack
from slurm_guard.model.phase import Phase
from slurm_guard.testing.node import FakeProcesses, FakeStacks
from slurm_guard.watchdog.look import LookAnswer

WAIT = ("wait (multiprocessing/popen_fork.py:40)", "<module> (train.py:9)")


class Node:
    """A rank of two Python children."""

    def __init__(self) -> None:
        self.processes = FakeProcesses()
        self.stacks = FakeStacks(self.processes)
        self.rank = self.processes.start("run", "n1", rank=3).pid
        start, rank = self.processes.start, self.rank
        self.children = tuple(start("run", "n1", parent=rank, root=rank).pid for _ in range(2))

    def look(self) -> tuple[list[Stack], Looked]:
        """What a look answers."""
        ranks = {self.rank: (3, self.children)}
        answer = LookAnswer(Look(7, 5.0), "n1", ranks, self.stacks, time.monotonic())
        stacks: list[Stack] = []
        while True:
            select.select([answer.child], [], [], 5)
            for report in answer.poll(time.monotonic()):
                if isinstance(report, Looked):
                    return stacks, report
                assert isinstance(report, Stack)
                stacks.append(report)


@pytest.fixture
def node() -> Node:
    """A node for one test."""
    made = Node()
    for child in made.children:
        made.stacks.put(child, "all_reduce (distributed.py:7)")
    return made


def test_a_rank_that_works_is_looked_at_alone(node: Node) -> None:
    """Its DataLoader workers may do what they like."""
    node.stacks.put(node.rank, "forward (model.py:3)")
    (before,), _ = node.look()
    node.stacks.put(node.children[0], "fetch (data.py:9)")
    (after,), looked = node.look()
    assert (before.rank, before.top, before.signature) == (3, "forward (model.py:3)", after.signature)
    assert looked.refused == ""


def test_a_rank_that_waits_stands_where_its_children_stand(node: Node) -> None:
    """It moves when one of them does, is in their phase, and their common place is its own."""
    node.stacks.put(node.rank, *WAIT, waits=True)
    (before,), _ = node.look()
    (again,), _ = node.look()
    node.stacks.put(node.children[1], "save (checkpoint.py:9)", phase=Phase.CHECKPOINT)
    (after,), _ = node.look()
    assert (before.top, before.signature) == ("all_reduce (distributed.py:7)", again.signature)
    assert (after.top, after.phase) == (WAIT[0], Phase.CHECKPOINT)
    assert after.signature != before.signature


def test_a_child_that_is_not_shown_makes_the_look_say_nothing(node: Node) -> None:
    """Standing still is no proof while one of them is unseen."""
    node.stacks.put(node.rank, *WAIT, waits=True)
    node.stacks.refuse(node.children[0], "permission denied")
    assert node.look() == ([], Looked(7, "n1", "permission denied"))


def test_a_rank_that_waits_for_none_of_ours_stands_for_itself(node: Node) -> None:
    """What it waits for is no Python."""
    node.stacks.put(node.rank, *WAIT, waits=True)
    node.children = ()
    (stack,), _ = node.look()
    assert stack.top == WAIT[0]
