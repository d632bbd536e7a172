"""The output of the training step: the passing copy, srun's files, and the files that the user names."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.job.link import Start
from slurm_guard.job.watcher import OutputWatcher, split_log
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import NodeLost, Record, TaskExit
from slurm_guard.policy.act import Act, Say
from slurm_guard.policy.ending import Ending
from slurm_guard.scene import follow


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_POLL_S", 0.02)
    monkeypatch.setattr(follow, "_LIST_S", 0.02)


class Watching:
    """A watcher in the directory `root`, and the listener to whom it brings everything."""

    def __init__(self, root: Path, *argv: str, **given: Any) -> None:
        self.root = root
        self.said: list[str] = []
        self.given: list[tuple[str, int | None, float | None]] = []
        self.words: list[object] = []
        self.events: queue.SimpleQueue[Callable[[], list[Act]]] = queue.SimpleQueue()
        start = Start(
            run="1", argv=(*argv, "true"), settings=Settings(**given), explicit=frozenset(given),
            python="python3", cwd=str(root), stdin_replayable=True,
        )  # fmt: skip
        environ = {"SLURM_JOB_ID": "7"}
        self.watcher = OutputWatcher(
            start, environ, post=self.events.put, say=self.said.append, listener=self, now=lambda: 5.0
        )

    def records(self, records: Iterable[Record], now_s: float, source: str = "") -> list[Act]:
        """As a session takes them."""
        self.given += [(source.rpartition("/")[2], record.iteration, record.loss) for record in records]
        return []

    def blinded(self, source: str, why: str, now_s: float) -> list[Act]:
        """As a session takes it."""
        return [Say(f"lost {source}: {why}")]

    def sighted(self, source: str, now_s: float) -> list[Act]:
        """As a session takes it."""
        return [Say(f"back {source}")]

    def srun_said(self, said: TaskExit | NodeLost | Ending, now_s: float) -> list[Act]:
        """As a session takes it."""
        self.words.append(said)
        return []

    def let_begin(self) -> None:
        """Let the followers take their first look: what they find then is old."""
        followers = [followed.follower for followed in self.watcher._followed]
        self.wait_for(lambda: all(follower._files._list_s for follower in followers))

    def append(self, name: str, text: str) -> None:
        """The training writes to one of its files."""
        with (self.root / name).open("a") as file:
            file.write(text)

    def wait_for(self, found: Callable[[], object]) -> None:
        """Do what followers ask for until it is found."""
        end_s = time.monotonic() + 60
        while not found():
            assert time.monotonic() < end_s, (self.given, self.said)
            try:
                self.events.get(timeout=0.05)()
            except queue.Empty:
                continue


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watching]]:
    """Makes watchers, and ends them."""
    made: list[Watching] = []

    def make(*argv: str, **given: Any) -> Watching:
        made.append(Watching(tmp_path, *argv, **given))
        return made[-1]

    yield make
    for watching in made:
        watching.watcher.step_ended()


def test_passing_output_is_read(watch: Callable[..., Watching]) -> None:
    """Records of both streams, and srun's own words of stderr."""
    watching = watch()
    watching.watcher.take(b"step 1 loss 2.5\n", is_error=False)
    watching.watcher.take(b"srun: error: n2: task 1: Exited with exit code 3\nstep 2 lo", is_error=True)
    watching.watcher.take(b"ss 2.0\n", is_error=True)
    assert watching.given == [("", 1, 2.5), ("", 2, 2.0)]
    assert len(watching.words) == 1


def test_settings_reach_the_reader(watch: Callable[..., Watching]) -> None:
    """A named key is the loss."""
    watching = watch(loss_key="xent")
    watching.watcher.take(b"step 1 xent 2.5\n", is_error=False)
    assert watching.given == [("", 1, 2.5)]


def test_pattern_that_cannot_work_is_told_and_left_out(watch: Callable[..., Watching]) -> None:
    """The job trains on, and its log is read as without the pattern."""
    watching = watch(pattern="loss=(")
    watching.watcher.take(b"step 1 loss 2\n", is_error=False)
    assert watching.given == [("", 1, 2.0)]
    assert len(watching.said) == 1
    assert "is no regular expression" in watching.said[0]


def test_named_files_are_followed_beside_the_output(watch: Callable[..., Watching]) -> None:
    """Several, globs too, from the working directory on; each record with its source."""
    watching = watch(log="m.jsonl, runs/*.csv")
    watching.watcher.srun_started()
    watching.let_begin()
    watching.append("m.jsonl", '{"step": 1, "loss": 2.5}\n')
    watching.wait_for(lambda: ("m.jsonl", 1, 2.5) in watching.given)
    (watching.root / "runs").mkdir()
    watching.append("runs/a.csv", "step,loss\n3,1.5\n")
    watching.wait_for(lambda: ("a.csv", 3, 1.5) in watching.given)
    watching.watcher.take(b"step 4 loss 1.0\n", is_error=False)
    assert ("", 4, 1.0) in watching.given


