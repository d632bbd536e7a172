"""The page and the document of one replayed log."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

from slurm_guard.cli.table import compose_table
from slurm_guard.job.writer import plain
from slurm_guard.model.phase import Phase
from slurm_guard.policy.replay.event import Event, Said
from slurm_guard.policy.replay.proposal import propose_limits
from slurm_guard.policy.replay.replay import Replay

_HEAD = ("WOULD", "LINE", "TIME (UTC)", "ITERATION", "WHAT", "WHY")
_GUESSED_YEAR = 2000
"""Stands for a year that the log does not tell."""

_SHOWN = 20
_SHOWN_AFTER = 5
"""Stops that are shown for people, and as many looks and notes; fewer after the first stop."""

_NO_TIME = (
    "no time stands with its records, so stalls are not judged: --interval-s SECONDS says what a record takes"
)


def compose_page(name: str, one: Replay) -> list[str]:
    """What the guard would have done about this log, for people."""
    lines = [plain(f"{name}: {_span(one)}")]
    if one.seconds is None:
        lines.append(f"  {_NO_TIME}")
    elif not _is_timed(one) and not one.clock.interval_s:
        lines.append(
            f"  a time stands with few of its records, so stalls are judged in {one.rhythm.count} of "
            f"{one.records - 1} intervals only"
        )
    events = _choose(one.said.events)
    if events:
        lines += ["", *compose_table([_HEAD, *map(_row, events)])]
    hidden = sum(one.said.counts.values()) - len(events)
    if hidden:
        lines.append(f"… and {hidden} more: all counts are in --json")
    if any(event.after_stop for event in events):
        lines.append("* after a stop: the job would not have run on until there")
    lines += ["", _verdict(one)]
    proposals = propose_limits(one.rhythm, one.recall, one.settings)
    if proposals:
        lines.append("limits that would fit this training better (slurm-guard.toml):")
    for section in dict.fromkeys(proposal.section for proposal in proposals):
        lines.append(f"  [{section}]")
        lines += [f"  {p.name} = {p.value}  # {p.reason}" for p in proposals if p.section == section]
    return lines


def as_json(one: Replay) -> dict[str, Any]:
    """The same for machines. Times are epoch seconds, null where the log tells none."""
    return {
        "lines": one.line - 1,
        "records": one.records,
        "losses": one.losses,
        "first_s": one.first_s,
        "last_s": one.clock.wall_s,
        "seconds": one.seconds,
        "stalls_judged": one.seconds is not None,
        "stopped": one.said.counts[Said.STOP] > 0,
        "counts": {said.value: one.said.counts[said] for said in Said},
        "events": [_event(event) for event in one.said.events],
        "rhythm": {
            "intervals": one.rhythm.intervals,
            "p99_s": one.rhythm.quantile(0.99),
            "learned_s": one.attempt.watch.pauses.learned_s(one.settings),
            "longest_s": {phase.value: pauses.longest_s for phase, pauses in one.rhythm.pauses.items()},
        },
        "proposals": [
            {"key": f"{p.section}.{p.name}", "value": p.value, "reason": p.reason}
            for p in propose_limits(one.rhythm, one.recall, one.settings)
        ],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "would": event.said.value,
        "what": event.what,
        "line": event.line,
        "at_s": event.at_s,
        "iteration": event.iteration,
        "why": event.evidence,
        "after_stop": event.after_stop,
    }


def _span(one: Replay) -> str:
    said = f"{one.line - 1:,} lines, {one.records:,} records of progress, {one.losses:,} losses"
    if one.first_s is not None and one.seconds is not None:
        said += f", {_time(one.first_s)} to {_time(one.clock.wall_s)}"
    elif one.seconds is not None:
        said += f", {one.seconds:.0f} s"
    return said


def _choose(events: list[Event]) -> list[Event]:
    """What is shown: the first of each sort, in order."""
    shown: Counter[tuple[Said, bool]] = Counter()
    chosen: list[Event] = []
    for event in events:
        sort = (event.said, event.after_stop)
        shown[sort] += 1
        if shown[sort] <= (_SHOWN_AFTER if event.after_stop else _SHOWN):
            chosen.append(event)
    return chosen


def _row(event: Event) -> tuple[str, ...]:
    return (
        ("*" if event.after_stop else "") + event.said.value,
        str(event.line),
        _time(event.at_s),
        "-" if event.iteration is None else str(event.iteration),
        event.what,
        event.evidence,
    )


def _verdict(one: Replay) -> str:
    stops, looks = one.said.counts[Said.STOP], one.said.counts[Said.LOOK]
    said = "would not have been stopped"
    if stops:
        first = next(event for event in one.said.events if event.said is Said.STOP)
        said = f"would have been stopped after line {first.line}"
        if stops > 1:
            said += f", and {_times(stops - 1)} more had it run on"
    if looks:
        said += f"; stacks would have been compared {_times(looks)}"
    if one.rhythm.intervals and _is_timed(one):
        pause = one.rhythm.longest(Phase.TRAINING)
        said += (
            f"; 99 % of {one.rhythm.intervals:,} intervals below {one.rhythm.quantile(0.99):.3g} s, "
            f"the longest pause {pause.longest_s:.0f} s after line {pause.line}"
        )
        learned_s = one.attempt.watch.pauses.learned_s(one.settings)
        said += f", learned limit {learned_s:.0f} s" if learned_s is not None else ""
    return said


def _is_timed(one: Replay) -> bool:
    """Whether most intervals have a time at both ends."""
    return 2 * one.rhythm.count >= one.records - 1


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _time(at_s: float | None) -> str:
    if at_s is None:
        return "-"
    time = datetime.fromtimestamp(at_s, timezone.utc)
    return time.strftime("%Y-%m-%d %H:%M:%S" if time.year != _GUESSED_YEAR else "%m-%d %H:%M:%S")
