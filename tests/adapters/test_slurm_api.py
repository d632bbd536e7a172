"""SlurmApi and the choice of it, with a stand-in for pyslurm. The contract runs on a real one where it is."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_guard.adapters.slurm_api import SlurmApi
from slurm_guard.adapters.slurm_choice import SlurmChoice, choose_slurm
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.errors import CommandFailed, SlurmUnavailable

# The names and types of pyslurm 25.11; like it, it writes where it likes.
PYSLURM = """
import os, types
print("chatter on stdout")
_auto_init_disabled = bool(os.environ.get("PYSLURM_DISABLE_AUTO_INIT"))
inited = not _auto_init_disabled
utils = types.SimpleNamespace(nodelist_from_range_str=lambda text: text.split(","))
class RPCError(Exception): pass
def slurm_init():
    global inited
    inited = True
class Job:
    def __init__(self, number): self.id = number
    @staticmethod
    def load(number):
        assert inited
        if number == 9: raise RPCError("Invalid job id specified")
        if number == 8: raise RPCError("Unable to contact slurm controller (connect failure)")
        if number == 6: raise AttributeError("no such field in this release")
        job = Job(number)
        job.__dict__.update(
            state="RUNNING", is_requeueable=True, requeue_count=None, allocated_nodes="n1,n2",
            excluded_nodes=None, is_batch_job=True, end_time=4102444800, user_id=0, start_time=1795978000,
            time_limit=None if number == 2 else 60, array_id=7 if number == 7 else None,
            heterogeneous_id=None)
        return job
    def modify(self, changes): print(self.id, changes.words, file=open(os.environ["CALLS"], "a"))
class JobSubmitDescription:
    def __init__(self, **words): self.words = words
class JobStep:
    @staticmethod
    def load(job, step):
        found = JobStep()
        found.words = (job, step)
        return found
    def cancel(self): self.send_signal("cancel")
    def send_signal(self, signal): print(*self.words, signal, file=open(os.environ["CALLS"], "a"))
class JobSteps:
    @staticmethod
    def load(job):
        if job.id == 4: raise RPCError("Failed to load step info for Job 4.")
        if job.id == 3: raise KeyError(3)
        step = types.SimpleNamespace(
            id=0, name="python", state="RUNNING", allocated_nodes="n1", srun_host="login", srun_process_id=0)
        return {"batch": types.SimpleNamespace(id="batch"), 0: step}
class Node:
    def __init__(self, name=None, **changes): self.name, self.changes = name, changes
    @staticmethod
    def load(name):
        node = Node(name)
        node.__dict__.update(state="IDLE+DRAIN*", reason="bad\\n cable", reason_user="root",
                             reason_time=1795978441, partitions=["main"])
        return node
    def modify(self, changes): print(self.name, changes.changes, file=open(os.environ["CALLS"], "a"))
class Partitions:
    @staticmethod
    def load():
        if os.environ.get("UNREACHED"): raise RPCError("Zero Bytes were transmitted or received")
class Nodes:
    @staticmethod
    def load(): return {name: Node.load(name) for name in ("n1", "n2")}
