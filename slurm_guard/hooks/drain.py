"""Take this node out of service: with proof, below the breaker's cap, and over nobody else's words."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.adapters.files import read_regular, write_atomic
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.errors import OutsideError
from slurm_guard.hooks.ledger import compose_entry, enter, enter_once
from slurm_guard.hooks.note import note
from slurm_guard.hooks.place import Place
from slurm_guard.model.drain import DrainReason
from slurm_guard.model.health import Finding, HealthClass, HealthReading, NodeVerdict
from slurm_guard.model.ledger import LedgerKind
from slurm_guard.model.reading import NodeReading
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.breaker import Standing, choose_cap, count_recent, judge_standing, judge_taken
from slurm_guard.policy.drain import choose_finding, compose_reason, parse_reason
from slurm_guard.ports import Clock, Slurm

CALL_S = 2.0
"""Seconds that Slurm has for each answer."""
_SECOND_S = 1.5
"""Later than this no drain can have the second of ours any more."""


class Drained(str, Enum):
    """What came of it."""

    DRAINED = "drained"
    ALREADY = "already"
    """The node was out of service already; its reason is as it was."""
    CAPPED = "capped"
    """Enough nodes were drained within the hour: this one stays in service."""
    UNREACHABLE = "unreachable"
    """The controller gave no answer, or refused. It may have drained the node all the same: then the next
    sweep counts it."""

    @property
    def words(self) -> str:
        """What is so now, as a sentence for the log."""
        return _WORDS[self]


_WORDS = {
    Drained.DRAINED: "the node is drained",
    Drained.ALREADY: "the node was out of service already",
    Drained.CAPPED: "the node stays in service, enough others are drained",
    Drained.UNREACHABLE: "whether the node is drained is unknown",
}


@dataclass(frozen=True, slots=True)
class OwnDrain:
    """What this node wrote down of its own drain, in the boot `boot_id`. `by` and `at_s` are who and when as
    the controller has them, None before it was read back; `settled` once the breaker has let it stand, `kept`
    once a person was told that it is for him to lift.
    """

    reason: str
    boot_id: str
    by: str | None = None
    at_s: float | None = None
    settled: bool = False
    kept: bool = False


def open_slurm(scontrol: str, environ: Mapping[str, str], timeout_s: float = CALL_S) -> SlurmCli:
    """Slurm for a hook, which has no PATH: `scontrol` is the whole path of that program. Of the environment
    only SLURM_CONF counts.
    """
    conf = {"SLURM_CONF": environ["SLURM_CONF"]} if environ.get("SLURM_CONF") else {}
    return SlurmCli(timeout_s, {"HOME": "/", **conf}, bin_dir=os.path.dirname(scontrol))


def drain_own_node(
    slurm: Slurm,
    node: str,
    verdict: NodeVerdict,
    settings: SiteSettings,
    clock: Clock,
    *,
    place: Place,
    reading: HealthReading | None = None,
    job_id: str = "",
    user_id: int | None = None,
) -> Drained:
    """Drain this node for the gravest finding of `verdict`, and enter it into the ledger; takes about 2 s
    where Slurm is quick.

    At most six questions to Slurm, each with the deadline of `slurm`. DRAINED and ALREADY: the node takes no
    new jobs. CAPPED: it does. The job and its user are those on whose word the node was looked at, `reading`
    knows the GPU's serial number. A human who drains the node in the few milliseconds between our look and
    our own drain loses his reason; there is no closing that gap.

    Raises:
        ValueError: the verdict holds nothing that makes a node unfit.
    """
    finding = choose_finding(verdict)
    if finding is None or finding.cls is None:
        raise ValueError("nothing in this verdict makes a node unfit")
    reason = _compose(finding, finding.cls, job_id)
    came = _refuse(slurm, node, finding, settings, clock=clock, place=place)
    if came is None:
        came = _drain(slurm, node, reason, settings, clock=clock, place=place)
    kind = {Drained.DRAINED: LedgerKind.DRAIN, Drained.CAPPED: LedgerKind.CAPPED}.get(came)
    if kind is not None:
        entry = compose_entry(
            kind, node, finding, reading, time_s=clock.wall_s(), user_id=user_id, job_id=job_id
        )
        (enter_once if kind is LedgerKind.CAPPED else enter)(place, entry)
    return came


def _drain(
    slurm: Slurm, node: str, reason: str, settings: SiteSettings, *, clock: Clock, place: Place
) -> Drained:
    try:
        write_own_drain(place, node, OwnDrain(reason, _read_boot()))
        slurm.drain_node(node, reason)
    except OutsideError as error:
        note(place, f"{node} could not be drained: {error}")
        return Drained.UNREACHABLE
    note(place, f"drained {node}: {reason}")
    try:
        came = settle(slurm, node, reason, settings, place)
        if came is Drained.DRAINED:
            # Others may get the same second as we, and stand before us by their name.
            clock.sleep(_SECOND_S)
            came = settle(slurm, node, reason, settings, place, last=True)
    except OutsideError as error:
        note(place, f"whether the drain of {node} is one too many is left to the next sweep: {error}")
        return Drained.DRAINED
    return came


def _refuse(
    slurm: Slurm, node: str, finding: Finding, settings: SiteSettings, *, clock: Clock, place: Place
) -> Drained | None:
    try:
        if judge_taken(slurm.read_node(node)):
            return Drained.ALREADY
        nodes = slurm.read_nodes()
    except OutsideError as error:
        note(place, f"{node} could not be drained: {error}")
        return Drained.UNREACHABLE
    cap = _cap(nodes, node, settings)
    if (count := count_recent(nodes, clock.wall_s())) >= cap:
        where = "" if finding.gpu is None else f" GPU {finding.gpu}"
        were = "1 node of ours was" if count == 1 else f"{count} nodes of ours were"
        limit = f"{were} drained within the hour, the limit is {cap} (drain_limit, drain_percent)"
        note(place, f"{node}: {finding.check}{where}: {finding.evidence}: stays in service: {limit}")
        return Drained.CAPPED
    taken = any(seen.name == node and judge_taken(seen) for seen in nodes)
    return Drained.ALREADY if taken else None


def settle(
    slurm: Slurm, node: str, reason: str, settings: SiteSettings, place: Place, *, last: bool = False
) -> Drained:
    """Let our own drain stand where the breaker allows it, else take it back. `last`: it is old enough that
    no other can come before it.

    Raises:
        OutsideError: as Slurm says; the drain is as it was.
    """
    nodes = slurm.read_nodes()
    standing = judge_standing(nodes, node, reason, _cap(nodes, node, settings))
    if standing is Standing.GONE:
        note(place, f"the drain of {node} is no longer slurm-guard's")
        forget_own_drain(place, node, reason)
        return Drained.ALREADY
    if standing is Standing.BEYOND:
        slurm.undrain_node(node)
        forget_own_drain(place, node, reason)
        note(place, f"{node}: its drain was one too many within the hour and is taken back: {reason}")
        return Drained.CAPPED
    seen = next(seen for seen in nodes if seen.name == node)
    write_own_drain(place, node, OwnDrain(reason, _read_boot(), seen.reason_by, seen.reason_s, last))
    return Drained.DRAINED


def read_own_drain(place: Place, node: str) -> OwnDrain | None:
    """What this node wrote down when it drained itself; None where there is no such thing."""
    try:
        said = json.loads(read_regular(_file(place, node), 4096))
        own = OwnDrain(
            str(said["reason"]), str(said["boot_id"]), said["by"], said["at_s"], bool(said["settled"]),
            kept=bool(said.get("kept")),
        )  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return own if parse_reason(own.reason) else None


def write_own_drain(place: Place, node: str, own: OwnDrain) -> None:
    """Write it down, that a later sweep may lift it. Never raises."""
    path = _file(place, node)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(path, json.dumps(asdict(own)).encode())
    except OSError as error:
        note(place, f"{path} cannot be written, so this drain is for a human to lift: {error}")


def forget_own_drain(place: Place, node: str, reason: str) -> None:
    """The drain with this reason is ours no longer; another one stays written down."""
    own = read_own_drain(place, node)
    if own is None or own.reason != reason:
        return
    with contextlib.suppress(OSError):
        _file(place, node).unlink()


def _compose(finding: Finding, cls: HealthClass, job_id: str) -> str:
    reason = compose_reason(DrainReason(finding.check, cls, finding.gpu, job_id, os.urandom(4).hex()))
    if parse_reason(reason) is None:
        raise ValueError(f"{reason!r} is no reason that could be recognised")
    return reason


def _read_boot() -> str:
    try:
        return read_boot_id()
    except OutsideError:
        return ""


def _cap(nodes: tuple[NodeReading, ...], node: str, settings: SiteSettings) -> int:
    return choose_cap(nodes, node, limit=settings.drain_limit, percent=settings.drain_percent)


def _file(place: Place, node: str) -> Path:
    return place.state / f"drain-{node}.json"
