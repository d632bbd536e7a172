"""FakeSlurm keeps the contract that the real Slurm keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from contracts.slurm_contract import SlurmContract

from slurm_guard.model.reading import JobReading
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.slurm import FakeSlurm

NODES = ("n1", "n2", "n3", "n4")


class FakeWorld:
    """The double, and the same cluster with an administrator's rights."""

    nodes = NODES

    def __init__(self, keeps_reasons: bool) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(NODES, clock=self.clock, keeps_reasons=keeps_reasons)
        self.administrator = self.slurm.as_administrator()

    def submit(
        self,
        *,
        nodes: int = 1,
        required: tuple[str, ...] = (),
        excluded: tuple[str, ...] = (),
        requeue: bool = True,
        array_task: int | None = None,
    ) -> str:
        return self.slurm.submit(
            nodes=nodes, required=required, excluded=excluded, requeue=requeue, array_task=array_task
        )

    def allocate(self) -> str:
        return self.slurm.submit(batch=False)

    def start_step(self, job_id: str) -> str:
        return self.slurm.start_step(job_id, "sleep")

    def await_requeued(self, job_id: str) -> JobReading:
        return self.slurm.read_job(job_id)

    def set_node(self, node: str, state: str, reason: str) -> None:
        self.slurm.set_node(
            node, *(["IDLE", "FAIL"] if state == "FAIL" else [state]), reason=reason, by="alice"
        )

    def wall_s(self) -> float:
        return self.clock.wall_s()

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.slurm.available = False
        yield
        self.slurm.available = True


class TestFakeSlurm(SlurmContract):
    """The suite over the double."""

    @pytest.fixture(params=[False, True], ids=["forgets reasons", "keeps reasons"])
    def world(self, request: pytest.FixtureRequest) -> FakeWorld:
        """A new cluster."""
        return FakeWorld(request.param)


def test_what_a_test_can_do_besides() -> None:
    """A requeued job starts again elsewhere; an ended one shows its state; signals are kept."""
    slurm = FakeSlurm(NODES)
    job_id = slurm.submit(nodes=2)
    step_id = slurm.start_step(job_id)
    slurm.cancel_step(step_id, "TERM")
    assert slurm.signals == [(step_id, "TERM")]
    slurm.requeue(job_id, ["n1"])
    assert slurm.read_steps(job_id) == ()
    slurm.start_job(job_id)
    assert slurm.read_job(job_id).nodes == ("n2", "n3")
    slurm.end_job(job_id, "CANCELLED")
    assert slurm.read_job(job_id).state == "CANCELLED"


def test_what_a_test_can_do_to_nodes() -> None:
    """Partitions, several administrators, what the controller itself says, and a time that goes on."""
    clock = FakeClock(wall_s=100.0)
    slurm = FakeSlurm(NODES, clock=clock, partitions={"n1": ("main", "long")})
    assert [slurm.read_node(node).partitions for node in NODES[:2]] == [("main", "long"), ("main",)]
    slurm.as_administrator("alice").drain_node("n1", "bad cable")
    clock.advance(50)
    slurm.as_administrator().drain_node("n2", "slurm-guard: gpu_lost")
    slurm.set_node("n3", "DOWN", "NOT_RESPONDING", reason="Not responding")
    said = [(node.reason_by, node.reason_s) for node in slurm.read_nodes()]
    assert said == [("alice", 100.0), ("root", 150.0), ("slurm", 150.0), ("", None)]
    assert slurm.read_node("n3").states == {"DOWN", "NOT_RESPONDING"}
    slurm.drain_itself("n2", "Low RealMemory")
    slurm.drain_itself("n4", "Low RealMemory")
    assert [slurm.read_node(node).reason for node in ("n2", "n4")] == [
        "slurm-guard: gpu_lost",
        "Low RealMemory",
    ]
