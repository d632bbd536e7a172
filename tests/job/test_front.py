"""The front stands in srun's place: same bytes, same exit, same fate. Real processes throughout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LAUNCH = """
import os, sys
from slurm_guard.job import front
from slurm_guard.model.limits import Settings
guard = [sys.executable, "-I", sys.argv[1]]
front._END_S = 0.5
front._GUARD_START_S = float(os.environ.get("START_S", front._GUARD_START_S))
front._GUARD_ANSWER_S = float(os.environ.get("ANSWER_S", front._GUARD_ANSWER_S))
settings = Settings(stall_s=7.0), frozenset({"stall_s"})
sys.exit(front.run_front(sys.argv[3:], *settings, srun=sys.argv[2], guard_command=guard))
"""

GUARD = """
import json, os, select, sys, time
from slurm_guard.job.link import *
link = GuardLink.from_argv(sys.argv[1:])
story = open(os.environ["STORY"], "a")
def tell(**words):
    print(json.dumps(words), file=story, flush=True)
def drain(fd):
    found = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except BlockingIOError:
            return found
        if not piece:
            return found
        found += piece
tell(pid=os.getpid())
plan = os.environ.get("PLAN", "release")
successor = sum('"pid"' in line for line in open(os.environ["STORY"])) > 1
if plan == "dies holding" and successor:
    time.sleep(2)
while not link.closed:
    select.select([link], [], [])
    for message in link.read():
        tell(t=message.KIND, **{k: str(getattr(message, k)) for k in message.__slots__})
        if message.KIND == "start" and plan == "hold":
            link.send(Hold())
        if message.KIND == "signal" and plan == "hold" and message.name == "SIGUSR1":
            link.send(Exit(86))
        if message.KIND == "spawned" and message.attempt == 0 and plan.startswith("now "):
            time.sleep(0.5)
            link.send({"end": End(), "exit": Exit(86), "restart": Restart()}[plan.split()[1]])
        if message.KIND == "exited":
            tell(out=drain(link.out_fd).decode("latin1"), err=drain(link.err_fd).decode("latin1"))
            if plan == "restart" and message.code == 9:
                link.send(Restart({"SLURM_GUARD_RESUME_FROM": "ring:4"}, ("n2",), 3))
            elif plan == "exit" or (plan == "dies holding" and successor):
                link.send(Exit(86))
            elif plan == "dies holding":
                link.send(Hold())
                link.flush()
                os._exit(1)
            elif plan == "silent" or plan == "hold":
                pass
            else:
                link.send(Release())
"""


class Bench:
    """A front with a scripted srun and a scripted guard."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.story = root / "story"
        (root / "launch.py").write_text(LAUNCH)
        (root / "guard.py").write_text(GUARD)
        self.srun = root / "srun"
        # Its guard answers, however long it takes to start: who tests a silent one gives it the real time.
        self.environment = {**os.environ, "SLURM_JOB_ID": "7", "STORY": str(self.story), "ANSWER_S": "60"}
        self.begun: list[subprocess.Popen[bytes]] = []

    def start(
        self, script: str, *words: str, plan: str = "release", **options: object
    ) -> subprocess.Popen[bytes]:
        self.srun.write_text("#!/bin/bash\n" + script)
        self.srun.chmod(0o755)
        launch = [sys.executable, str(self.root / "launch.py"), str(self.root / "guard.py"), str(self.srun)]
        files = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        front: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            [*launch, *words], env={**self.environment, "PLAN": plan}, cwd=self.root, **files
        )
        self.begun.append(front)
        return front

    def run(
        self, script: str, *words: str, plan: str = "release", **options: object
    ) -> tuple[int, bytes, bytes]:
        front = self.start(script, *words, plan=plan, **options)
        out, err = front.communicate(timeout=20)
        return front.returncode, out, err

    def told(self) -> list[dict[str, str]]:
        return (
            [json.loads(line) for line in self.story.read_text().splitlines()] if self.story.exists() else []
        )

    def wait_for(self, found: Callable[[], object]) -> None:
        end_s = time.monotonic() + 60
        while not found():
            assert time.monotonic() < end_s, f"never happened; the guard was told {self.told()}"
            time.sleep(0.01)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for front in made.begun:
        front.kill()
        front.wait()
        for pipe in (front.stdin, front.stdout, front.stderr):
            if pipe is not None:
                pipe.close()


