"""`slurm-guard node history`: what happened on this node, and is it, or one of its GPUs, a lemon?"""

from __future__ import annotations

import json
import pwd
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_guard.cli.table import compose_table
from slurm_guard.config.load import SITE_FILE
from slurm_guard.config.site import load_site
from slurm_guard.errors import OutsideError, UsageError
from slurm_guard.hooks.ledger import Ledger
from slurm_guard.model.ledger import LedgerEntry
from slurm_guard.policy.lemon import Lemon, judge_lemons

_SHOWN = 50
_EVENTS = ("TIME", "NODE", "EVENT", "CHECK", "CLASS", "GPU SERIAL", "JOB", "USER")
_SCORES = ("SCORE", "LEMON", "NODE", "GPU SERIAL", "BECAUSE OF")


def history(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: all events, and all scores.")] = False,
    last: Annotated[
        int, typer.Option(metavar="N", min=1, help="Show the newest N events of the table.")
    ] = _SHOWN,
    ledger: Annotated[
        str, typer.Option(metavar="FILE", help="Another node's ledger. Default: that of this node.")
    ] = "",
) -> None:
    """Show what prolog, epilog and sweep found on this node, and the score of the node and of each GPU.

    What root has proved counts 1, the claim of a user a half, and both fade by the half-life of site.toml
    ([ledger]); from lemon_score on it is called a lemon. A GPU keeps its score by its serial number.
    """
    settings = load_site(SITE_FILE)
    path = Path(ledger) if ledger else Path(settings.state) / "ledger.jsonl"
    entries = _read(path)
    lemons = judge_lemons(
        entries, time.time(), half_life_days=settings.half_life_days, limit=settings.lemon_score
    )
    if as_json:
        print(json.dumps(_as_json(entries, lemons), indent=1))
    else:
        print("\n".join(_page(entries[-last:], lemons, len(entries))))


def _read(path: Path) -> tuple[LedgerEntry, ...]:
    try:
        entries = Ledger(path).read()
        known = bool(entries) or path.exists()
    except PermissionError:
        raise UsageError(f"{path} is for administrators: run this as root (sudo slurm-guard …)") from None
    except OSError as error:
        raise OutsideError(f"{path} cannot be read: {error.strerror or error}") from None
    if not known:
        raise UsageError(
            f"{path} does not exist: the hooks have not found anything on this node yet, "
            "or are not installed (slurm-guard site install)"
        )
    return entries


def _page(entries: Sequence[LedgerEntry], lemons: Sequence[Lemon], count: int) -> list[str]:
    if not entries:
        return ["nothing has happened on this node"]
    scores = [
        (
            f"{lemon.score:.2f}",
            "LEMON" if lemon.lemon else "no",
            lemon.node,
            lemon.gpu_serial or "-",
            lemon.why,
        )
        for lemon in lemons
    ]
    events_in_all = f"{count} event{'' if count == 1 else 's'}:"
    shown = f"the newest {len(entries)} of {events_in_all}" if count > len(entries) else events_in_all
    events = [_row(entry) for entry in entries]
    return [*compose_table([_SCORES, *scores]), "", shown, *compose_table([_EVENTS, *events])]


def _row(entry: LedgerEntry) -> tuple[str, ...]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time_s))
    user = "-" if entry.user_id is None else _name_user(entry.user_id)
    words = (entry.check, entry.cls, entry.gpu_serial, entry.job_id)
    return (at, entry.node, entry.kind.value, *(word or "-" for word in words), user)


def _name_user(user_id: int) -> str:
    """His name; the number where this machine knows none."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return str(user_id)


def _as_json(entries: Sequence[LedgerEntry], lemons: Sequence[Lemon]) -> dict[str, Any]:
    return {
        "scores": [{**asdict(lemon), "score": round(lemon.score, 3)} for lemon in lemons],
        "events": [{**asdict(entry), "kind": entry.kind.value} for entry in entries],
    }
