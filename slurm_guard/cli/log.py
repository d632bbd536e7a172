"""`slurm-guard log`: how the log of a training is understood."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, BinaryIO

import typer

from slurm_guard.errors import SlurmGuardError
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.explain import Explanation
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.log.pattern import parse_patterns

app = typer.Typer(no_args_is_help=True, help="How the log of a training is understood.")

_PIECE = 1 << 20

_File = Annotated[str, typer.Argument(metavar="FILE", help="The log of a training.", show_default=False)]
_LossKey = Annotated[str, typer.Option("--loss-key", help="Keys of the loss, separated by commas.")]
_IterationKey = Annotated[
    str, typer.Option("--iteration-key", help="Keys of the iteration, separated by commas.")
]
_Pattern = Annotated[str, typer.Option("--pattern", help="A regular expression with a group named loss.")]
_PhasePattern = Annotated[
    str, typer.Option("--phase-pattern", help="A regular expression with groups named after phases.")
]


@app.command()
def records(
    file: _File,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each line.")] = False,
    loss_key: _LossKey = "",
    iteration_key: _IterationKey = "",
    pattern: _Pattern = "",
    phase_pattern: _PhasePattern = "",
) -> None:
    """Print what each line says: loss, iteration, epoch and kind, and the phase that it begins.

    With --json every line of the log gives a line; without, only those that say something.
    """
    reader = LineReader(parse_patterns(loss_key, iteration_key, pattern, phase_pattern))
    encode = json.JSONEncoder().encode
    with open_log(file) as log:
        if not as_json:
            print(f"{'line':>9}  {'loss':>12}  {'iteration':>10}  {'epoch':>8}  kind (phase)")
        for number, record in _read_lines(log, reader):
            if as_json:
                print(encode({"line": number, **_as_json(record)}))
            elif record is not None:
                print(_row(number, record))


@app.command()
def explain(
    file: _File,
    *,
    loss_key: _LossKey = "",
    iteration_key: _IterationKey = "",
    pattern: _Pattern = "",
    phase_pattern: _PhasePattern = "",
) -> None:
    """Tell what was understood, by which keys, and what was ignored and why."""
    patterns = parse_patterns(loss_key, iteration_key, pattern, phase_pattern)
    reader, explanation, lines = LineReader(patterns), Explanation(line=1), 0
    reader.see = lambda line, reading: explanation.see(line, reading, patterns)
    with open_log(file) as log:
        for lines, _ in _read_lines(log, reader):
            explanation.line = lines + 1
    print("\n".join(explanation.text(lines, patterns)))


def open_log(path: str) -> BinaryIO:
    """The log, open.

    Raises:
        SlurmGuardError: it is no regular file, or it cannot be read.
    """
    try:
        # A FIFO without a writer would block the open: it is looked at first, and then opened without.
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        raise SlurmGuardError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from None
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    raise SlurmGuardError(f"{path}: is {kinds.get(stat.S_IFMT(mode), 'a device')}: name a log file")


def _read_lines(log: BinaryIO, reader: LineReader) -> Iterator[tuple[int, Record | None]]:
    """Each line's number and record; of several frames on a line every value is the newest one's."""
    number, record, is_open = 1, None, False
    for piece in iter(lambda: _read_piece(log), b""):
        record = _merge(record, reader.feed(piece))
        is_open = not piece.endswith(b"\n")
        if not is_open:
            yield number, record
            number, record = number + 1, None
    if is_open:
        yield number, _merge(record, reader.flush())


def _read_piece(log: BinaryIO) -> bytes:
    try:
        return log.readline(_PIECE)
    except OSError as error:
        raise SlurmGuardError(f"{log.name}: cannot be read ({error.strerror})") from None


def _merge(record: Record | None, newer: list[Record]) -> Record | None:
    for new in newer:
        record = new if record is None else replace(
            new,
            loss=record.loss if new.loss is None else new.loss,
            iteration=record.iteration if new.iteration is None else new.iteration,
            epoch=record.epoch if new.epoch is None else new.epoch,
            phase=record.phase if new.phase is None else new.phase,
        )  # fmt: skip
    return record


def _as_json(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"loss": None, "iteration": None, "epoch": None, "kind": RecordKind.NOISE.value}
    return {
        "loss": _number(record.loss),
        "iteration": record.iteration,
        "epoch": _number(record.epoch),
        "kind": record.kind.value,
    }


def _number(value: float | None) -> float | int | str | None:
    """A number as JSON has it: whole ones without a point, those that JSON has not as words."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _row(number: int, record: Record) -> str:
    loss, epoch = ("-" if value is None else f"{value:.6g}" for value in (record.loss, record.epoch))
    iteration = "-" if record.iteration is None else str(record.iteration)
    phase = f" ({record.phase.value})" if record.phase else ""
    return f"{number:>9}  {loss:>12}  {iteration:>10}  {epoch:>8}  {record.kind.value}{phase}"