def test_bytes_pass_unchanged_and_separately(bench: Bench) -> None:
    """What srun writes arrives as it was written, on the stream it was written to; the guard has a copy."""
    blob = bytes(range(256)) * 1000
    (bench.root / "blob").write_bytes(blob)
    code, out, err = bench.run("cat blob; cat blob blob >&2; printf 'no newline\\r'")
    assert (code, out, err) == (0, blob + b"no newline\r", blob * 2)
    copy = next(told for told in bench.told() if "out" in told)
    assert copy["out"].encode("latin1") == out
    assert copy["err"].encode("latin1") == err


def test_stdin_is_srun_own(bench: Bench) -> None:
    """stdin is inherited, not copied."""
    front = bench.start("cat", stdin=subprocess.PIPE)
    out, _ = front.communicate(b"a\0b\xff" * 50_000, timeout=20)
    assert out == b"a\0b\xff" * 50_000


def test_argv_and_environment(bench: Bench) -> None:
    """The words go to srun untouched; token and Python's defaults are added."""
    bench.environment["PYTHONUNBUFFERED"] = ""
    script = 'printf "<%s>" "$0" "$@"; env | grep -aE "^(SLURM_GUARD_(RUN|ATTEMPT)|PYTHON[UF])" | sort >&2'
    _, out, err = bench.run(script, "-n2", "--", "a b", "", "--observe")
    assert out == f"<{bench.srun}><-n2><--><a b><><--observe>".encode()
    lines = err.decode().splitlines()
    assert lines[:3] == ["PYTHONFAULTHANDLER=1", "PYTHONUNBUFFERED=", "SLURM_GUARD_ATTEMPT=0"]
    assert lines[3].startswith("SLURM_GUARD_RUN=7.")
    assert f"SLURM_GUARD_RUN={bench.told()[1]['run']}" == lines[3]


def test_guard_is_told_everything(bench: Bench) -> None:
    """The guard hears what runs, with which settings, and how it ended."""
    bench.run("exit 3", "-n", "2", "prog")
    pid, start, spawned, exited, _ = bench.told()
    assert int(pid["pid"]) > 0
    assert start["argv"] == "('-n', '2', 'prog')"
    assert "stall_s=7.0" in start["settings"]
    assert (start["explicit"], start["stdin_replayable"], start["again"]) == (
        "frozenset({'stall_s'})",
        "True",
        "False",
    )
    assert (start["pid"], spawned["attempt"]) == ("None", "0")
    assert (exited["code"], exited["signal"]) == ("3", "None")


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -SEGV $$", -11), ("kill $$", -15)],
)
def test_exit_is_that_of_srun(bench: Bench, script: str, code: int) -> None:
    """The exit code is srun's; a signal that ended srun ends the front too."""
    assert bench.run(script)[0] == code


def test_srun_that_cannot_start(bench: Bench) -> None:
    """A file that cannot be run is one line and 126."""
    front = bench.start("")
    front.communicate(timeout=20)
    bench.srun.chmod(0o644)
    launch = [sys.executable, "launch.py", "guard.py", "./srun"]
    done = subprocess.run(launch, env=bench.environment, cwd=bench.root, capture_output=True, check=False)
    assert done.returncode == 126
    assert done.stderr == b"guarded-srun: ./srun cannot be run: Permission denied\n"


def test_output_closed_early_ends_srun(bench: Bench) -> None:
    """`| head -1`: srun meets the closed pipe as if it wrote into it itself."""
    front = bench.start("echo first; while echo more; do :; done; echo closed >&2")
    assert front.stdout is not None
    assert front.stderr is not None
    assert front.stdout.readline() == b"first\n"
    front.stdout.close()
    assert front.wait(timeout=10) == -signal.SIGPIPE
    assert b"Traceback" not in front.stderr.read()


def test_stranger_that_keeps_the_output_open(bench: Bench) -> None:
    """A process that outlives srun with its output open doesn't hold the front; what srun wrote arrives."""
    begin_s = time.monotonic()
    front = bench.start("sleep 30 & echo $!; exit 4", stderr=subprocess.DEVNULL)
    assert front.wait(timeout=10) == 4
    assert time.monotonic() - begin_s < 8
    assert front.stdout is not None
    stranger = int(front.stdout.readline())
    os.kill(stranger, signal.SIGKILL)


