"""Two trainings of one job with the same directories: the newest checkpoint there may be the other's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_REMEDY = "give each a SLURM_GUARD_RING_DIR and a SLURM_GUARD_MILESTONE_DIR of its own"


def describe_company(entries: Iterable[Mapping[str, Any]], own: Mapping[str, Any], restart_count: int) -> str:
    """One sentence about another training that saves where ours does; empty where there is none.

    `entries` is the job's whole journal, `own` our entry `resumed`, which names our directories. A run of the
    same command that has ended is this very training.
    """
    runs: dict[str, Mapping[str, Any]] = {}
    resumed: dict[str, Mapping[str, Any]] = {}
    ended: set[str] = set()
    for entry in entries:
        run, what = str(entry.get("run")), entry.get("what")
        if what == "run":
            runs[run] = entry
        elif what == "resumed" and entry.get("run") not in {None, own.get("run")}:
            resumed[run] = entry
        elif what in {"end", "front_gone"}:
            ended.add(run)
    found = {run: shared for run, entry in resumed.items() if (shared := _describe_shared(own, entry))}
    for run, shared in found.items():
        is_now = runs.get(run, {}).get("restart_count") == restart_count and run not in ended
        if is_now:
            return f"another training of this job runs and has the same {shared}: they mix; {_REMEDY}"
    for run, shared in found.items():
        if resumed[run].get("command") != own.get("command"):
            return (
                f"an earlier training of this job, with another command, has the same {shared}: one may go on"
                f" from what the other saved; if it is another model, {_REMEDY}"
            )
    return ""


def _describe_shared(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    kinds = [kind for kind in ("ring", "milestone") if own.get(kind) and own.get(kind) == other.get(kind)]
    return f"{' and '.join(kinds)} directory" if kinds else ""
