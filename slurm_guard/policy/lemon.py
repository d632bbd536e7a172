"""Nodes and GPUs that fail again and again: a score that fades, of what the ledger remembers.

What root has proved counts 1, a warning of a sweep next to nothing. Claims and breaches are the word of a
job's user: it counts a half, once in a half-life, so that one user alone never gets a node above 1; of a
second user it counts twice, of a third three times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_guard.model.ledger import LedgerEntry, LedgerKind

_DAY_S = 86400.0
_ONE_FAULT_S = 6 * 3600.0
"""What is found again within this time is one fault, unless the node was back in service in between."""
_PROOFS = frozenset({LedgerKind.PROOF, LedgerKind.DRAIN, LedgerKind.CAPPED})
_CLAIMS = frozenset({LedgerKind.CLAIM, LedgerKind.BREACH})
_PROOF, _CLAIM, _WARNING = 1.0, 0.5, 0.05


@dataclass(frozen=True, slots=True)
class Lemon:
    """The score of a node or of one GPU: `gpu_serial` is empty for the node. `why` counts what made it."""

    node: str
    gpu_serial: str
    score: float
    lemon: bool
    why: str


def judge_lemons(
    entries: Sequence[LedgerEntry], now_s: float, *, half_life_days: float, limit: float
) -> tuple[Lemon, ...]:
    """A score for each node, and for each GPU by its serial number, the worst first. What befell a GPU
    counts for its node too.
    """
    subjects = dict.fromkeys((entry.node, "") for entry in entries)
    subjects |= dict.fromkeys((entry.node, entry.gpu_serial) for entry in entries)
    lemons = [
        _judge(node, serial, [e for e in entries if e.node == node and _is_about(e, serial)],
               now_s=now_s, half_life_s=half_life_days * _DAY_S, limit=limit)
        for node, serial in subjects
    ]  # fmt: skip
    return tuple(sorted(lemons, key=lambda lemon: (-lemon.score, lemon.node, lemon.gpu_serial)))


def _judge(
    node: str, serial: str, entries: Iterable[LedgerEntry], *, now_s: float, half_life_s: float, limit: float
) -> Lemon:
    known = sorted(entries, key=lambda entry: entry.time_s)
    proofs = _choose_faults(known)
    warnings = _once(known, {LedgerKind.SWEEP_WARN}, _DAY_S, lambda entry: entry.check)
    claims = _once(known, _CLAIMS, half_life_s, lambda entry: entry.user_id)
    users = list(dict.fromkeys(entry.user_id for entry in claims))
    weighed = [(entry, _PROOF) for entry in proofs]
    weighed += [(entry, _WARNING) for entry in warnings]
    weighed += [(entry, _CLAIM * (1 + users.index(entry.user_id))) for entry in claims]
    score = sum(weight * _fade(now_s - entry.time_s, half_life_s) for entry, weight in weighed)
    said = (
        (len(proofs), "proved fault"),
        (len(claims), f"claim of {len(users)} {'user' if len(users) == 1 else 'users'}"),
        (len(warnings), "warning"),
    )
    why = ", ".join(f"{count} × {what}" for count, what in said if count)
    # What is shown decides: three faults of today are 3.00.
    return Lemon(node, serial, score, round(score, 2) >= limit, why)


def _is_about(entry: LedgerEntry, serial: str) -> bool:
    # A drain that is lifted is over for all that is in the node.
    return serial in ("", entry.gpu_serial) or entry.kind is LedgerKind.UNDRAIN


def _choose_faults(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Those of a cause that count, each once: who drains a node twice has found it in service twice, whether
    a sweep or a person had put it back.
    """
    last_s: dict[str, float] = {}
    drained: set[str] = set()
    counted = []
    for entry in entries:
        if entry.kind is LedgerKind.UNDRAIN:
            last_s.clear()
            drained.clear()
        if entry.kind not in _PROOFS:
            continue
        cause, drains = entry.check, entry.kind is LedgerKind.DRAIN
        anew = entry.time_s - last_s.get(cause, -_ONE_FAULT_S) >= _ONE_FAULT_S
        if anew or (drains and cause in drained):
            last_s[cause] = entry.time_s
            counted.append(entry)
            drained.discard(cause)
        if drains:
            drained.add(cause)
    return counted


def _once(
    entries: Iterable[LedgerEntry],
    kinds: Iterable[LedgerKind],
    apart_s: float,
    key: Callable[[LedgerEntry], object],
) -> list[LedgerEntry]:
    """Of those with the same key only such as lie `apart_s` after the one that counted last."""
    wanted = frozenset(kinds)
    last_s: dict[object, float] = {}
    counted = []
    for entry in entries:
        if entry.kind in wanted and entry.time_s - last_s.get(key(entry), -apart_s) >= apart_s:
            last_s[key(entry)] = entry.time_s
            counted.append(entry)
    return counted


def _fade(age_s: float, half_life_s: float) -> float:
    # A stamp of the future is of a clock that was wrong: it counts as of now.
    return float(0.5 ** (max(0.0, age_s) / half_life_s))