"""


@dataclass(frozen=True)
class Site:
    """A machine with Slurm 25.11.7 and a pyslurm; `environ` is that of an administrator's command."""

    folder: Path
    interpreter: str
    environ: dict[str, str]

    def api(self, timeout_s: float = 10.0) -> SlurmApi:
        return SlurmApi(timeout_s, self.environ, interpreter=self.interpreter)

    def choose(self, version: str = "25.11.2") -> SlurmChoice:
        return choose_slurm(self.environ, find=lambda: version, interpreter=self.interpreter)

    def put(self, pyslurm: str) -> None:
        (self.folder / "pyslurm.py").write_text(pyslurm)

    def program(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """All is well on it."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}
    made = Site(tmp_path, str(tmp_path / "python"), environ)
    # The first word is -I, which would hide the stand-in.
    made.program("python", f'shift\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"')
    made.program("scontrol", f"echo 'SLURM_VERSION = 25.11.7'; echo 'SLURM_CONF = {conf}'")
    made.put(PYSLURM)
    return made


# --- the choice


def test_a_pyslurm_that_fits_is_taken(site: Site) -> None:
    """And never imported into this process."""
    choice = site.choose()
    assert (choice.by, choice.pyslurm) == ("pyslurm", "25.11.2")
    assert isinstance(choice.slurm, SlurmApi)
    assert "pyslurm" not in sys.modules


def test_without_pyslurm_nothing_is_asked(site: Site) -> None:
    """The usual case costs nothing."""
    site.program("scontrol", f"touch {site.folder}/asked")
    choice = site.choose("")
    assert (choice.by, choice.why) == ("commands", "pyslurm is not installed")
    assert isinstance(choice.slurm, SlurmCli)
    assert not (site.folder / "asked").exists()


@pytest.mark.parametrize("version", ["24.11.0", "25.5.0", "26.11.0", "nonsense"])
def test_another_release_is_not_taken(version: str, site: Site) -> None:
    """Its libslurm would not be that of this Slurm; it isn't even imported."""
    site.put("raise SystemExit('imported')")
    choice = site.choose(version)
    assert (choice.by, choice.why) == (
        "commands",
        f"pyslurm {version} does not match this Slurm, which is 25.11",
    )
    assert isinstance(choice.slurm, SlurmCli)


def test_a_silent_controller_leaves_it_open(site: Site) -> None:
    """What cannot be known is no match."""
    site.program("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    choice = site.choose()
    assert choice.by == "commands"
    assert "the controller could not be asked" in choice.why


def test_it_needs_a_configuration(site: Site) -> None:
    """Without the file libslurm ends the process."""
    (site.folder / "slurm.conf").unlink()
    assert (
        site.choose().why
        == f"pyslurm 25.11.2 needs a slurm.conf here, and {site.folder}/slurm.conf is no file"
    )


@pytest.mark.parametrize(
    ("pyslurm", "why"),
    [
        ("import os, sys; print('fatal: no plugin', file=sys.stderr); os._exit(1)", "fatal: no plugin"),
        ("import libslurm", "No module named 'libslurm'"),
        ("import os; os.abort()", "code -6"),
        ("slurm_init = class_node = print", "lacks Job, JobStep, JobSteps"),
    ],
)
def test_one_that_cannot_be_used(pyslurm: str, why: str, site: Site) -> None:
    """It ends its process, lacks a library, crashes, or is one of the old ones."""
    site.put(pyslurm)
    choice = site.choose()
    assert choice.by == "commands"
    assert why in choice.why
    assert isinstance(choice.slurm, SlurmCli)


def test_one_that_does_not_reach_the_controller(site: Site) -> None:
    """As one that was built for another release does."""
    site.environ["UNREACHED"] = "1"
    choice = site.choose()
    assert choice.by == "commands"
    assert "cannot be used: pyslurm look: Zero Bytes were transmitted" in choice.why


# --- the port


def test_a_job(site: Site) -> None:
    """Unset fields have the values that the commands give; user 0 is a user."""
    job = site.api().read_job("5")
    assert (job.job_id, job.state, job.requeue, job.restarts, job.batch) == ("5", "RUNNING", True, 0, True)
    assert (job.nodes, job.excluded, job.user_id) == (("n1", "n2"), (), 0)
    assert (job.end_time_s, job.start_time_s) == (4102444800, 1795978000)
    assert site.api().read_job("2").end_time_s is None, "a time limit of none"


def test_steps(site: Site) -> None:
    """Training steps alone; a job without a step, or a pending one, has none."""
    (step,) = site.api().read_steps("5")
    assert (step.step_id, step.name, step.nodes) == ("5.0", "python", ("n1",))
    assert (step.srun_host, step.srun_pid) == ("login", None)
    assert site.api().read_steps("4") == site.api().read_steps("3") == ()


@pytest.mark.parametrize("job_id", ["7", "7_2"])
def test_array_elements_are_asked_of_the_commands(job_id: str, site: Site) -> None:
    """By number pyslurm cannot tell one from the whole array."""
    site.program("scontrol", "echo 'JobId=7 ArrayJobId=7 ArrayTaskId=2 JobState=COMPLETING NodeList=n9'")
    assert site.api().read_job(job_id).nodes == ("n9",)


def test_nodes(site: Site) -> None:
    """A reason of several lines reads as the commands show it."""
    node = site.api().read_node("n1")
    assert node.states == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert (node.reason, node.reason_by, node.reason_s) == ("bad cable", "root", 1795978441)
    assert node.partitions == ("main",)
    assert [node.name for node in site.api().read_nodes()] == ["n1", "n2"]


def test_changes(site: Site) -> None:
    """What is asked of Slurm, word for word; a drain without a reason is refused before."""
    port = site.api()
    port.drain_node("n1", "slurm-guard: two words")
    port.undrain_node("n1")
    port.exclude("5", ["n1", "n2"])
    port.cancel_step("5.0", "TERM")
    port.cancel_step("5.0", "KILL")
    assert site.calls == [
        "n1 {'state': 'DRAIN', 'reason': 'slurm-guard: two words'}",
        "n1 {'state': 'UNDRAIN'}",
        "5 {'excluded_nodes': ['n1', 'n2']}",
        "5 0 SIGTERM",
        "5 0 cancel",
    ]
    with pytest.raises(CommandFailed, match="must specify a reason"):
        port.drain_node("n1", "")
    assert len(site.calls) == 5


def test_refused_is_told_from_unknown(site: Site) -> None:
    """A refusal, a silent controller, and a field that this release does not have."""
    with pytest.raises(CommandFailed, match="Invalid job id") as caught:
        site.api().read_job("9")
    assert caught.value.argv == ["pyslurm", "read_job", "9"]
    with pytest.raises(SlurmUnavailable, match="Unable to contact"):
        site.api().read_job("8")
    with pytest.raises(SlurmUnavailable, match="no such field"):
        site.api().read_job("6")


def test_one_that_hangs_hangs_nobody_here(site: Site) -> None:
    """pyslurm itself knows no deadline."""
    site.put("import time; time.sleep(60)")
    start_s = time.monotonic()
    with pytest.raises(SlurmUnavailable, match=r"no answer in 0\.5 s"):
        site.api(0.5).read_nodes()
    assert time.monotonic() - start_s < 30
