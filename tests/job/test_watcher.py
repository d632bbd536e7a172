"""The output of the training: what passes, and what srun writes into files."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_guard.job.link import Start
from slurm_guard.job.watcher import OutputWatcher
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record, TaskExit
from slurm_guard.policy.act import Act
from slurm_guard.policy.ending import Ending
from slurm_guard.scene import follow


class Bench:
    """A watcher whose events are obeyed when the test says so."""

    def __init__(self, root: Path, *words: str) -> None:
        self.events: queue.SimpleQueue[Callable[[], list[Act]]] = queue.SimpleQueue()
        self.said: list[str] = []
        self.losses: list[float | None] = []
        start = Start(
            "7.a",
            (*words, "python", "t.py"),
            Settings(),
            frozenset(),
            "python",
            str(root),
            stdin_replayable=True,
        )
        self.watcher = OutputWatcher(start, {"SLURM_JOB_ID": "7"}, self.events.put, self.said.append)
        self.watcher.take_records = self.note

    def note(self, records: list[Record]) -> list[Act]:
        """Keep the losses."""
        self.losses += [record.loss for record in records]
        return []

    def obey(self, limit_s: float = 0.5) -> int:
        """Do what the followers posted; how many pieces there were."""
        count, end_s = 0, time.monotonic() + limit_s
        while time.monotonic() < end_s:
            try:
                self.events.get(timeout=0.05)()
                count += 1
            except queue.Empty:
                continue
        return count


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_POLL_S", 0.02)


def test_records_in_whatever_pieces(tmp_path: Path) -> None:
    """A line may arrive in halves; stdout and stderr have a reader each."""
    watcher = Bench(tmp_path).watcher
    assert watcher.take("", b"iteration 1 lo", is_error=False) == ([], [])
    watcher.take("", b"iteration 7 loss", is_error=True)
    records, said = watcher.take("", b"ss 2.5\nitera", is_error=False)
    assert [(record.iteration, record.loss) for record in records] == [(1, 2.5)]
    assert said == []
    records, _ = watcher.take("", b" 3.5\n", is_error=True)
    assert [(record.iteration, record.loss) for record in records] == [(7, 3.5)]
    assert b"iteration 7 loss" in watcher.tail.last_lines(10)


def test_words_of_srun_on_stderr_only(tmp_path: Path) -> None:
    """A training that prints such a line on stdout proves nothing."""
    watcher = Bench(tmp_path).watcher
    dead, ending = b"srun: error: n2: task 1: Killed\n", b"srun: forcing job termination\n"
    assert watcher.take("", dead, is_error=False)[1] == []
    assert watcher.take("", dead[:15], is_error=True)[1] == []
    (exit_, end) = watcher.take("", dead[15:] + b"noise\n" + ending, is_error=True)[1]
    assert exit_ == TaskExit("n2", (1,), signal="KILL")
    assert isinstance(end, Ending)


def test_endless_line_costs_nothing(tmp_path: Path) -> None:
    """No newline for 8 MB; the next line is read."""
    watcher = Bench(tmp_path).watcher
    begun_s = time.monotonic()
    for _ in range(128):
        watcher.take("", b"x" * 65536, is_error=True)
    assert time.monotonic() - begun_s < 2
    said = watcher.take("", b"\nsrun: error: n2: task 1: Killed\n", is_error=True)[1]
    assert said == [TaskExit("n2", (1,), signal="KILL")]


def test_cut_line_of_a_step_is_not_the_beginning_of_the_next(tmp_path: Path) -> None:
    """Each step begins its lines anew."""
    watcher = Bench(tmp_path).watcher
    watcher.take("", b"cut in mid-", is_error=True)
    watcher.take("", b"iteration 1 loss 1", is_error=False)
    watcher.step_ended()
    assert watcher.take("", b"srun: error: n2: task 1: Killed\n", is_error=True)[1]
    records, _ = watcher.take("", b"iteration 2 loss 2.5\n", is_error=False)
    assert [(record.iteration, record.loss) for record in records] == [(2, 2.5)]


def test_files_of_srun_are_followed(tmp_path: Path) -> None:
    """One a task; none that was there before."""
    (tmp_path / "out-7.0").write_text("iteration 1 loss 1.0\n")
    bench = Bench(tmp_path, "-o", "out-%j.%t")
    bench.watcher.step_began("7.2")
    time.sleep(0.2)
    with (tmp_path / "out-7.0").open("a") as file:
        file.write("iteration 2 loss 2.0\n")
    bench.obey(0.2)
    (tmp_path / "out-7.1").write_text("iteration 3 loss 3.0\n")
    bench.obey()
    assert bench.losses == [2.0, 3.0]
    assert b"iteration 2 loss 2.0" in bench.watcher.tail.last_lines(10)
    bench.watcher.step_ended()
    bench.obey(0.1)


def test_last_words_in_a_file_are_no_progress_of_the_next_step(tmp_path: Path) -> None:
    """They are in the tail, and that is all."""
    bench = Bench(tmp_path, "-o", "out")
    bench.watcher.step_began("7.0")
    time.sleep(0.2)
    (tmp_path / "out").write_text("iteration 2 loss 2.0\n")
    time.sleep(0.2)
    bench.watcher.step_ended()
    assert bench.obey() == 1
    assert bench.losses == []
    assert bench.watcher.tail.last_lines(10) == b"iteration 2 loss 2.0\n"


@pytest.mark.parametrize("words", [("--output=none",), ("-o", "/dev/null")])
def test_output_that_goes_nowhere_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    """One line: what cannot be seen is not judged."""
    bench = Bench(tmp_path, *words)
    bench.watcher.step_began("7.0")
    assert len(bench.said) == 1
    assert "cannot be seen" in bench.said[0]
    assert bench.obey(0.1) == 0