def test_file_that_two_patterns_match_is_one_source(watch: Callable[..., Watching]) -> None:
    """Its records count once."""
    watching = watch("-o", "m.jsonl", log="*.jsonl")
    watching.watcher.srun_started()
    watching.let_begin()
    for step in (1, 2, 3):
        watching.append("m.jsonl", f'{{"step": {step}, "loss": 2.5}}\n')
        watching.wait_for(partial(watching.given.__contains__, ("m.jsonl", step, 2.5)))
    watching.wait_for(lambda: ("m.jsonl", 3, 2.5) in watching.given)
    watching.wait_for(watching.events.empty)
    assert [iteration for _, iteration, _ in watching.given] == [1, 2, 3]


def test_what_stood_in_a_file_is_no_progress_of_this_run(watch: Callable[..., Watching]) -> None:
    """A log that is appended to for weeks: old losses, NaN too, are not judged again."""
    watching = watch(log="m.csv")
    watching.append("m.csv", "step,loss\n1,nan\n2,nan\n3,nan\n")
    watching.watcher.srun_started()
    watching.let_begin()
    watching.append("m.csv", "4,2.5\n")
    watching.wait_for(lambda: watching.given)
    assert watching.given == [("m.csv", 4, 2.5)]


def test_vanished_log_is_told_to_the_listener(
    watch: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its silence means nothing."""
    monkeypatch.setattr("slurm_guard.scene.followed.MISSING_S", 0.1)
    watching = watch(log="m.jsonl")
    acts: list[Act] = []
    watching.watcher.srun_started()
    watching.let_begin()
    watching.append("m.jsonl", '{"step": 1, "loss": 2.5}\n')
    watching.wait_for(lambda: watching.given)
    (watching.root / "m.jsonl").unlink()
    end_s = time.monotonic() + 5
    while not acts and time.monotonic() < end_s:
        acts += watching.events.get(timeout=5)()
    assert acts == [Say(f"lost {watching.root}/m.jsonl: it has vanished")]


def test_hanging_storage_blinds_its_files_and_a_guard_that_slept_does_not(
    watch: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked twice, some seconds apart; and sight comes back."""
    watching = watch(log="m.jsonl")
    watching.watcher.srun_started()
    watching.let_begin()
    watching.append("m.jsonl", '{"step": 1, "loss": 2.5}\n')
    watching.wait_for(lambda: watching.given)
    path = f"{watching.root}/m.jsonl"
    answers = iter([True, False, True, True, True, False])
    monkeypatch.setattr(follow.Follower, "is_hung", lambda _: next(answers))
    told = [watching.watcher.tick(now_s) for now_s in (10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 35.0)]
    lost, back = [Say(f"lost {path}: its storage does not answer")], [Say(f"back {path}")]
    assert told == [[], [], [], [], lost, [], back]


def test_files_of_srun_are_read_from_before_the_step_is_found(watch: Callable[..., Watching]) -> None:
    """They are known by name when srun starts; only a step's number in the name has to be waited for."""
    watching = watch("-o", "out-%j.%t", "-e", "err-%s")
    watching.watcher.srun_started()
    watching.let_begin()
    watching.append("out-7.0", "step 1 loss 2.5\n")
    watching.wait_for(lambda: watching.given == [("out-7.0", 1, 2.5)])
    watching.watcher.step_began("7.3")
    watching.let_begin()
    watching.append("err-3", "step 2 loss 2.0\n")
    watching.wait_for(lambda: ("err-3", 2, 2.0) in watching.given)


def test_last_words_of_a_step_are_kept_and_not_judged(watch: Callable[..., Watching]) -> None:
    """They are no progress of the next one."""
    watching = watch(log="m.jsonl")
    watching.watcher.srun_started()
    watching.let_begin()
    watching.append("m.jsonl", '{"step": 1, "loss": 2.5}\n')
    watching.watcher.step_ended()
    watching.wait_for(lambda: b"2.5" in watching.watcher.tail.last_lines(9))
    assert watching.given == []


def test_output_that_goes_nowhere_is_told_once_unless_a_log_is_named(watch: Callable[..., Watching]) -> None:
    """The remedy is in the line, and who has taken it is left in peace."""
    blind, named = watch("--output=none"), watch("--output=none", log="m.jsonl")
    for watching in (blind, blind, named):
        watching.watcher.srun_started()
    assert len(blind.said) == 1
    assert "--log" in blind.said[0]
    assert named.said == []


def test_names_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the job's directory, whatever stands in its name; home and absolute ones as they are."""
    monkeypatch.setenv("HOME", "/home/ann")
    assert split_log("a.log, ~/b/*.csv,,/c", "/job[1]") == {
        "a.log": "/job[[]1]/a.log",
        "~/b/*.csv": "/home/ann/b/*.csv",
        "/c": "/c",
    }
    assert split_log("", "/") == {}


def test_patterns_that_cannot_work_are_told_and_left_out(watch: Callable[..., Watching]) -> None:
    """One line for each; the other settings still count, and the job trains on."""
    watching = watch(pattern="loss=(", phase_pattern="(?P<dump>x)", loss_key="xent")
    assert [line.partition(" = ")[0] for line in watching.said] == ["pattern", "phase_pattern"]
    assert all(line.endswith("; the log is read without it") for line in watching.said)
    watching.watcher.take(b"step 3 xent 2.5\n", is_error=False)
    assert watching.given == [("", 3, 2.5)]
