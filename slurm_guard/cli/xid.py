"""`slurm-guard node xid`: what the GPU driver's codes in a kernel log mean, and what to do."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from slurm_guard.adapters.kernel_log import KmsgLog, read_journal
from slurm_guard.cli.log import open_log
from slurm_guard.cli.table import compose_table
from slurm_guard.config.xid import SITE_FILE, load_xid_table
from slurm_guard.errors import OutsideError, SlurmGuardError
from slurm_guard.job.writer import plain
from slurm_guard.model.health import Finding
from slurm_guard.model.xid import KernelExcerpt, KernelRecord, XidEvent, XidKind, XidTable
from slurm_guard.policy.health.kernel_text import parse_kernel_log
from slurm_guard.policy.health.xid import parse_xids, since_load
from slurm_guard.policy.health.xidjudge import explain_xid, judge_xids, select_xids

_PIECE = 1 << 16
_EVENTS = 100_000
"""The newest that are kept: a log of years holds more lines than anybody reads."""
_HEAD = ("DEVICE", "CODE", "LINES", "NEWEST", "CLASS", "MEANING")


def xid(
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE|-]", help="A kernel log; - reads it from stdin. Default: this node's."),
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    since_boot: Annotated[
        bool, typer.Option("--since-boot", help="Only the newest boot that the log holds.")
    ] = False,
    since_reset: Annotated[
        bool, typer.Option("--since-reset", help="Only what came after the driver was loaded last.")
    ] = False,
    since: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0, help="Only from this kernel time of the newest boot on, as dmesg has it."
        ),
    ] = None,
    table: Annotated[
        str, typer.Option(metavar="FILE", help=f"The site's changes of the table. Default: {SITE_FILE}.")
    ] = "",
) -> None:
    """Explain the Xid and SXid lines of a kernel log: what each code means, what mends it, what to do.

    The log may be of dmesg, journalctl (also -o json), syslog or /dev/kmsg. Lines that a program wrote, where
    the log shows that, are left out; a pasted text does not always show it.
    """
    codes = load_xid_table(Path(table) if table else SITE_FILE if SITE_FILE.exists() else None)
    events, newest_boot, missing = _read(file, since_reset)
    events = select_xids(events, boot=newest_boot if since_boot or since is not None else None, since_s=since)
    timeless = sum(event.record.time_s is None for event in events)
    if since is not None and timeless:
        missing = "; ".join(
            filter(None, (missing, f"lines without the kernel's time are not left out: {timeless}"))
        )
    findings = judge_xids(events, codes)
    if as_json:
        print(json.dumps(_as_json(events, findings, missing, codes), indent=1))
    else:
        print(_page(events, findings, missing, codes))


def _read(file: str, since_reset: bool) -> tuple[list[XidEvent], int, str]:
    """The events, the log's newest boot, and what is missing."""
    if not file:
        excerpt = read_own()
        records = since_load(excerpt.records) if since_reset else excerpt.records
        return list(parse_xids(records)), 0, excerpt.missing
    last = deque([KernelRecord("")], maxlen=1)
    with sys.stdin.buffer if file == "-" else open_log(file) as log:
        read = _remember(parse_kernel_log(_lines(log, file)), last)
        found = deque(parse_xids(since_load(read) if since_reset else read), maxlen=_EVENTS)
    missing = f"only the newest {_EVENTS} events are shown" if len(found) == _EVENTS else ""
    return list(found), last[0].boot, missing


def _remember(records: Iterable[KernelRecord], last: deque[KernelRecord]) -> Iterator[KernelRecord]:
    for record in records:
        last.append(record)
        yield record


def read_own() -> KernelExcerpt:
    """This node's kernel log since its boot.

    Raises:
        OutsideError: this user may read neither the kernel's log nor the journal.
    """
    try:
        return KmsgLog().read_since(0.0)
    except OutsideError as refused:
        try:
            return read_journal()
        except OutsideError as error:
            raise OutsideError(f"{refused}; {error}: run this as root, or give a log file") from None


def _lines(log: BinaryIO, file: str) -> Iterator[str]:
    try:
        for line in iter(lambda: log.readline(_PIECE), b""):
            yield line.decode(errors="replace")
    except OSError as error:
        raise SlurmGuardError(f"{file}: cannot be read ({error.strerror})") from None


def _as_json(
    events: Sequence[XidEvent], findings: Sequence[Finding], missing: str, codes: XidTable
) -> dict[str, Any]:
    return {
        "missing": missing or None,
        "events": [_event_as_json(event, codes) for event in events],
        "findings": [
            {"check": f.check, "level": f.level.value, "class": f.cls and f.cls.value, "evidence": f.evidence}
            for f in findings
        ],
    }


def _event_as_json(event: XidEvent, codes: XidTable) -> dict[str, Any]:
    entry = explain_xid(event, codes)
    return {
        "kind": event.kind.value, "code": event.code, "device": str(event.device), "uuid": event.uuid or None,
        "time_s": event.record.time_s, "wall_s": event.record.wall_s, "boot": event.record.boot,
        "pid": event.pid, "process": event.process or None, "channel": event.channel or None,
        "fatal": event.fatal, "recovery": event.recovery or None, "text": event.text,
        "class": entry.cls.value if entry.cls else "information", "level": entry.level and entry.level.value,
        "name": entry.name, "do": entry.do, "source": entry.source,
    }  # fmt: skip


def _page(events: Sequence[XidEvent], findings: Sequence[Finding], missing: str, codes: XidTable) -> str:
    groups: dict[tuple[object, ...], list[XidEvent]] = {}
    for event in events:
        # Lines of one code may differ in class: by their own word, or by what the driver asks for.
        groups.setdefault((event.kind, event.device, event.code, explain_xid(event, codes)), []).append(event)
    said = [f"note: {plain(missing)}"] if missing else []
    if not groups:
        return "\n".join([*said, "no Xid or SXid lines"])
    said += compose_table([_HEAD, *(_row(of, codes) for of in groups.values())])
    advice: dict[str, list[str]] = {}
    for of in groups.values():
        advice.setdefault(explain_xid(of[0], codes).do, []).append(_code(of[0]))
    said += ["", *(plain(f"{', '.join(dict.fromkeys(names))}: {do}") for do, names in advice.items())]
    if findings:
        said += ["", "Together:"]
        rows = [(f"  {f.level.value}", f.cls.value if f.cls else "-", f.evidence) for f in findings]
        said += compose_table(rows)
    else:
        said += ["", "Together: nothing here speaks against the node."]
    return "\n".join(said)


def _row(events: Sequence[XidEvent], codes: XidTable) -> tuple[str, ...]:
    newest = events[-1]
    entry = explain_xid(newest, codes)
    time_s = newest.record.time_s
    return (
        str(newest.device),
        _code(newest),
        str(len(events)),
        "-" if time_s is None else f"{time_s:.3f}",
        entry.cls.value if entry.cls else "information",
        entry.name,
    )


def _code(event: XidEvent) -> str:
    kind = "Xid" if event.kind is XidKind.XID else "SXid"
    return f"{kind} {'?' if event.code is None else event.code}"
