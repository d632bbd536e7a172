"""What every `Slurm` port keeps to, the real one and its double."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

from slurm_guard.errors import CommandFailed, SlurmUnavailable
from slurm_guard.model.reading import JobReading
from slurm_guard.ports import Slurm


class World(Protocol):
    """A cluster of four nodes with nothing on it, and the port as a plain user has it."""

    slurm: Slurm
    administrator: Slurm
    nodes: tuple[str, ...]

    def submit(
        self,
        *,
        nodes: int = 1,
        required: tuple[str, ...] = (),
        excluded: tuple[str, ...] = (),
        requeue: bool = True,
        array_task: int | None = None,
    ) -> str:
        """Submit a batch job and wait until it runs; its id."""

    def allocate(self) -> str:
        """Make an interactive allocation; its id."""

    def start_step(self, job_id: str) -> str:
        """Start a step named `sleep` on all nodes of the job; its id."""

    def await_requeued(self, job_id: str) -> JobReading:
        """The job once it has left its nodes."""

    def set_node(self, node: str, state: str, reason: str) -> None:
        """A person sets the node DOWN or FAIL, with a reason."""

    def wall_s(self) -> float:
        """The time at the controller, in seconds since the epoch."""

    def silence(self) -> AbstractContextManager[None]:
        """The controller answers nobody meanwhile, and both ports are impatient."""


class SlurmContract:
    """The suite. A subclass gives the fixture `world`."""

    def test_a_running_job(self, world: World) -> None:
        """State, nodes, rights and times are those that were asked for."""
        job = world.slurm.read_job(world.submit(nodes=2, excluded=world.nodes[3:]))
        assert (job.state, job.requeue, job.restarts, job.batch) == ("RUNNING", True, 0, True)
        assert len(job.nodes) == 2
        assert set(job.nodes) < set(world.nodes[:3])
        assert job.excluded == world.nodes[3:]
        assert job.user_id > 0

    def test_an_array_element_is_named_by_array_and_task(self, world: World) -> None:
        """Its raw number may be that of the whole array, so nobody gets to see it."""
        job_id = world.submit(array_task=3)
        assert job_id.endswith("_3")
        assert world.slurm.read_job(job_id).job_id == job_id

    def test_an_interactive_job(self, world: World) -> None:
        """It has no batch script, and can neither be requeued nor tested for it."""
        job_id = world.allocate()
        assert not world.slurm.read_job(job_id).batch
        assert world.slurm.read_steps(job_id) == ()
        for refused in (world.slurm.read_batch_script, lambda job: world.slurm.test_requeue(job, [])):
            with pytest.raises(CommandFailed, match="no batch script"):
                refused(job_id)
        with pytest.raises(CommandFailed, match="Only batch jobs"):
            world.slurm.requeue(job_id, [])

    def test_steps(self, world: World) -> None:
        """Training steps with name, nodes and srun; the batch step is none."""
        job_id = world.submit(nodes=2)
        assert world.slurm.read_steps(job_id) == ()
        step_id = world.start_step(job_id)
        (step,) = world.slurm.read_steps(job_id)
        assert (step.step_id, step.name, step.state) == (step_id, "sleep", "RUNNING")
        assert step.nodes == world.slurm.read_job(job_id).nodes
        assert step.srun_host
        assert step.srun_pid

    def test_cancel_step_leaves_the_others(self, world: World) -> None:
        """KILL ends this step alone; a step that is gone is refused."""
        job_id = world.submit()
        first, second = world.start_step(job_id), world.start_step(job_id)
        world.slurm.cancel_step(first, "KILL")
        _until(lambda: [step.step_id for step in world.slurm.read_steps(job_id)] == [second])
        with pytest.raises(CommandFailed, match="Invalid job id"):
            world.slurm.cancel_step("999999.0", "KILL")

    def test_batch_script(self, world: World) -> None:
        """As submitted."""
        assert world.slurm.read_batch_script(world.submit()).startswith("#!/bin/sh\n")

    def test_expand(self, world: World) -> None:
        """Ranges with leading zeros, lists, and no node at all."""
        assert world.slurm.expand("gpu[08-10,12],login") == ("gpu08", "gpu09", "gpu10", "gpu12", "login")
        assert world.slurm.expand("n1") == ("n1",)
        assert world.slurm.expand("") == ()

    def test_what_could_run_without_a_node(self, world: World) -> None:
        """A job that holds all it can have is busy on its nodes, which is no obstacle."""
        job_id = world.submit(nodes=3)
        assert world.slurm.test_requeue(job_id, world.nodes[:1]) == ""
        assert "not available" in world.slurm.test_requeue(job_id, world.nodes[:2])

    def test_what_could_not(self, world: World) -> None:
        """All nodes but one excluded, a node excluded that the job insists on, a node that is none."""
        everywhere = world.submit(nodes=4)
        assert "not available" in world.slurm.test_requeue(everywhere, world.nodes[:1])
        insists = world.submit(nodes=2, required=world.nodes[:2])
        assert world.slurm.test_requeue(insists, world.nodes[2:]) == ""
        assert "Invalid node name" in world.slurm.test_requeue(insists, world.nodes[1:2])
        assert "Invalid node name" in world.slurm.test_requeue(insists, ["no-such-node"])

    def test_requeue_excludes(self, world: World) -> None:
        """One restart more, and the list is the new one."""
        job_id = world.submit(excluded=world.nodes[3:])
        world.slurm.requeue(job_id, world.nodes[:2])
        job = world.await_requeued(job_id)
        assert (job.restarts, job.excluded) == (1, world.nodes[:2])

    def test_requeue_without_exclusion_keeps_the_list(self, world: World) -> None:
        """The user's own exclusion stays."""
        job_id = world.submit(excluded=world.nodes[3:])
        world.slurm.requeue(job_id, [])
        assert world.await_requeued(job_id).excluded == world.nodes[3:]

    def test_requeue_of_one_element_leaves_the_others(self, world: World) -> None:
        """The array goes on."""
        first, second = world.submit(array_task=0), world.submit(array_task=1)
        world.slurm.requeue(first, world.nodes[:1])
        assert world.await_requeued(first).excluded == world.nodes[:1]
        other = world.slurm.read_job(second)
        assert (other.state, other.restarts, other.excluded) == ("RUNNING", 0, ())

    def test_refused_requeue_leaves_the_job(self, world: World) -> None:
        """--no-requeue: refused as `requeue`, the job runs on."""
        job_id = world.submit(requeue=False)
        with pytest.raises(CommandFailed, match="presently disabled") as caught:
            world.slurm.requeue(job_id, world.nodes[:1])
        assert caught.value.argv[1] == "requeue"
        job = world.slurm.read_job(job_id)
        assert (job.state, job.restarts, job.excluded) == ("RUNNING", 0, ())

    def test_refused_exclusion_is_told_from_a_refused_requeue(self, world: World) -> None:
        """A node that is none: the job is requeued all the same, and the error says so by `update`."""
        job_id = world.submit()
        with pytest.raises(CommandFailed, match="Invalid node name") as caught:
            world.slurm.requeue(job_id, ["no-such-node"])
        assert caught.value.argv[1] == "update"
        assert world.await_requeued(job_id).restarts == 1

    def test_a_second_requeue_is_refused(self, world: World) -> None:
        """Somebody was faster: the job waits already."""
        job_id = world.submit()
        world.slurm.requeue(job_id, [])
        world.await_requeued(job_id)
        with pytest.raises(CommandFailed, match="Job is pending execution") as caught:
            world.slurm.requeue(job_id, [])
        assert caught.value.argv[1] == "requeue"
        assert world.slurm.read_job(job_id).restarts == 1

    def test_unknown_job(self, world: World) -> None:
        """Refused, not unavailable."""
        slurm = world.slurm
        for ask in _QUESTIONS:
            with pytest.raises(CommandFailed):
                ask(slurm, "999999")

    def test_nodes(self, world: World) -> None:
        """A node's state; one that is none is refused."""
        assert "IDLE" in world.slurm.read_node(world.nodes[0]).states
        with pytest.raises(CommandFailed, match="not found"):
            world.slurm.read_node("no-such-node")

    def test_all_nodes(self, world: World) -> None:
        """Each as it is read alone, with its partitions."""
        nodes = world.slurm.read_nodes()
        assert sorted(node.name for node in nodes) == sorted(world.nodes)
        assert {node.partitions for node in nodes} == {("main",)}
        assert world.slurm.read_node(world.nodes[1]) in nodes

    def test_drain(self, world: World) -> None:
        """Administrators drain with a reason, and who gave it when is seen by everybody."""
        node, reason = world.nodes[0], "slurm-guard: gpu=3 Class=reset two words"
        before_s = int(world.wall_s())
        world.administrator.drain_node(node, reason)
        reading = world.slurm.read_node(node)
        assert "DRAIN" in reading.states
        assert (reading.reason, reading.reason_by) == (reason, "root")
        assert reading.reason_s is not None
        assert before_s <= reading.reason_s <= world.wall_s()
        assert reading in world.slurm.read_nodes()

    def test_the_last_reason_stands(self, world: World) -> None:
        """A second drain overwrites the first one's words."""
        world.administrator.drain_node(world.nodes[0], "bad cable")
        world.administrator.drain_node(world.nodes[0], "keep for the vendor")
        assert world.slurm.read_node(world.nodes[0]).reason == "keep for the vendor"

    def test_undrain(self, world: World) -> None:
        """The drain is gone, the reason may stand; once more, or where nothing was drained, is no error."""
        first, second = world.nodes[:2]
        world.administrator.drain_node(first, "bad cable")
        for node in (first, first, second):
            world.administrator.undrain_node(node)
            assert "DRAIN" not in world.slurm.read_node(node).states
        reading = world.slurm.read_node(first)
        assert reading.reason in ("", "bad cable")
        assert (reading.reason_s is None) == (reading.reason == "")

    def test_undrain_leaves_a_node_down(self, world: World) -> None:
        """DOWN is somebody else's word, and the last reason stands."""
        node = world.nodes[0]
        world.set_node(node, "DOWN", "broken")
        world.administrator.drain_node(node, "bad cable")
        world.administrator.undrain_node(node)
        reading = world.slurm.read_node(node)
        assert "DOWN" in reading.states
        assert "DRAIN" not in reading.states
        assert reading.reason == "bad cable"

    def test_undrain_lifts_a_fail_too(self, world: World) -> None:
        """Whoever undrains looks for FAIL before."""
        world.set_node(world.nodes[0], "FAIL", "soon for the vendor")
        assert "FAIL" in world.slurm.read_node(world.nodes[0]).states
        world.administrator.undrain_node(world.nodes[0])
        assert "FAIL" not in world.slurm.read_node(world.nodes[0]).states

    def test_refused_drain_and_undrain(self, world: World) -> None:
        """A plain user changes nothing; nor does a drain without a reason, or of a node that is none."""
        node = world.nodes[0]
        before = world.slurm.read_node(node)
        for change in _CHANGES:
            with pytest.raises(CommandFailed, match="Invalid user id"):
                change(world.slurm, node)
            with pytest.raises(CommandFailed, match="Invalid node name"):
                change(world.administrator, "no-such-node")
        with pytest.raises(CommandFailed, match="must specify a reason"):
            world.administrator.drain_node(node, "")
        after = world.slurm.read_node(node)
        assert "DRAIN" not in after.states
        assert (after.reason, after.reason_s) == (before.reason, before.reason_s)

    def test_silent_controller_is_unavailable(self, world: World) -> None:
        """Unknown is not refused; the names of a node list can be had all the same."""
        job_id = world.submit()
        with world.silence():
            for ask in _QUESTIONS:
                with pytest.raises(SlurmUnavailable):
                    ask(world.slurm, job_id)
            for ask_node in (*_CHANGES, lambda slurm, node: slurm.read_node(node)):
                with pytest.raises(SlurmUnavailable):
                    ask_node(world.administrator, world.nodes[0])
            with pytest.raises(SlurmUnavailable):
                world.slurm.read_nodes()
            assert world.slurm.expand("n[1-2]") == ("n1", "n2")


_QUESTIONS: tuple[Any, ...] = (
    lambda slurm, job_id: slurm.read_job(job_id),
    lambda slurm, job_id: slurm.read_steps(job_id),
    lambda slurm, job_id: slurm.read_batch_script(job_id),
    lambda slurm, job_id: slurm.test_requeue(job_id, []),
    lambda slurm, job_id: slurm.requeue(job_id, []),
    lambda slurm, job_id: slurm.cancel_step(f"{job_id}.0", "TERM"),
)
_CHANGES: tuple[Any, ...] = (
    lambda slurm, node: slurm.drain_node(node, "mine"),
    lambda slurm, node: slurm.undrain_node(node),
)


def _until(fits: Any, timeout_s: float = 20.0) -> None:
    import time

    end_s = time.monotonic() + timeout_s
    while not fits():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.1)
