"""The shell around each hook: whatever is broken inside, a job starts and a node stays."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_guard.adapters.site_kit import render_hook
from slurm_guard.policy.site_kit import OFF, Hook

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
"""What /bin/sh is: on Debian the one, on RHEL the other."""
Wrapper = Callable[..., "Ran"]


class Ran:
    """The wrapper's end: its code, what slurmd would read, and the lines of the log."""

    def __init__(self, code: int, said: str, log: Path) -> None:
        self.code = code
        self.said = said
        self.log = log.read_text().splitlines() if log.is_file() else []


@pytest.fixture(params=SHELLS)
def wrapper(tmp_path: Path, request: pytest.FixtureRequest) -> Wrapper:
    """Write a program in the interpreter's place, and run the prolog's wrapper as slurmd does."""
    shell = tmp_path / "sh"  # bash keeps to POSIX by this name
    shell.symlink_to(str(shutil.which(request.param)))
    log = tmp_path / "log dir/hooks.log"
    log.parent.mkdir()
    program = tmp_path / "the interpreter"

    def run(
        body: str | None, *arguments: str, kind: str = "prolog", deadline_s: float = 5, **given: object
    ) -> Ran:
        if body is not None:
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
        hook = Hook("etc/x", kind, kind, deadline_s, "the job is let in")
        timeout = str(given.pop("timeout", "/usr/bin/timeout"))
        file = render_hook(
            hook, interpreter=str(program), timeout=timeout, log=str(log), slurm_conf="/etc/my slurm.conf"
        )
        script = tmp_path / "50-slurm-guard"
        script.write_text(file.text.replace(f"/{OFF}", str(tmp_path / "off")))
        script.chmod(file.mode)
        done = subprocess.run(
            [str(shell), str(script), *arguments],
            env={"SLURM_JOB_ID": "7"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=False,
            **given,  # type: ignore[call-overload]
        )
        return Ran(done.returncode, done.stdout, log)

    return run


def test_its_word_is_the_only_one_that_refuses(wrapper: Wrapper) -> None:
    """77 is exit code 1 for slurmd, 0 is 0; neither costs a line of the wrapper's own."""
    assert (wrapper("exit 77").code, wrapper("exit 0").code) == (1, 0)
    assert wrapper("exit 77").log == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 1", "the program failed with code 1"),
        ("exit 2", "the program failed with code 2"),
        ("exit 124", "no answer in 5 s: killed: "),
        ("kill -9 $$", "was killed from outside: "),
        ("kill -11 $$", "the program failed with code 139"),
        ("exit 126", "the interpreter or timeout cannot be run (code 126)"),
    ],
)
def test_a_failure_lets_the_job_in(wrapper: Wrapper, body: str, said: str) -> None:
    """And costs one line that says what it was."""
    ran = wrapper(body)
    assert (ran.code, ran.said, len(ran.log)) == (0, "", 1)
    assert f" prolog: {said}" in ran.log[0]
    assert ran.log[0].endswith(": the job is let in")


def test_a_broken_program_that_has_told_so_is_one_line(wrapper: Wrapper) -> None:
    """Code 70 is its own word for that."""
    ran = wrapper("echo it is broken; exit 70")
    assert (ran.code, ran.log) == (0, ["it is broken"])


def test_a_program_that_hangs_is_ended(wrapper: Wrapper) -> None:
    """One that does not hear TERM is killed a second later; what it started does not hold slurmd's pipe."""
    start = time.monotonic()
    ran = wrapper("trap '' TERM; sleep 20 & sleep 20", deadline_s=0.2)
    assert (ran.code, len(ran.log)) == (0, 1)
    assert "no answer in 0.2 s: killed: " in ran.log[0]
    assert time.monotonic() - start < 15


def test_a_background_child_holds_nobody(wrapper: Wrapper) -> None:
    """slurmd waits until its pipe is closed, and nothing of ours has it open."""
    start = time.monotonic()
    assert wrapper("setsid sleep 20 & exit 0").code == 0
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("mode", [None, 0o644])
def test_without_an_interpreter(wrapper: Wrapper, tmp_path: Path, mode: int | None) -> None:
    """Renamed, or no longer executable: one line that says how it is mended."""
    if mode is not None:
        (tmp_path / "the interpreter").write_text("#!/bin/sh\nexit 77\n")
        (tmp_path / "the interpreter").chmod(mode)
    ran = wrapper(None)
    assert (ran.code, ran.said) == (0, "")
    assert "slurm-guard site install mends it" in ran.log[-1]


def test_without_timeout(wrapper: Wrapper) -> None:
    """The program cannot be bounded, so it is not run."""
    ran = wrapper("exit 77", timeout="/nowhere/timeout")
    assert (ran.code, ran.said) == (0, "")
    assert "cannot be run (code 127)" in ran.log[-1]


def test_off_is_looked_at_first(wrapper: Wrapper, tmp_path: Path) -> None:
    """The file turns it off whatever else is wrong; a dangling link does too."""
    (tmp_path / "off").symlink_to("/nowhere")
    ran = wrapper("exit 77")
    assert (ran.code, ran.log) == (0, [])
    (tmp_path / "off").unlink()
    assert wrapper("exit 77").code == 1


@pytest.mark.parametrize("kind", ["directory", "fifo", "no folder"])
def test_a_log_that_cannot_be_written(wrapper: Wrapper, tmp_path: Path, kind: str) -> None:
    """The hook does its work all the same, and waits for no reader."""
    log = tmp_path / "log dir/hooks.log"
    if kind == "directory":
        log.mkdir()
    elif kind == "fifo":
        os.mkfifo(log)
    else:
        log.parent.rmdir()
    assert (wrapper("exit 77").code, wrapper("echo a; exit 5").code) == (1, 0)


def test_what_the_program_says_goes_to_the_log(wrapper: Wrapper) -> None:
    """And none of it to slurmd."""
    ran = wrapper("echo out; echo err >&2; exit 0")
    assert (ran.said, ran.log) == ("", ["out", "err"])


def test_the_program_gets_a_clean_place(wrapper: Wrapper, tmp_path: Path) -> None:
    """Isolated, in /, with a PATH, an umask, nothing to read, and slurmd's variables."""
    body = f'echo "$*|$PWD|$PATH|$(umask)|$SLURM_JOB_ID|$SLURM_CONF|$(cat)" > "{tmp_path}/seen"'
    wrapper(body)
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    want = f"-I -m slurm_guard.hooks prolog|/|{path}|0022|7|/etc/my slurm.conf|\n"
    assert (tmp_path / "seen").read_text() == want


def test_a_rehearsal_tells_and_logs_nothing(wrapper: Wrapper) -> None:
    """`--dry` is the prolog's alone: the program's own code and words, for the doctor."""
    ran = wrapper('echo "$*"; exit 77', "--dry")
    assert (ran.code, ran.said, ran.log) == (77, "-I -m slurm_guard.hooks rehearsal\n", [])
    ran = wrapper('echo "$*"; exit 77', "--dry", kind="epilog")
    assert (ran.code, ran.said, ran.log) == (1, "", ["-I -m slurm_guard.hooks epilog"])


@pytest.mark.skipif(os.geteuid() != 0, reason="the wrapper runs as another user")
@pytest.mark.parametrize("wrapper", SHELLS[:1], indirect=True)
def test_a_node_without_a_free_pid(wrapper: Wrapper, tmp_path: Path) -> None:
    """The shell itself gives up where it cannot fork; that refuses nothing either."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o755)
    ran = wrapper("exit 77", user=65533, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)))
    assert ran.code == 0
