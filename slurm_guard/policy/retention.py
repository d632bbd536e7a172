"""Which milestones stay on shared storage. Values in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from slurm_guard.model.checkpoint import Checkpoint

_COUNT = re.compile(r"(last|every) +([1-9]\d{0,14})")
_SIZE = re.compile(r"size +(\d{1,6}(?:\.\d{1,3})?) *([GT]B)")
_UNITS = {"GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays: the newest `last`, the first of every `every` iterations, and of those what fits a budget.

    None is no rule; without `last` and `every` all stay that fit. The newest good one always stays.
    """

    last: int | None = None
    every: int | None = None
    size_bytes: int | None = None


ALL = Retention()
"""Nothing is ever removed."""


def parse_retention(text: str) -> Retention:
    """The rule that is written as `all`, or as one or more of `last N`, `every N` and `size N GB`.

    >>> parse_retention("last 3, every 10000, size 2 TB")
    Retention(last=3, every=10000, size_bytes=2000000000000)

    Raises:
        ValueError: it is none; the text says what it could be.
    """
    if text.strip() in ("", "all"):
        return ALL
    given: dict[str, int] = {}
    for part in text.split(","):
        if (found := _COUNT.fullmatch(part.strip())) and found[1] not in given:
            given[found[1]] = int(found[2])
        elif (found := _SIZE.fullmatch(part.strip())) and "size_bytes" not in given:
            given["size_bytes"] = round(float(found[1]) * _UNITS[found[2]])
        else:
            raise ValueError("write all, or last N, every N (iterations) and size N GB, separated by commas")
    return Retention(**given)


def plan_removal(
    milestones: Iterable[Checkpoint], newest: Checkpoint, rule: Retention
) -> tuple[Checkpoint, ...]:
    """The milestones to remove now that `newest` is complete, the oldest first.

    `newest` stays, and the newest good one where `newest` is not good itself. What has a later iteration
    than `newest` belongs to a future that was rolled back: it is left to a person.
    """
    past = sorted((m for m in milestones if m.iteration < newest.iteration), key=lambda m: m.iteration)
    ranked = [newest, *reversed(past)]
    safe = {m.directory for m in (newest, *[m for m in ranked if m.finite][:1])}
    stay = {m.directory for m in _fitting(ranked, _wanted(ranked, rule), safe, rule)} | safe
    return tuple(milestone for milestone in past if milestone.directory not in stay)


def _wanted(ranked: Sequence[Checkpoint], rule: Retention) -> set[str]:
    if rule.last is None and rule.every is None:
        return {m.directory for m in ranked}
    # What is not finite is no good to go back to: it takes no good one's place.
    named = {m.directory for m in [m for m in ranked if m.finite][: rule.last or 0]}
    if rule.every is not None:
        firsts = {m.iteration // rule.every: m.directory for m in ranked}  # oldest last: it wins
        named |= set(firsts.values())
    return named


def _fitting(
    ranked: Sequence[Checkpoint], wanted: set[str], safe: set[str], rule: Retention
) -> list[Checkpoint]:
    """The newest wanted ones that fit the budget, after those that stay anyway."""
    chosen = [m for m in ranked if m.directory in wanted - safe]
    if rule.size_bytes is None:
        return chosen
    left = rule.size_bytes - sum(_size(m) for m in ranked if m.directory in safe)
    sums = accumulate(_size(m) for m in chosen)
    return [m for m, total in zip(chosen, sums, strict=True) if total <= left]


def _size(milestone: Checkpoint) -> int:
    return sum(part.size for part in milestone.parts)
