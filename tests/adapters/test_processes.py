"""The right processes are found, each with its rank, and no other is."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from process_tree import NODE, SLEEPER, WIPED, WITH_WORKERS, Tree, settle, tree
from watched_training import until

from slurm_guard.adapters.listpids import ListPids
from slurm_guard.adapters.processes import ProcProcesses
from slurm_guard.model.process import ProcessReading

_AGENT = """
import os, subprocess, sys, time
for rank in (4, 5):
    more = {"RANK": str(rank), "LOCAL_RANK": str(rank - 4), "TORCHELASTIC_RUN_ID": "x"}
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, **more})
time.sleep(600)
"""

_SETS_RANK = """
import os, subprocess, sys, time
os.environ["RANK"] = os.environ["SLURM_PROCID"]
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


@pytest.fixture
def step() -> Iterator[Tree]:
    """A step for one test."""
    with tree() as made:
        yield made


def _find(step: Tree, fits: Callable[[tuple[ProcessReading, ...]], bool]) -> tuple[ProcessReading, ...]:
    """What one ProcProcesses finds once it fits."""
    processes = ProcProcesses()
    until_s = time.monotonic() + 5
    while not fits(found := processes.find(step.run, NODE)):
        assert time.monotonic() < until_s, found
        time.sleep(0.05)
    return found


def _ranks(found: tuple[ProcessReading, ...]) -> dict[int | None, int]:
    return {p.rank: p.pid for p in found if p.pid == p.root}


def test_a_rank_and_its_workers(step: Tree) -> None:
    """Workers carry the rank's environment, belong to it, and are no ranks."""
    rank = step.start(3, WITH_WORKERS.format(workers=2), SLURM_LOCALID="1")
    found = _find(step, lambda found: len(found) == 3)
    assert _ranks(found) == {3: rank.pid}
    assert {(p.rank, p.local_rank, p.root, p.step_id) for p in found} == {(3, 1, rank.pid, "77.0")}


def test_other_runs_other_nodes_and_srun_are_left_alone(step: Tree) -> None:
    """The srun of the step bears the token but no task; another run or node is another's."""
    ours = step.start(0)
    step.start(1, SLURM_GUARD_RUN="another")
    step.start(2, SLURMD_NODENAME="n2")
    step.start(None)
    assert [p.pid for p in _find(step, bool)] == [ours.pid]


def test_the_ranks_of_torchrun_are_its_workers(step: Tree) -> None:
    """The agent has SLURM_PROCID only: it is a process of the step and no rank."""
    agent = step.start(0, _AGENT)
    found = _find(step, lambda found: len(found) == 3 and len(_ranks(found)) == 2)
    assert sorted(rank for rank in _ranks(found) if rank is not None) == [4, 5]
    assert next(p for p in found if p.pid == agent.pid).rank is None


def test_a_script_that_sets_rank_for_itself_is_the_rank(step: Tree) -> None:
    """Its children inherit RANK: they are its compile workers, not the ranks."""
    rank = step.start(2, _SETS_RANK)
    assert _ranks(_find(step, lambda found: len(found) == 2)) == {2: rank.pid}


def test_a_shell_above_the_rank_is_not_the_rank(step: Tree) -> None:
    """The topmost Python process is, and a shell below it belongs to it."""
    code = "import subprocess; subprocess.run(['sh', '-c', 'sleep 600; true'])"
    shell = step.start_program(["sh", "-c", f'{sys.executable} -c "{code}"; true'], 0)
    found = _find(step, lambda found: len(found) == 4)
    (root,) = _ranks(found).values()
    assert root != shell.pid
    assert sum(p.root == root for p in found) == 3


def test_a_wiped_environment_is_remembered(step: Tree) -> None:
    """What was known before a setproctitle stays known."""
    rank = step.start(6, WIPED.format(delay=0.3))
    processes = ProcProcesses()
    until_s = time.monotonic() + 5
    while not _ranks(processes.find(step.run, NODE)):
        assert time.monotonic() < until_s
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"wiped\n"
    assert b"SLURM" not in Path(f"/proc/{rank.pid}/environ").read_bytes()
    for _ in range(40):
        assert _ranks(processes.find(step.run, NODE)) == {6: rank.pid}


def test_a_child_with_a_wiped_environment_belongs_to_its_parent(step: Tree) -> None:
    """Parentage speaks where the environment does not."""
    child = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    code = f"import subprocess, sys; subprocess.run({child}, env={{}})"
    rank = step.start(1, code)
    found = _find(step, lambda found: len(found) == 2)
    assert {p.root for p in found} == {rank.pid}


