"""Xid and SXid lines of the NVIDIA driver, understood strictly.

A number is a code only where the driver writes one: pids, times and bus numbers are never searched. A line
that is cut before the end of its code has none, and that is never a critical event.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from slurm_guard.model.xid import KernelRecord, PciAddress, XidEvent, XidKind

RECOVERY = 154
FALLEN_OFF = 79
_LINE_LENGTH = 4096
_RECORDS = 100_000
"""The newest that are kept: a log of years holds more than anybody reads."""
_SPAN = 3
"""Records that the sentence of a lost GPU goes over."""

DRIVER = ("NVRM: ", "nvidia-nvswitch")
"""How the lines of its kernel modules begin."""
_LOADING = "NVRM: loading NVIDIA UNIX "

_PCI = r"(?P<pci>(?:[0-9a-fA-F]{4}|[0-9a-fA-F]{8}):[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PCI}\):(?: (?P<rest>.*))?", re.DOTALL)
_SXID = re.compile(rf"nvidia-nvswitch\d{{1,4}}: SXid \((?:PCI:)?{_PCI}\):(?: (?P<rest>.*))?", re.DOTALL)
_CODE = re.compile(r"(?P<code>[0-9]{1,6})(?:$|,(?: |$))")
_LOST = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_PCI}:?(?P<rest>(?: .*)?)", re.DOTALL)
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?{_PCI}: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})$")
_PID = r"pid='?(?P<pid>\d{1,10}|<unknown>)'?, name="
# The name is anything of at most 15 bytes: it may hold commas and brackets.
_PROCESS = re.compile(rf"{_PID}(?P<name>.{{0,64}}?)(?:, |$)", re.DOTALL)
_WITH_CHANNEL = re.compile(rf"{_PID}(?P<name>.{{0,64}}?), (?=Ch [0-9a-f]{{8}})", re.DOTALL)
_CHANNEL = re.compile(r"Ch(?:annel)? (?P<channel>[0-9a-f]{8})(?:, |$)")
_FATAL = re.compile(r"(?:\w+ )?(?P<word>Fatal|Non-?fatal)\b")
_LINK = re.compile(r"\bLink (?P<link>-?\d{1,3})\b")
_RECOVERY = "GPU recovery action changed from "


def parse_pci(text: str) -> PciAddress | None:
    """A PCI address in any spelling: with or without function and `PCI:`, domain of 4 or of 8 digits.

    >>> parse_pci("00000009:3B:00.0") == parse_pci("PCI:0009:3b:00")
    True
    """
    found = re.fullmatch(rf"(?:PCI:)?{_PCI}", text, re.ASCII)
    return _address(found["pci"]) if found else None


def since_load(records: Iterable[KernelRecord]) -> list[KernelRecord]:
    """The driver's records since it was loaded last: all of them where the log does not show that.

    With the driver every GPU and NVSwitch starts anew; what is still wrong is said again.
    """
    kept: deque[KernelRecord] = deque(maxlen=_RECORDS)
    for record in records:
        if record.text.startswith(_LOADING) or (kept and kept[-1].boot != record.boot):
            kept.clear()
        if record.text.startswith(DRIVER):
            kept.append(record)
    return list(kept)


def parse_xids(records: Iterable[KernelRecord]) -> Iterator[XidEvent]:
    """The events of these records in their order; what is none is left out. Never raises.

    Records of one log belong together: a driver says which UUID sits where, and spreads some sentences
    over several records.
    """
    uuids: dict[PciAddress, str] = {}
    lost: PciAddress | None = None
    since = 0
    for record in records:
        text = record.text[:_LINE_LENGTH].strip()
        if not text.startswith(DRIVER):
            continue
        if named := _UUID.match(text):
            uuids[_address(named["pci"])] = named["uuid"]
            continue
        event = parse_xid(text)
        start = None if event else re.fullmatch(rf"NVRM: The NVIDIA GPU {_PCI}", text)
        if start is not None:
            lost, since = _address(start["pci"]), 0
        elif lost is not None:
            since += 1
            if event is None and text.startswith("NVRM: fallen off the bus"):
                event, lost = XidEvent(XidKind.XID, FALLEN_OFF, lost, text.removeprefix("NVRM: ")), None
            elif since >= _SPAN:
                lost = None
        if event is not None:
            yield replace(event, record=record, uuid=uuids.get(event.device, ""))


def parse_xid(text: str) -> XidEvent | None:
    """The event that one kernel line says, without time stamps and the like before it; None for any other.

    >>> parse_xid("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=a, GPU has fallen off the bus.").code
    79
    """
    text = text[:_LINE_LENGTH].rstrip()
    if found := _XID.match(text):
        return _parse_rest(XidKind.XID, found["pci"], found["rest"] or "")
    if found := _SXID.match(text):
        return _parse_rest(XidKind.SXID, found["pci"], found["rest"] or "")
    found = _LOST.match(text)
    # Old drivers say this without a code.
    if found and "fallen off the bus" in found["rest"]:
        return XidEvent(XidKind.XID, FALLEN_OFF, _address(found["pci"]), found["rest"].strip())
    return None


def _parse_rest(kind: XidKind, pci: str, rest: str) -> XidEvent:
    device = _address(pci)
    found = _CODE.match(rest)
    if found is None:
        return XidEvent(kind, None, device, rest)
    event, rest = XidEvent(kind, int(found["code"]), device), rest[found.end() :]
    if kind is XidKind.XID:
        event, rest = _take_process(event, rest)
        if channel := _CHANNEL.match(rest):
            event, rest = replace(event, channel=channel["channel"]), rest[channel.end() :]
    fatal, link = _FATAL.match(rest), _LINK.search(rest)
    return replace(
        event,
        text=rest,
        fatal=fatal["word"] == "Fatal" if fatal else None,
        link=int(link["link"]) if link else None,
        recovery=_recovery(rest) if kind is XidKind.XID and event.code == RECOVERY else "",
    )


def _take_process(event: XidEvent, rest: str) -> tuple[XidEvent, str]:
    found = _WITH_CHANNEL.match(rest) or _PROCESS.match(rest)
    if found is None:
        return event, rest
    pid = int(found["pid"]) if found["pid"].isdigit() else None
    name = "" if found["name"] == "<unknown>" else found["name"]
    return replace(event, pid=pid, process=name), rest[found.end() :]


def _recovery(text: str) -> str:
    """The action that the driver asks for: the last text in brackets, else what follows `to`."""
    # From the right: a process name before it may imitate anything but this whole phrase.
    _, _, change = text.rpartition(_RECOVERY)
    bracketed = re.findall(r"\(([^()]*)\)", change)
    if bracketed:
        return str(bracketed[-1]).strip()
    return change.rpartition(" to ")[2].strip(" .") if " to " in change else ""


def _address(pci: str) -> PciAddress:
    domain, bus, device = (int(part, 16) for part in pci.split(":"))
    return PciAddress(domain, bus, device)