@pytest.mark.parametrize("name", ["TERM", "HUP", "QUIT", "USR1", "USR2", "INT", "CONT"])
def test_signals_are_given_on_once(bench: Bench, name: str) -> None:
    """A signal sent to the front alone reaches srun, once, and the guard hears of it."""
    wait = "while [ $got = 0 ]; do sleep 0.1; done; sleep 0.3"
    front = bench.start(f"got=0; trap 'echo got; got=1' {name}; echo up; {wait}")
    assert front.stdout is not None
    assert front.stdout.readline() == b"up\n"
    front.send_signal(getattr(signal, f"SIG{name}"))
    assert front.communicate(timeout=10)[0] == b"got\n"
    assert front.returncode == 0
    assert {"t": "signal", "name": f"SIG{name}"} in bench.told()


def test_signal_to_the_group_is_not_given_on(bench: Bench) -> None:
    """srun has had what its whole group was sent, and gets it no second time."""
    script = "trap 'echo got' INT; echo up; for i in 1 2 3 4; do sleep 0.1 & wait; wait; done"
    front = bench.start(script, start_new_session=True)
    assert front.stdout is not None
    assert front.stdout.readline() == b"up\n"
    os.killpg(front.pid, signal.SIGINT)
    assert front.communicate(timeout=10)[0] == b"got\n"
    assert front.returncode == 0


def test_front_killed_ends_srun(bench: Bench) -> None:
    """kill -9 of the front: srun gets SIGTERM, even when the front was its only witness."""
    front = bench.start("trap 'echo term > ended; exit' TERM; echo up; sleep 20 & wait")
    assert front.stdout is not None
    assert front.stdout.readline() == b"up\n"
    front.kill()
    bench.wait_for((bench.root / "ended").exists)


def test_restart(bench: Bench) -> None:
    """A restart runs the same words again with the ordered environment, without the excluded nodes, and
    with the same stdin from its beginning."""
    (bench.root / "input").write_text("one\n")
    script = (
        'read line; echo "$line $* $SLURM_GUARD_ATTEMPT $SLURM_GUARD_RESUME_FROM"; '
        "[ $SLURM_GUARD_ATTEMPT = 1 ] || exit 9"
    )
    with (bench.root / "input").open() as stdin:
        code, out, err = bench.run(script, "-N4", "prog", "arg", plan="restart", stdin=stdin)
    assert (code, err) == (0, b"")
    assert out.splitlines() == [b"one -N4 prog arg 0 ", b"one -N4 -x n2 -N 3 prog arg 1 ring:4"]
    assert [told["attempt"] for told in bench.told() if told.get("t") == "spawned"] == ["0", "1"]


@pytest.mark.parametrize(
    ("plan", "code"), [("now end", -9), ("now exit", 86), ("now restart", 0)], ids=["end", "exit", "restart"]
)
def test_srun_that_hangs_is_ended(bench: Bench, plan: str, code: int) -> None:
    """An srun that neither ends by itself nor obeys SIGTERM does not outlive the guard's order."""
    script = "[ $SLURM_GUARD_ATTEMPT = 1 ] && exit 0; trap '' TERM; echo $$; while :; do sleep 0.1; done"
    ended, out, _ = bench.run(script, plan=plan)
    assert ended == code
    with pytest.raises(ProcessLookupError):
        os.kill(int(out.split()[0]), 0)


def test_srun_is_ended_gently_first(bench: Bench) -> None:
    """srun gets SIGTERM, at which it kills its tasks, and its exit code counts."""
    assert bench.run("trap 'exit 7' TERM; sleep 20 & wait", plan="now end")[0] == 7


def test_exit_as_ordered(bench: Bench) -> None:
    """The guard's code takes the place of srun's."""
    assert bench.run("exit 1", plan="exit")[0] == 86


def test_silent_guard_delays_the_end_by_3_s_at_most(bench: Bench) -> None:
    """Without a word from the guard the front leaves by itself."""
    del bench.environment["ANSWER_S"]
    front = bench.start("echo x; exit 5", plan="silent")
    assert front.stdout is not None
    front.stdout.read(2)
    begin_s = time.monotonic()
    assert front.wait(timeout=10) == 5
    assert 2 < time.monotonic() - begin_s < 5


