"""What a job's journal tells of its checkpoints: from which one each attempt began, and how it ended.

A checkpoint is not resumed from when the training may have been ill at its moment, or when it was tried:

- *ill*: the numeric red line was crossed, and the checkpoint is of a later iteration than the last one with
  a healthy loss before the first symptom. Its file must also be younger than ten minutes before that
  symptom, or than the symptom: a log that counts its iterations anew in every epoch would else condemn all;
- *tried*: an attempt that began from it was ended by the same breach as one before it: same kind, and the
  iterations from the first symptom to the breach overlap. Faults of the hardware are nobody's but its own;
- *passed over*: it was there already when the user began the job from another one, or from scratch.

Only breaches count that ended an attempt, and only for checkpoints that were there by then: what a later
attempt wrote under the same iteration is another one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from slurm_guard.model.breach import BreachKind
from slurm_guard.model.checkpoint import Checkpoint, CheckpointKind
from slurm_guard.policy.resumption.past import parse_iteration

SLACK_S = 600.0
"""How long before the first symptom a loss may have been healthy last: logs show one every few minutes."""

_ENDINGS = frozenset({"recovery", "incident_closed"})

_NOT_ITS_FAULT = BreachKind.RESUMED_WRONG.value
"""A breach that says of the attempt that it did not go on from its checkpoint: no word against that one."""

_WISH = "wish"
"""No breach at all: the job began from what the user named."""

_NEWEST = 50
_TEXT_BYTES = 65_536
"""Attempts, and bytes, that ranks are told of: one variable of an environment holds 128 KiB."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One attempt that a breach ended.

    `healthy` is the last iteration before the first symptom, `symptom_s` when that was and `until_s` when
    the attempt was over, infinite while it is the newest. `resumed_from` is what it began from at `began_s`
    (as in SLURM_GUARD_RESUME_FROM, empty for unknown): what its ranks said, or else what they were told.
    Times are epoch seconds.
    """

    red_line: str
    kind: str
    iteration: int | None
    healthy: int | None
    symptom_s: float
    until_s: float = math.inf
    resumed_from: str = ""
    began_s: float = -math.inf


def read_trials(entries: Iterable[Mapping[str, Any]]) -> tuple[Trial, ...]:
    """The attempts in the journal of one command, oldest first. Entries in other words are left out."""
    trials: list[Trial] = []
    resumed_from, began_s = "", -math.inf
    for entry in entries:
        what, time_s = entry.get("what"), entry.get("time_s")
        if not isinstance(time_s, (int, float)):
            continue
        if what == "breach" and not entry.get("observe"):
            trial = _parse_trial(entry.get("breach"), float(time_s))
            trials += [replace(trial, resumed_from=resumed_from, began_s=began_s)] if trial else []
        elif what in _ENDINGS or (what == "run" and not entry.get("again")):
            trials = [
                trial if trial.until_s < math.inf else replace(trial, until_s=time_s) for trial in trials
            ]
            if isinstance(entry.get("resume_from"), str):
                resumed_from, began_s = entry["resume_from"], float(time_s)
                if what == "run" and entry.get("restart_count") == 0:  # later it may be what we told it
                    trials += _read_wish(resumed_from, began_s)
        elif what == "resumed" and isinstance(entry.get("resume_from"), str):
            resumed_from = entry["resume_from"]
    return tuple(trials)


def dump_trials(trials: Sequence[Trial]) -> str:
    """The newest of these attempts as SLURM_GUARD_TRIALS tells them to the ranks: at most 50, and 64 KiB.

    >>> dump_trials([Trial("numeric", "plateau", 60, 57, 998.0)])
    '[{"red_line":"numeric","kind":"plateau","iteration":60,"healthy":57,"symptom_s":998.0}]'
    """
    told = [body for body in map(_compose_trial, trials[-_NEWEST:]) if not _find_wrong(body)]
    while len(text := json.dumps(told, separators=(",", ":"))) > _TEXT_BYTES:
        del told[0]
    return text


def parse_trials(text: str) -> tuple[Trial, ...]:
    """The attempts that `dump_trials` wrote down.

    >>> parse_trials("[]")
    ()

    Raises:
        ValueError: it is anything else.
    """
    try:
        told = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(told, list) or len(told) > _NEWEST:
        raise ValueError(f"it is no list of at most {_NEWEST} attempts")
    return tuple(_read_trial(body) for body in told)


def _compose_trial(trial: Trial) -> dict[str, Any]:
    """Without what is as usual: JSON knows no infinite number."""
    usual = {field.name: field.default for field in fields(Trial)}
    return {name: value for name, value in asdict(trial).items() if value != usual[name]}


def _read_trial(body: Any) -> Trial:
    wrong = _find_wrong(body) if isinstance(body, dict) else "no fields"
    if wrong:
        raise ValueError(f"an attempt has {wrong}")
    try:
        return Trial(**body)
    except TypeError as error:
        raise ValueError("an attempt lacks a field") from error


def _find_wrong(body: Mapping[str, Any]) -> str:
    """What no attempt has; empty where there is none."""
    for name, value in body.items():
        is_right = _RIGHT.get(name)
        if is_right is None or not is_right(value):
            return f"{name} = {value!r:.40}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_iteration(value: Any) -> bool:
    return value is None or _number(value) is not None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18


_RIGHT: dict[str, Callable[[Any], bool]] = {
    "red_line": _is_text,
    "kind": _is_text,
    "iteration": _is_iteration,
    "healthy": _is_iteration,
    "symptom_s": _is_time,
    "until_s": _is_time,
    "resumed_from": _is_text,
    "began_s": _is_time,
}


def name_checkpoint(checkpoint: Checkpoint) -> str:
    """What SLURM_GUARD_RESUME_FROM calls it: `ring:ITERATION`, each node has its own; else its directory."""
    if checkpoint.kind is CheckpointKind.RING:
        return f"ring:{checkpoint.iteration}"
    return checkpoint.directory


def judge_checkpoint(checkpoint: Checkpoint, trials: Sequence[Trial]) -> str:
    """Why these attempts speak against resuming from it; empty when they do not."""
    for number, trial in enumerate(trials):
        if _is_passed_over(checkpoint, trial):
            return f"it was there when the job was begun with SLURM_GUARD_RESUME_FROM={trial.resumed_from}"
        if _is_ill(checkpoint, trial):
            return (
                f"the loss was healthy up to iteration {trial.healthy} only, before {trial.kind} at "
                f"iteration {trial.iteration}"
            )
        if _was_tried(checkpoint, trial, trials[:number]):
            return (
                f"it was tried: the attempt from it ended as one before, {trial.kind}{_at(trial.iteration)}"
            )
    return ""


def _is_passed_over(checkpoint: Checkpoint, trial: Trial) -> bool:
    if trial.kind != _WISH or trial.healthy is None or checkpoint.written_s > trial.until_s:
        return False
    return checkpoint.iteration > trial.healthy and name_checkpoint(checkpoint) != trial.resumed_from


def _is_ill(checkpoint: Checkpoint, trial: Trial) -> bool:
    if trial.red_line != "numeric" or trial.kind == _NOT_ITS_FAULT:
        return False
    if trial.healthy is None or checkpoint.iteration <= trial.healthy:
        return False
    return trial.symptom_s - SLACK_S < checkpoint.written_s <= trial.until_s


def _was_tried(checkpoint: Checkpoint, trial: Trial, before: Sequence[Trial]) -> bool:
    # A ring and a milestone of one iteration hold the same state.
    is_same_moment = parse_iteration(trial.resumed_from) == checkpoint.iteration
    is_it = is_same_moment or trial.resumed_from == name_checkpoint(checkpoint)
    is_it = is_it and checkpoint.written_s <= trial.began_s
    return is_it and any(_is_same(earlier, trial) for earlier in before)


def _is_same(one: Trial, other: Trial) -> bool:
    if one.kind != other.kind or one.kind == _NOT_ITS_FAULT:
        return False
    if "hardware" in (one.red_line, other.red_line):
        return False
    if one.iteration is None or other.iteration is None:
        return one.iteration is other.iteration
    return _first(one) <= other.iteration and _first(other) <= one.iteration


def _first(trial: Trial) -> int:
    assert trial.iteration is not None
    return trial.iteration if trial.healthy is None else min(trial.iteration, trial.healthy + 1)


def _at(iteration: int | None) -> str:
    return "" if iteration is None else f" at iteration {iteration}"


def _read_wish(named: str, time_s: float) -> list[Trial]:
    """`ring:ITERATION` is a limit; of what was there beside a directory that is named nothing was wanted."""
    limit = parse_iteration(named) if named.startswith("ring:") else None
    newest = -1 if limit is None else limit
    return [Trial("", _WISH, None, newest, time_s, time_s, named)] if named else []


def _parse_trial(breach: Any, time_s: float) -> Trial | None:
    if not isinstance(breach, Mapping) or not isinstance(breach.get("kind"), str):
        return None
    ago_s = breach.get("symptom_ago_s")
    iteration, healthy = (_number(breach.get(name)) for name in ("iteration", "healthy_iteration"))
    if healthy is None and iteration is not None:
        healthy = iteration - 1
    symptom_s = time_s - (ago_s if isinstance(ago_s, (int, float)) else 0.0)
    return Trial(str(breach.get("red_line")), breach["kind"], iteration, healthy, symptom_s)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
