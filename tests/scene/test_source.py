"""The sources of a log: whose records they are, and what is said once about a log that is not understood."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from slurm_guard.model.reading import Record
from slurm_guard.policy.act import Act, Say
from slurm_guard.policy.log.pattern import parse_patterns
from slurm_guard.scene.heard import Anew, Back, Heard, Lost, Piece, Still, Trouble
from slurm_guard.scene.source import BLIND_LINES, FLOOD_LINES, LOSSLESS_RECORDS, LogSources

NOTHING = b"all is fine\n" * (BLIND_LINES + 1)


class Listening:
    """Sources, what they said to people, and what they gave to their listener."""

    def __init__(self, **given: str) -> None:
        self.said: list[str] = []
        self.given: list[tuple[str, int | None, float | None]] = []
        pattern = parse_patterns(given.get("loss_key", ""), given.get("iteration_key", ""), "")
        self.sources = LogSources(pattern, self.said.append)

    def hear(self, *heard: Heard) -> list[Act]:
        """All of it, one after another."""
        return [act for one in heard for act in self.sources.hear(one, self, 7.0)]

    def records(self, records: Iterable[Record], now_s: float, source: str = "") -> list[Act]:
        """As a session takes them."""
        assert now_s == 7.0
        self.given += [(source, record.iteration, record.loss) for record in records]
        return []

    def blinded(self, source: str, why: str, now_s: float) -> list[Act]:
        """As a session takes it."""
        return [Say(f"{source} lost: {why}")]

    def sighted(self, source: str, now_s: float) -> list[Act]:
        """As a session takes it."""
        return [Say(f"{source} back")]


def test_each_file_has_its_own_lines() -> None:
    """Two files that grow in turn, in the middle of their lines, are two logs."""
    listening = Listening()
    listening.hear(Piece("a", b"step 1 lo"), Piece("b", b"step 9 "), Piece("a", b"ss 2.5\n"))
    listening.hear(Piece("b", b"loss 0.5\n"))
    assert listening.given == [("a", 1, 2.5), ("b", 9, 0.5)]


def test_past_lines_teach_the_format_and_are_no_progress() -> None:
    """A table's header stood there before; so did the first half of a line that is finished now."""
    listening = Listening()
    listening.hear(
        Piece("m.csv", b"epoch,step,loss\n0,1,3.0\n0,2,2", past=True), Piece("m.csv", b".5\n0,3,2.0\n")
    )
    assert listening.given == [("m.csv", 2, 2.5), ("m.csv", 3, 2.0)]


def test_line_that_stands_still_is_read_and_one_that_was_cut_off_is_not() -> None:
    """The last words of a file count; half a line of a file that begins anew does not."""
    listening = Listening()
    listening.hear(Piece("a", b"step 1 loss 2.5"), Still("a"))
    assert listening.given == [("a", 1, 2.5)]
    listening.hear(Piece("a", b"step 2 loss 2."), Anew("a"), Piece("a", b"step 3 loss 1.5\n"))
    assert listening.given == [("a", 1, 2.5), ("a", 3, 1.5)]


def test_table_that_is_written_anew_each_time_gives_each_row_once() -> None:
    """As some loggers of CSV do; a column more changes nothing."""
    listening = Listening()
    listening.hear(Piece("m.csv", b"step,loss\n1,3.0\n2,2.0\n"))
    listening.hear(Anew("m.csv"), Piece("m.csv", b"step,loss,lr\n1,3.0,\n2,2.0,\n3,1.0,0.1\n"))
    assert listening.given == [("m.csv", 1, 3.0), ("m.csv", 2, 2.0), ("m.csv", 3, 1.0)]


def test_run_that_begins_anew_in_the_same_file_is_read_from_its_first_line() -> None:
    """A requeue that truncates: it begins below what the last run had reached."""
    listening = Listening()
    listening.hear(Piece("log", b"step 5000 loss 2.0\n"))
    listening.hear(Anew("log"), Piece("log", b"step 4000 loss 2.5\n"), Piece("log", b"step 4001 loss 2.5\n"))
    assert listening.given[1:] == [("log", 4000, 2.5), ("log", 4001, 2.5)]


def test_only_a_file_that_told_something_can_be_missed() -> None:
    """A list of files that vanishes is none of the guard's business; the log is."""
    listening = Listening()
    listening.hear(Piece("log", b"step 1 loss 2.5\n"), Piece("notes", b"hello\n"))
    assert listening.hear(Lost("notes", "it has vanished"), Back("notes")) == []
    assert listening.hear(Lost("log", "it has vanished")) == [Say("log lost: it has vanished")]
    assert listening.hear(Back("log")) == [Say("log back")]


def test_same_trouble_of_two_patterns_is_said_once() -> None:
    """The same file under two names of the setting, the same missing package."""
    listening = Listening()
    listening.hear(Trouble("x is a FIFO"), Trouble("x is a FIFO"), Trouble("y is a socket"))
    assert listening.said == ["x is a FIFO", "y is a socket"]


def test_log_without_progress_is_told_once() -> None:
    """Many lines and neither loss nor iteration: then the log judges nothing, and somebody must know."""
    listening = Listening()
    for source in "abc":
        listening.sources.feed(source, NOTHING)
    assert len(listening.said) == 1
    assert "no loss and no iteration was understood" in listening.said[0]
    assert "--log" in listening.said[0]


def test_one_source_that_is_understood_is_enough() -> None:
    """The metric file tells all; the flood of words on stdout needs not."""
    listening = Listening()
    listening.hear(Piece("m.jsonl", b'{"step": 1, "loss": 2}\n'))
    listening.sources.feed("stdout", NOTHING)
    assert listening.said == []


@pytest.mark.parametrize(
    ("given", "word"),
    [({"loss_key": "xent"}, "loss_key"), ({"iteration_key": "tokens"}, "iteration_key")],
)
def test_named_key_that_never_appears_is_told(given: dict[str, Any], word: str) -> None:
    """A wrong name would silence the red line, so it is told although the log is understood without it."""
    listening = Listening(**given)
    listening.sources.feed("", b"step 1 loss 2\n" + NOTHING)
    assert len(listening.said) == 1
    assert f"{word} is not in the first {BLIND_LINES} lines" in listening.said[0]


def test_flood_is_thinned_to_its_newest_lines() -> None:
    """Reading all records of a flood would cost the job a core."""
    records = Listening().sources.feed("", b"".join(b"step %d loss 2\n" % i for i in range(9_999)))
    assert len(records) == FLOOD_LINES
    assert records[-1].iteration == 9_998


def test_iterations_without_a_loss_are_told_once() -> None:
    """A NaN could not be noticed: the user must know, and know the remedy."""
    listening = Listening()
    for iteration in range(1, 2 * LOSSLESS_RECORDS):
        listening.sources.feed("", f"iteration {iteration} accuracy 0.5\n".encode())
    assert len(listening.said) == 1
    assert "--loss-key" in listening.said[0]


def test_a_loss_in_any_source_is_enough_to_be_quiet_about_it() -> None:
    """It is understood, however rarely it is printed, and wherever."""
    listening = Listening()
    listening.hear(Piece("m.jsonl", b'{"step": 1, "loss": 2}\n'))
    for iteration in range(2, 2 * LOSSLESS_RECORDS):
        listening.sources.feed("", f"iteration {iteration} accuracy 0.5\n".encode())
    assert listening.said == []
