"""`slurm-guard scorecard`: what observe mode would have stopped, and how often wrongly."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_guard.adapters.files import read_regular
from slurm_guard.cli.table import compose_table
from slurm_guard.job.journal import SCHEMA
from slurm_guard.job.writer import plain
from slurm_guard.policy.journal import parse_journal
from slurm_guard.policy.scorecard import Score, Scorecard, WrongStop, compose_scorecard

_HEAD = ("RED LINE", "KIND", "WOULD STOP", "RIGHT", "WRONG", "OPEN", "STOPPED", "RESUMED")
_HOME = "slurm-guard"
_NUMBERS = frozenset(range(2, len(_HEAD)))


@dataclass(slots=True)
class Found:
    """The journals that were read, by the name of their job, and what could not be."""

    journals: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def scorecard(
    state_dirs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[STATE_DIR]…",
            help="State directories, ones that hold some, or ones that were submitted from. "
            "Default: SLURM_GUARD_STATE_DIR or slurm-guard.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what observe mode would have stopped, and how often that would have been wrong.

    Right: the job did not recover by itself. Wrong: it did. Open: nobody saw. Stops that were made are
    counted apart; resumed are those after which the training made progress again.
    """
    found = Found()
    for directory in state_dirs or [Path(os.environ.get("SLURM_GUARD_STATE_DIR") or _HOME)]:
        read_journals(directory, found)
    card = compose_scorecard(found.journals)
    if as_json:
        print(json.dumps(_as_json(card, found), indent=1))
    elif found.journals:
        print("\n".join(_page(card, len(found.journals))))
    for line in found.notices + found.unreadable:
        print(f"slurm-guard: {plain(line)}", file=sys.stderr)
    if found.unreadable:
        raise typer.Exit(1)


def read_journals(directory: Path, found: Found) -> None:
    """Add the journals of one state directory, of those in it, or of those of jobs submitted from there."""
    before = len(found.journals), len(found.unreadable)
    try:
        below = sorted(entry for entry in directory.iterdir() if entry.is_dir())
        for file in [*_journals_in(directory, found), *(f for d in below for f in _journals_in(d, found))]:
            _read(file, found)
    except OSError as error:
        found.unreadable.append(f"{directory} cannot be read: {error.strerror}")
    if (len(found.journals), len(found.unreadable)) == before:
        default = directory / _HOME
        if directory.name != _HOME and default.is_dir():
            read_journals(default, found)
            return
        found.unreadable.append(f"no journal in {directory}: name a state directory, or one that holds some")


def _journals_in(directory: Path, found: Found) -> Iterator[Path]:
    """The journal, and those of earlier jobs of the same id that were set aside."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        found.unreadable.append(f"{directory} cannot be read: {error.strerror}")
        return
    for name in sorted(names):
        if name.startswith("journal.") and name.endswith(".jsonl"):
            yield directory / name


def _read(file: Path, found: Found) -> None:
    try:
        entries, broken = parse_journal(read_regular(file))
    except OSError as error:
        found.unreadable.append(f"{file} cannot be read: {error.strerror}")
        return
    head = next((entry for entry in entries if entry.get("what") == "head"), {})
    schema = head.get("schema")
    if type(schema) is not int:
        found.unreadable.append(f"{file} is no journal of slurm-guard: it has no head")
    elif schema > SCHEMA:
        found.unreadable.append(
            f"{file} is of schema {schema}, newer than this slurm-guard, which reads {SCHEMA}"
        )
    else:
        if broken:
            found.notices.append(
                f"{file}: {broken} broken {'line is' if broken == 1 else 'lines are'} left out"
            )
        found.journals.append((str(head.get("job_id") or file.parent.name), entries))


def _page(card: Scorecard, journals: int) -> list[str]:
    where = f"{journals} {'journal' if journals == 1 else 'journals'}"
    if not card.scores:
        return [f"no red line was crossed in {where}"]
    rows = [_HEAD, *map(_row, card.scores)]
    counts = ", ".join(f"{card.total(name)} {name}" for name in ("right", "wrong", "open"))
    total = f"{where}: {card.total('observed')} would-be stops, {counts}; {card.total('stopped')} made"
    return [*compose_table(rows, right=_NUMBERS), "", total, *_wrong_lines(card.wrong)]


def _row(score: Score) -> tuple[str, ...]:
    counts = (score.observed, score.right, score.wrong, score.open, score.stopped, score.resumed)
    return (score.red_line, score.kind, *map(str, counts))


def _wrong_lines(wrong: Sequence[WrongStop]) -> list[str]:
    if not wrong:
        return []
    lines = ["", "WRONG: recovered by itself"]
    for one in wrong:
        after = "-" if one.after_s is None else f"{one.after_s:.1f} s"
        lines += [f"{one.incident}  after {after}: {one.how or '-'}", f"    {one.evidence or '-'}"]
    return [plain(line) for line in lines]


def _as_json(card: Scorecard, found: Found) -> dict[str, Any]:
    return {
        "journals": len(found.journals),
        "scores": [{**asdict(score), "observed": score.observed} for score in card.scores],
        "wrong": [asdict(one) for one in card.wrong],
        "unreadable": found.unreadable,
        "notices": found.notices,
    }
