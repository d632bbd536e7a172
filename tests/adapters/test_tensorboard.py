"""TensorBoard's event files: its own reader in a child, or a line that says how to get it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters.tensorboard import (
    HUNG_S,
    EventFiles,
    EventNews,
    NoReader,
    Readable,
    Scalars,
    Unreadable,
)
from slurm_guard.policy.log.line import LineReader

real = pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs the extra tensorboard")

WITHOUT = """
import runpy, sys
sys.modules["tensorboard"] = None
runpy.run_module("slurm_guard.adapters.tensorboard_child", run_name="__main__")
"""

SLEEPER = """
import sys
sys.stdin.readline()
sys.stdin.readline()
print("{}", flush=True)
sys.stdin.read()
"""


class Events:
    """An event file as a training writes it; a value is (tag, number), or a whole `Summary.Value`."""

    def __init__(self, path: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.path = path
        self._file = path.open("ab")
        self._writer = RecordWriter(self._file)

    def write(self, step: int, *values: Any) -> None:
        """Append one event with these values."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        made = [Summary.Value(tag=v[0], simple_value=v[1]) if isinstance(v, tuple) else v for v in values]
        self._writer.write(Event(step=step, summary=Summary(value=made)).SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """No more events."""
        self._file.close()


def read_until(files: EventFiles, found: Callable[[list[EventNews]], Any]) -> list[EventNews]:
    """All news until `found` is content with them."""
    news: list[EventNews] = []
    end_s = time.monotonic() + 20
    while not found(news):
        assert time.monotonic() < end_s, news
        news += files.read(0.0)
        time.sleep(0.02)
    return news


def rows(news: list[EventNews]) -> list[dict[str, float]]:
    """The scalars among the news."""
    return [json.loads(one.line) for one in news if isinstance(one, Scalars)]


@real
def test_scalars_of_one_iteration_are_one_line_that_the_log_reader_reads(tmp_path: Path) -> None:
    """Tags by the same rules as keys in text: a loss in training counts, one of an evaluation does not."""
    events = Events(tmp_path / "events.out.tfevents.1")
    events.write(7, ("train/loss", 2.5))
    events.write(7, ("train/grad_norm", 0.5), ("eval/loss", 9.0))
    events.write(8, ("train/loss", float("nan")))
    files = EventFiles()
    files.add(str(events.path), old=False)
    news = read_until(files, lambda news: len(rows(news)) == 2)
    files.close()
    events.close()
    assert {one.path for one in news if isinstance(one, Scalars)} == {str(events.path)}
    reader = LineReader()
    first, second = [reader.feed(one.line)[0] for one in news if isinstance(one, Scalars)]
    assert (first.iteration, first.loss, first.grad_norm) == (7, 2.5, 0.5)
    assert second.iteration == 8
    assert second.loss != second.loss


@real
def test_what_stood_in_an_old_file_is_skipped_to_the_event(tmp_path: Path) -> None:
    """It is no progress of this run; the first event after it is."""
    events = Events(tmp_path / "events.out.tfevents.1")
    for step in range(1, 50):
        events.write(step, ("loss", 1.0))
    files = EventFiles()
    files.add(str(events.path), old=True)
    events.write(50, ("loss", 0.5))
    news = read_until(files, rows)
    files.close()
    events.close()
    assert rows(news) == [{"step": 50, "loss": 0.5}]


@real
def test_scalars_of_tensorflow_2_are_read_and_other_kinds_are_not(tmp_path: Path) -> None:
    """A scalar is a tensor of one number there; texts and histograms are tensors as well."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.util.tensor_util import make_tensor_proto

    events = Events(tmp_path / "events.out.tfevents.1")
    kinds = {"loss": 2.5, "text": b"loss 9", "histogram": [[1.0, 2.0, 3.0]]}
    events.write(
        3, *(Summary.Value(tag=tag, tensor=make_tensor_proto(value)) for tag, value in kinds.items())
    )
    events.write(4, Summary.Value(tag="image", image=Summary.Image(height=1)), ("loss", 2.0))
    files = EventFiles()
    files.add(str(events.path), old=False)
    news = read_until(files, lambda news: len(rows(news)) == 2)
    files.close()
    events.close()
    assert rows(news) == [{"step": 3, "loss": 2.5}, {"step": 4, "loss": 2.0}]


@real
def test_who_gives_no_step_has_none(tmp_path: Path) -> None:
    """0 for ever would be an iteration that stands; each value counts instead."""
    events = Events(tmp_path / "events.out.tfevents.1")
    events.write(0, ("loss", 2.0))
    events.write(0, ("loss", 1.0))
    files = EventFiles()
    files.add(str(events.path), old=False)
    news = read_until(files, lambda news: len(rows(news)) == 2)
    files.close()
    events.close()
    assert rows(news) == [{"loss": 2.0}, {"loss": 1.0}]


@real
def test_event_that_is_half_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    """Nothing is lost, and nothing read twice."""
    events = Events(tmp_path / "whole")
    events.write(1, ("loss", 2.0))
    events.close()
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(whole + whole[:-5])
    files = EventFiles()
    files.add(str(path), old=False)
    news = read_until(files, rows)
    with path.open("ab") as file:
        file.write(whole[-5:])
    news += read_until(files, rows)
    files.close()
    assert len(rows(news)) == 2


@real
def test_vanished_event_file_is_told_and_comes_back(tmp_path: Path) -> None:
    """Once each."""
    events = Events(tmp_path / "events.out.tfevents.1")
    events.write(1, ("loss", 2.0))
    files = EventFiles()
    files.add(str(events.path), old=False)
    read_until(files, rows)
    events.path.rename(tmp_path / "away")
    news = read_until(files, bool)
    assert news == [Unreadable(str(events.path), "it has vanished")]
    (tmp_path / "away").rename(events.path)
    events.write(2, ("loss", 1.0))
    news = read_until(files, rows)
    files.close()
    events.close()
    assert news[-1] == Readable(str(events.path))
    assert rows(news) == [{"step": 2, "loss": 1.0}]


def test_without_tensorboard_one_line_says_what_to_install(tmp_path: Path) -> None:
    """The job trains on."""
    files = EventFiles([sys.executable, "-c", WITHOUT])
    files.add(str(tmp_path / "events.out.tfevents.1"), old=False)
    (told,) = read_until(files, bool)
    assert isinstance(told, NoReader)
    assert "pip install 'slurm-guard[tensorboard]'" in told.text
    assert files.read(1.0) == []


@real
def test_reader_ends_with_the_guard(tmp_path: Path) -> None:
    """Also one that was killed leaves nothing behind."""
    files = EventFiles()
    files.add(str(tmp_path), old=False)
    read_until(files, bool)
    child = files._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(20) == 0
    files.close()


def test_reader_that_dies_is_told_with_its_files(tmp_path: Path) -> None:
    """Their silence means nothing from then on."""
    files = EventFiles([sys.executable, "-c", ""])
    files.add(str(tmp_path / "x"), old=False)
    told, lost = read_until(files, bool)
    assert isinstance(told, NoReader)
    assert "has ended" in told.text
    assert lost == Unreadable(str(tmp_path / "x"), "its reader has ended")


def test_reader_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    """No process, no memory: a line, no error."""
    files = EventFiles(["/no/such/python"])
    files.add(str(tmp_path / "x"), old=False)
    (told,) = files.read(0.0)
    assert isinstance(told, NoReader)
    assert "cannot be started: No such file" in told.text
    assert files.read(1.0) == []


def test_reader_that_hangs_is_a_state_and_never_waited_for(tmp_path: Path) -> None:
    """Shared storage: its files are unreadable until it gives a sign again; `close` ends it all the same."""
    files = EventFiles([sys.executable, "-c", SLEEPER])
    files.add("a", old=False)
    assert files.read(0.0) == []
    assert files.read(HUNG_S + 1) == [Unreadable("a", f"its reader has given no sign for {HUNG_S:g} s")]
    assert files.read(HUNG_S + 2) == []
    files.add("b", old=False)
    news: list[EventNews] = []
    end_s = time.monotonic() + 20
    while not news and time.monotonic() < end_s:
        news = files.read(HUNG_S + 3)
    assert news == [Readable("a"), Readable("b")]
    child = files._child
    files.close()
    assert child is not None
    assert child.returncode is not None


def test_nothing_is_started_without_event_files() -> None:
    """Who has none pays nothing."""
    files = EventFiles(["/no/such/python"])
    assert files.read(0.0) == []
    files.close()
