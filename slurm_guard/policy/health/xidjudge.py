"""What a set of Xid and SXid events says of a node: the set is judged, not the single line.

One fault writes many lines, and most of them are echoes. The driver's own verdict (Xid 154) goes before the
raw codes; what programs can write never takes a node away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from slurm_guard.model.health import Finding, HealthClass, Level
from slurm_guard.model.xid import PciAddress, XidEntry, XidEvent, XidKind, XidTable
from slurm_guard.policy.health.xid import RECOVERY

BURST_S = 180.0
"""Lines less than this apart are one fault."""

_ECC, _REMAPPED, _REMAP_FAILED, _NVLINK = 48, 63, 64, 74
_UNCONTAINED = 95
_ECC_ECHOES = frozenset({45, 63, 94, 171, 172})
"""What an uncorrectable ECC error writes beside its 48."""
_NVLINK_CAUSES = frozenset({48, 79, 119})
"""One GPU with these breaks the NVLinks of the others."""
_MENDED = (HealthClass.RESTART, HealthClass.RESET, HealthClass.REBOOT)
"""What the driver's own verdict decides; that a part is worn out it never says."""

_Weighed = tuple[XidEvent, XidEntry]


def explain_xid(event: XidEvent, table: XidTable) -> XidEntry:
    """What this one line means. A code that no table knows is information."""
    if event.code is None:
        return replace(table.unknown, name="cut before the end of its code")
    if event.kind is XidKind.SXID:
        return _explain_sxid(event, table)
    entry = table.xids.get(event.code, table.unknown)
    if event.code == RECOVERY and event.recovery:
        asked = explain_recovery(event.recovery, table)
        return replace(asked, name=f"{entry.name}: {event.recovery}", source=entry.source)
    return _harmless(entry) if entry.nonfatal and event.fatal is False else entry


def explain_recovery(asked: str, table: XidTable) -> XidEntry:
    """What the driver asks for, by its words; words unknown are an action that is needed."""
    return table.recovery.get(asked.lower(), table.recovery.get("*", table.unknown))


def _explain_sxid(event: XidEvent, table: XidTable) -> XidEntry:
    entry = table.sxids.get(event.code or 0, table.unknown)
    if event.fatal is False:
        return _harmless(entry)
    if event.fatal and entry.level is None:
        do = next((other.do for other in table.sxids.values() if other.cls is HealthClass.RESET), entry.do)
        return replace(entry, cls=HealthClass.RESET, level=Level.FAIL, do=do)
    return entry


def _harmless(entry: XidEntry) -> XidEntry:
    return replace(
        entry, cls=None, level=None, do="Nothing to do: the line itself says that it is not fatal."
    )


def select_xids(
    events: Sequence[XidEvent], *, boot: int | None = None, since_s: float | None = None
) -> list[XidEvent]:
    """The events of this boot of their log, and of these only what is not older than `since_s` (its clock).

    An event without a time stays: unknown is not old.
    """
    kept = [event for event in events if boot is None or event.record.boot == boot]
    return [e for e in kept if since_s is None or e.record.time_s is None or e.record.time_s >= since_s]


def judge_xids(
    events: Sequence[XidEvent],
    table: XidTable,
    *,
    gpus: Mapping[PciAddress, int] | None = None,
    asked: Mapping[PciAddress, str] | None = None,
) -> tuple[Finding, ...]:
    """The findings of these events, which are in the order of their log and of one boot.

    `gpus` gives the index of each GPU of the node; `asked` what the driver asks for now, GPU by GPU, in the
    words of Xid 154: it is newer than every event.
    """
    gpus = gpus or {}
    devices: dict[tuple[XidKind, PciAddress], list[XidEvent]] = {}
    for event in events:
        if event.code is not None:
            devices.setdefault((event.kind, event.device), []).append(event)
    by_gpu = {device: {e.code for e in of} for (kind, device), of in devices.items() if kind is XidKind.XID}
    found: list[Finding] = []
    for (kind, device), of in devices.items():
        if kind is XidKind.SXID:
            found += _judge_switch(of, table)
        else:
            echo = {_NVLINK} if _has_cause_elsewhere(device, by_gpu) else set()
            found += _judge_gpu(of, table, echo, gpus.get(device), (asked or {}).get(device))
    return (*found, *_judge_links(by_gpu, gpus))


def _judge_gpu(
    events: Sequence[XidEvent], table: XidTable, echoes: Collection[int], gpu: int | None, asked: str | None
) -> list[Finding]:
    said = [(number, e.recovery) for number, e in enumerate(events) if e.code == RECOVERY and e.recovery]
    # What the driver asks for now counts for all of them, its newest line for what stands before it.
    ruled, ruling = (len(events), asked) if asked else said[-1] if said else (0, "")
    verdict = explain_recovery(ruling, table) if ruling else None
    # It asks until it is done: what stands before a line of it was mended where it asks for nothing now.
    mended = said[-1][0] if said and verdict is not None and verdict.level is None else 0
    found = (
        [] if verdict is None or verdict.level is None else [_driver_finding(events, ruling, verdict, gpu)]
    )
    codes = {event.code for event in events}
    for code in dict.fromkeys(event.code for event in events if event.code != RECOVERY):
        of = [(number, event) for number, event in enumerate(events) if event.code == code]
        of = [one for one in of if one[0] >= mended or explain_xid(one[1], table).cls not in _MENDED]
        if not of:
            continue
        entry = max((explain_xid(event, table) for _, event in of), key=_gravity)
        entry = _combine(entry, codes, echoes, code)
        entry = _count(entry, [event for _, event in of])
        if verdict is not None and entry.cls in _MENDED and of[-1][0] < ruled:
            # The driver has seen all this and has said what is to be done about it.
            entry = replace(entry, level=None if entry.level is None or verdict.level else Level.WARN)
        if entry.level is not None:
            found.append(_finding("xid", [event for _, event in of], entry, gpu))
    return found


