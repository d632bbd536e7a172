"""FakeSlurm keeps the contract that the real Slurm keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from contracts.slurm_contract import SlurmContract

from slurm_guard.model.reading import JobReading
from slurm_guard.testing.slurm import FakeSlurm

NODES = ("n1", "n2", "n3", "n4")


class FakeWorld:
    """The double, and the same cluster with an administrator's rights."""

    nodes = NODES

    def __init__(self) -> None:
        self.slurm = FakeSlurm(NODES)
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

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.slurm.available = False
        yield
        self.slurm.available = True


class TestFakeSlurm(SlurmContract):
    """The suite over the double."""

    @pytest.fixture
    def world(self) -> FakeWorld:
        """A new cluster."""
        return FakeWorld()


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
