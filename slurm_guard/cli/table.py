"""Lines for a terminal: columns in line, and nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_guard.job.writer import plain


def compose_table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """One line a row, every column as wide as its widest cell; the columns of `right` end in line."""
    clean = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in clean
    )
    return [line.rstrip() for line in lines]