def test_hold_outlasts_srun_and_sigterm(bench: Bench) -> None:
    """While an incident is open the front stays, SIGTERM or not, until the guard orders the exit."""
    bench.environment["ANSWER_S"] = "1.5"
    # The guard is at work by then: one that is slow to start would have no answer in time.
    front = bench.start("until grep -qs '\"start\"' $STORY; do sleep 0.05; done; exit 1", plan="hold")
    bench.wait_for(lambda: any("out" in told for told in bench.told()))
    front.send_signal(signal.SIGTERM)
    bench.wait_for(lambda: {"t": "signal", "name": "SIGTERM"} in bench.told())
    time.sleep(2)
    assert front.poll() is None
    front.send_signal(signal.SIGUSR1)
    assert front.wait(timeout=5) == 86


def test_second_interrupt_ends_a_hold(bench: Bench) -> None:
    """Nobody at a terminal has to wait for a guard: the second SIGINT leaves."""
    front = bench.start("exit 1", plan="hold")
    bench.wait_for(lambda: any("out" in told for told in bench.told()))
    front.send_signal(signal.SIGINT)
    bench.wait_for(lambda: {"t": "signal", "name": "SIGINT"} in bench.told())
    assert front.poll() is None
    front.send_signal(signal.SIGINT)
    assert front.wait(timeout=5) == 130


def test_sigterm_without_srun(bench: Bench) -> None:
    """SIGTERM after srun's end, with no incident open, ends the front as a signal would."""
    front = bench.start("exit 1", plan="silent")
    bench.wait_for(lambda: any("out" in told for told in bench.told()))
    front.send_signal(signal.SIGTERM)
    assert front.wait(timeout=2) == 143


def test_dead_guard_is_replaced_once(bench: Bench) -> None:
    """The guard's death costs one line each time; output and exit stay those of srun."""
    front = bench.start("echo one; read x < go; echo two; exit 6")
    os.mkfifo(bench.root / "go")
    for count in (1, 2):
        bench.wait_for(lambda: len([t for t in bench.told() if t.get("t") == "start"]) == count)  # noqa: B023
        os.kill(int([t for t in bench.told() if len(t) == 1][-1]["pid"]), signal.SIGKILL)
    assert front.stderr is not None
    assert front.stderr.readline() == b"guarded-srun: the guard died and is started again; the job goes on\n"
    assert front.stderr.readline() == b"guarded-srun: the guard died again; the job goes on unguarded\n"
    (bench.root / "go").write_text("\n")
    assert front.communicate(timeout=10)[0] == b"one\ntwo\n"
    assert front.returncode == 6
    again = [told for told in bench.told() if told.get("t") == "start"][-1]
    assert again["again"] == "True"
    assert int(again["pid"]) > 0


def test_guard_that_cannot_start(bench: Bench) -> None:
    """No guard at all: the job runs."""
    (bench.root / "guard.py").write_text("raise SystemExit(1)")
    code, out, err = bench.run("sleep 0.5; echo done; exit 2")
    assert (code, out) == (2, b"done\n")
    assert err.decode().splitlines()[-1] == "guarded-srun: the guard died again; the job goes on unguarded"


def test_a_guard_that_dies_at_work_is_waited_for_longer(bench: Bench) -> None:
    """Its successor has a recovery to finish: on a busy node it may be slow to start."""
    bench.environment |= {"START_S": "0", "ANSWER_S": "1"}
    script = "until grep -q spawned story; do sleep 0.1; done; exit 9"
    assert bench.run(script, plan="dies holding")[0] == 86


def test_closed_standard_files(bench: Bench) -> None:
    """A caller that closed stdin and stdout is no reason to mix up pipes."""
    bench.start("").communicate(timeout=20)
    bench.srun.write_text("#!/bin/bash\necho to nobody; echo seen >&2; exit 7\n")
    line = f"exec {sys.executable} launch.py guard.py ./srun <&- >&-"
    done = subprocess.run(
        ["bash", "-c", line], env=bench.environment, cwd=bench.root, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"seen\n")
