"""Of a job's leftovers all are killed, and of everything else on the node nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slurm_guard.adapters import procfs
from slurm_guard.hooks import leftover
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.leftover import Leftover, choose_stuck, describe, is_stuck, kill_leftovers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the epilog has it")

USER = 54321
JOB = HookJob("4711", USER, USER, "ann", "n2")
MARKS = {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n2"}


class Node:
    """Processes on this node, all gone at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._all: list[subprocess.Popen[bytes]] = []

    def start(
        self, user: int = USER, code: str = "", environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process that sleeps; it is running its program when this returns."""
        program = f"{code}\nprint(flush=True)\nimport time\ntime.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            env=environ or {}, user=user, group=user, extra_groups=[], stdout=subprocess.PIPE, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        self._all.append(process)
        return process

    def kill(self, job: HookJob = JOB, wait_s: float = 20.0) -> tuple[Leftover, ...]:
        """What the epilog does."""
        return kill_leftovers(job, time.monotonic() + wait_s, self.lines.append)

    def close(self) -> None:
        """End them."""
        for process in self._all:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def node() -> Iterator[Node]:
    """This one."""
    node = Node()
    yield node
    node.close()


def test_process_that_bears_the_jobs_marks_is_killed(node: Node) -> None:
    """Though it ignores all that can be ignored."""
    stubborn = "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)"
    left = node.start(code=stubborn, environ=MARKS)
    assert node.kill() == ()
    assert left.wait() == -signal.SIGKILL
    assert node.lines == ["killed 1 processes that job 4711 had left"]


def test_node_without_leftovers_is_quiet(node: Node) -> None:
    """Nothing to kill, nothing to say."""
    node.start()
    assert node.kill() == ()
    assert node.lines == []


@pytest.mark.parametrize(
    ("user", "environ"),
    [
        (USER, MARKS | {"SLURM_JOB_ID": "4712"}),
        (USER, MARKS | {"SLURM_JOB_ID": "47110"}),
        (USER, MARKS | {"SLURMD_NODENAME": "n3"}),
        (USER, {"SLURM_JOB_ID": "4711"}),
        (USER, {}),
        (USER + 1, MARKS),
        (0, MARKS),
    ],
    ids=["other job", "longer number", "other node", "salloc's shell", "no job", "other user", "root"],
)
def test_process_of_anything_else_lives_on(node: Node, user: int, environ: dict[str, str]) -> None:
    """One mark alone convicts nobody."""
    other = node.start(user, environ=environ)
    left = node.start(environ=MARKS)
    node.kill()
    assert left.wait() == -signal.SIGKILL
    assert other.poll() is None


def test_process_with_a_foot_in_another_user_lives_on(node: Node) -> None:
    """A program that runs as root for the user is not the user's."""
    other = node.start(0, code=f"import os\nos.setresuid({USER}, 0, 0)", environ=MARKS)
    node.kill()
    assert other.poll() is None


def test_job_of_root_is_left_alone(node: Node) -> None:
    """User 0 is never killed, whatever slurmd's environment says."""
    own = node.start(0, environ=MARKS)
    assert node.kill(HookJob("4711", 0, 0, "root", "n2")) == ()
    assert own.poll() is None


def _group(monkeypatch: pytest.MonkeyPatch, pid: int, text: str) -> None:
    """Let the kernel say that this process is in these cgroups."""
    real = procfs.read_text

    def read(asked: int, name: str) -> str:
        return text if (asked, name) == (pid, "cgroup") else real(asked, name)

    monkeypatch.setattr(procfs, "read_text", read)


@pytest.mark.parametrize(
    "group",
    [
        "9:pids:/slurm/uid_54321/job_4711/step_0/task_0\n0::/\n",
        "9:pids:/slurm_n2/uid_54321/job_4711\n",
        "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n",
        "0::/system.slice/n2_slurmstepd.scope/job_4711/step_0/user/job_9\n",
    ],
)
def test_process_in_the_jobs_cgroup_needs_no_environment(
    node: Node, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """Programs wipe their environment; out of a cgroup none can get."""
    left = node.start()
    _group(monkeypatch, left.pid, group)
    assert node.kill() == ()
    assert left.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "group",
    [
        "0::/system.slice/slurmstepd.scope/job_4712/step_0\n",
        "0::/system.slice/slurmstepd.scope/job_47110/step_0\n",
        "0::/system.slice/slurmstepd.scope/job_4712/step_0/user/job_4711\n",
        "9:pids:/slurm_n3/uid_54321/job_4711/step_0\n",
        "0::/system.slice/n3_slurmstepd.scope/job_4711/step_0\n",
    ],
)
def test_process_in_the_cgroup_of_another_job_lives_on(
    node: Node, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """Whatever its environment says: a job can start another, whose processes inherit much."""
    other = node.start(environ=MARKS)
    _group(monkeypatch, other.pid, group)
    node.kill()
    assert other.poll() is None


def test_process_that_is_about_to_begin_its_program_is_looked_at_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It shows no environment for a moment; one that has none for good is somebody else's."""
    left, bare = node.start(environ=MARKS), node.start()
    real, seen = procfs.read_environ, tmp_path / "seen"

    def read(pid: int) -> bytes:
        if pid == bare.pid:
            return b""
        if pid == left.pid and not seen.exists():
            seen.touch()  # asked in a fork
            return b""
        return real(pid)

    monkeypatch.setattr(procfs, "read_environ", read)
    assert node.kill() == ()
    assert left.wait(30) == -signal.SIGKILL
    assert bare.poll() is None


def test_process_that_forks_away_is_caught(node: Node) -> None:
    """Children that are born while their parents die."""
    code = "import os\nfor _ in range(5): os.fork()"
    node.start(code=code, environ=MARKS)
    assert node.kill() == ()
    assert _count_marked() == 0


def _count_marked() -> int:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    alive = [pid for pid in pids if b"SLURM_JOB_ID=4711" in procfs.read_environ(pid)]
    return len(alive)


def test_process_that_cannot_be_killed_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it waits for; nobody waits for it longer than there is time."""
    left = node.start(environ=MARKS)
    real = procfs.read_stat

    def read(pid: int) -> procfs.Stat | None:
        stat = real(pid)
        if stat is not None and pid == left.pid:
            stat.state, stat.name = "D", "evil\nname"
        return stat

    monkeypatch.setattr(procfs, "read_stat", read)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: None)
    (stuck,) = node.kill(wait_s=0.2)
    assert stuck.pid == left.pid
    assert is_stuck(stuck)
    assert describe(stuck).startswith(f"pid {left.pid} 'evil\\nname' in state D")
    assert node.lines[-1].startswith(f"of job 4711 is still there: pid {left.pid}")


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A file system on which every write waits in the kernel, deaf to signals."""
    image, folder = tmp_path / "image", tmp_path / "folder"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    steps = (f"mkfs.ext4 -q {image}", f"mount -o loop {image} {folder}", f"chmod 777 {folder}")
    script = " && ".join((*steps, f"fsfreeze -f {folder}"))
    made = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    try:
        if made.returncode:
            pytest.skip(f"no file system can be frozen here: {made.stderr.strip()}")
        yield folder
    finally:
        undo = f"fsfreeze -u {folder}; umount --lazy {folder}"
        subprocess.run(undo, shell=True, capture_output=True, check=False)


def test_process_in_the_kernel_outlives_its_kill(node: Node, frozen: Path) -> None:
    """A real one: it is stuck as long as the kernel holds it, and no longer."""
    fd = os.open(frozen, os.O_RDONLY)
    code = f"import os\nos.fchdir({fd})\nos.open('x', os.O_CREAT | os.O_WRONLY)"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], env=MARKS, user=USER, group=USER, extra_groups=[],
        pass_fds=(fd,), cwd="/",
    )  # fmt: skip
    os.close(fd)
    deadline_s = time.monotonic() + 30
    where = f"/proc/{process.pid}/cwd"  # before it is there, D is only a wait for the disk
    while (
        os.readlink(where) != str(frozen)
        or (stat := procfs.read_stat(process.pid)) is None
        or stat.state != "D"
    ):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    left = node.kill(wait_s=0.5)
    assert [one.pid for one in left] == [process.pid]
    assert choose_stuck(left, time.monotonic() + 0.5) == left
    assert node.lines[0].startswith(f"of job 4711 is still there: pid {process.pid} 'python")
    subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
    assert process.wait() == -signal.SIGKILL
    assert choose_stuck(left, time.monotonic() + 5) == ()


def test_hanging_environment_costs_a_second_and_a_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading another's environment can hang: nobody is killed on a guess."""
    other = node.start(environ=MARKS)
    monkeypatch.setattr(leftover, "_ENVIRON_S", 0.1)
    monkeypatch.setattr(procfs, "read_environ", lambda pid: time.sleep(60))
    assert node.kill() == ()
    assert other.poll() is None
    assert "nobody knows whose they are" in node.lines[0]


def test_process_of_a_reused_number_is_not_killed(node: Node) -> None:
    """The start time tells it from the one that was found."""
    other = node.start(environ=MARKS)
    stat = procfs.read_stat(other.pid)
    assert stat is not None
    assert not leftover._kill(Leftover(other.pid, stat.start_ticks - 1), USER)
    assert other.poll() is None


def test_killing_keeps_nothing_open(node: Node) -> None:
    """No handle, no pipe."""
    node.start(environ=MARKS)
    node.start()
    before = len(os.listdir("/proc/self/fd"))
    node.kill()
    assert node.lines
    assert len(os.listdir("/proc/self/fd")) == before