def _install_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    program = folder / "scontrol"
    program.write_text(
        "#!/bin/sh\ncat <<END\n" + "\n".join(["PID JOBID STEPID LOCALID GLOBALID", *rows, "END\n"])
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_slurm_names_a_task_that_wiped_itself_before_it_was_seen(
    step: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scontrol listpids` gives its task; nobody waits for the answer."""
    rank = step.start(6, WIPED.format(delay=0))
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"wiped\n"
    _install_scontrol(tmp_path, monkeypatch, f"{rank.pid} 77 0 2 6", "12 77 1 0 0", "13 77 batch 0 0")
    processes = ProcProcesses("77", "77.1")
    until_s = time.monotonic() + 5
    while not (found := processes.find(step.run, NODE)):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert [(p.pid, p.rank, p.local_rank, p.step_id) for p in found] == [(rank.pid, 6, 2, "77.0")]


def test_a_step_that_may_be_anothers_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two foreign steps on the node, only a step that is known as ours speaks for a wiped process."""
    _install_scontrol(tmp_path, monkeypatch, "1 77 0 0 0", "2 77 1 0 0")
    answers = []
    for steps in (set(), {"77.1"}):
        asker = ListPids("77", "77.9")
        asker.ask({1, 2}, steps, NODE)
        assert asker._child is not None
        asker._child.wait(30)
        answers.append(asker.ask({1, 2}, steps, NODE).keys())
    assert answers == [set(), {2}]


def test_a_worker_that_outlives_its_rank_stays_its_worker(step: Tree) -> None:
    """An orphan is no rank."""
    rank = step.start(0, WITH_WORKERS.format(workers=1))
    processes = ProcProcesses()
    until_s = time.monotonic() + 5
    while len(processes.find(step.run, NODE)) < 2:
        assert time.monotonic() < until_s
    rank.kill()
    rank.wait()
    (orphan,) = processes.find(step.run, NODE)
    assert (orphan.root, orphan.rank) == (rank.pid, 0)


def test_a_program_that_becomes_python_is_found(step: Tree) -> None:
    """exec keeps pid and start time; what is known is looked at again."""
    argv = ["sh", "-c", f'sleep 0.3; RANK=5 exec {sys.executable} -c "import time; time.sleep(600)"']
    rank = step.start_program(argv, 0)
    assert _ranks(_find(step, lambda found: bool(_ranks(found)))) == {5: rank.pid}


def test_a_signal_reaches_the_same_process_only(step: Tree) -> None:
    """Another start time is another process, a dead one takes no signal."""
    child = step.start(0, SLEEPER)
    processes = ProcProcesses()
    found = _find(step, bool)[0]
    assert not processes.send_signal(replace(found, start_ticks=1), signal.SIGKILL)
    assert child.poll() is None
    assert processes.send_signal(found, signal.SIGKILL)
    child.wait(5)
    assert not processes.send_signal(found, signal.SIGKILL)


def test_a_signal_works_without_pidfd(step: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels and container filters have none."""

    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child = step.start(0)
    assert ProcProcesses().send_signal(_find(step, bool)[0], signal.SIGKILL)
    assert child.wait(5) == -signal.SIGKILL


def test_a_stopped_process_and_a_zombie_have_their_states(step: Tree) -> None:
    """T and Z as /proc says."""
    child = step.start(0)
    processes = ProcProcesses()
    _find(step, bool)
    child.send_signal(signal.SIGSTOP)
    assert settle(lambda: processes.read(child.pid), "T") == "T"
    os.kill(child.pid, signal.SIGKILL)
    assert settle(lambda: processes.read(child.pid), "Z") == "Z"


def test_a_leader_that_died_before_its_threads_is_not_dead(step: Tree) -> None:
    """A thread that lives on holds what the process held."""
    code = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    child = step.start(0, code + "ctypes.CDLL(None).pthread_exit(None)")
    leader = Path(f"/proc/{child.pid}/task/{child.pid}/stat")
    until(lambda: leader.read_text().rpartition(") ")[2].startswith("Z"), 30)
    assert settle(lambda: ProcProcesses().read(child.pid), "S") == "S"


def test_the_callers_own_step_is_left_out(step: Tree) -> None:
    """Even where a watchdog inherits the token."""
    step.start(0, SLURM_STEP_ID="9")
    ours = step.start(1)
    processes = ProcProcesses(own_step="77.9")
    until(lambda: bool(processes.find(step.run, NODE)), 30)
    assert [p.pid for p in processes.find(step.run, NODE)] == [ours.pid]