def _combine(
    entry: XidEntry, codes: Collection[int | None], echoes: Collection[int], code: int | None
) -> XidEntry:
    """The entry as it counts beside the other codes of this GPU."""
    if code in echoes or (_ECC in codes and code in _ECC_ECHOES):
        return replace(entry, level=None)
    if code == _ECC and _REMAP_FAILED in codes:
        return replace(entry, cls=HealthClass.REPLACE, level=Level.FAIL)
    if code == _ECC and _REMAPPED in codes and _UNCONTAINED not in codes:
        # Its row is mapped to a spare one at the next reset: new work may be launched until then.
        return replace(entry, level=Level.WARN)
    return entry


def _count(entry: XidEntry, events: Sequence[XidEvent]) -> XidEntry:
    if not entry.repeats or entry.never_drain or _bursts(events) < entry.repeats:
        return entry
    return replace(entry, cls=HealthClass.RESET, level=Level.WARN)


def _bursts(events: Sequence[XidEvent]) -> int:
    times = [e.record.wall_s if e.record.time_s is None else e.record.time_s for e in events]
    known = sorted(time for time in times if time is not None)
    return 1 + sum(later - earlier >= BURST_S for earlier, later in pairwise(known))


def _has_cause_elsewhere(device: PciAddress, codes: Mapping[PciAddress, Collection[int | None]]) -> bool:
    if _NVLINK_CAUSES & set(codes[device]):
        return False
    return any(_NVLINK_CAUSES & set(of) for other, of in codes.items() if other != device)


def _judge_links(
    codes: Mapping[PciAddress, Collection[int | None]], gpus: Mapping[PciAddress, int]
) -> list[Finding]:
    """NVLink errors on all GPUs but one point at that one."""
    hit = {device for device, of in codes.items() if _NVLINK in of}
    spared = set(gpus) - hit
    if len(hit) < 2 or len(spared) != 1 or not hit <= set(gpus):
        return []
    (one,) = spared
    said = f"GPU {one}: Xid {_NVLINK} on every other GPU of the node, not on this one: it may be the cause"
    return [
        Finding("xid", gpus[one], Level.WARN, HealthClass.RESET, f"Xid {_NVLINK} elsewhere", "none", said)
    ]


def _judge_switch(events: Sequence[XidEvent], table: XidTable) -> list[Finding]:
    found = []
    for code in dict.fromkeys(event.code for event in events):
        of = [event for event in events if event.code == code]
        # A fault has further lines with details, without the word: those say nothing more of its class.
        said = [event for event in of if event.fatal is not None] or of
        entry = max((explain_xid(event, table) for event in said), key=_gravity)
        if entry.level is not None:
            found.append(_finding("sxid", said, entry, None))
    return found


def _gravity(entry: XidEntry) -> tuple[int, int]:
    return (
        -1 if entry.level is None else list(Level).index(entry.level),
        -1 if entry.cls is None else list(HealthClass).index(entry.cls),
    )


def _driver_finding(events: Sequence[XidEvent], asked: str, entry: XidEntry, gpu: int | None) -> Finding:
    lines = [event for event in events if event.code == RECOVERY and event.recovery == asked]
    device = events[0].device
    raw = ", ".join(str(code) for code in dict.fromkeys(e.code for e in events if e.code != RECOVERY))
    said = f"GPU {device}: the driver asks for: {asked}" + (f" (Xid {raw} before)" if raw else "")
    if lines:
        said += _when(lines)
    return Finding("xid", gpu, entry.level or Level.WARN, entry.cls, f"Xid {RECOVERY}: {asked}", "none", said)


def _finding(check: str, events: Sequence[XidEvent], entry: XidEntry, gpu: int | None) -> Finding:
    newest = events[-1]
    kind, what = ("Xid", "GPU") if newest.kind is XidKind.XID else ("SXid", "NVSwitch")
    said = f"{what} {newest.device}: {kind} {newest.code}: {entry.name}{_when(events)}"
    text = " ".join(newest.text.split())[:160]
    return Finding(
        check,
        gpu,
        entry.level or Level.WARN,
        entry.cls,
        f"{kind} {newest.code}",
        "none",
        f"{said}: {text}" if text else said,
    )


def _when(events: Sequence[XidEvent]) -> str:
    lines = f", {len(events)} lines" if len(events) > 1 else ""
    time_s = events[-1].record.time_s
    return lines if time_s is None else f"{lines}, newest {time_s:.0f} s after boot"
