"""`slurm-guard checkpoint`: what there is to resume from."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from slurm_guard.checkpoint.choice import find_resume
from slurm_guard.checkpoint.foreign import Naming, parse_naming
from slurm_guard.cli.checkpoint_bytes import GONE, verify_entries
from slurm_guard.cli.checkpoint_entry import Entry, compose_entries, dump, show_size, to_json
from slurm_guard.cli.checkpoint_past import own_directories, own_trials
from slurm_guard.cli.checkpoint_place import Place, find_newest, group, look, newest_first, point_below
from slurm_guard.job.writer import plain
from slurm_guard.model.checkpoint import Checkpoint, Skipped
from slurm_guard.policy.restore import key_of
from slurm_guard.policy.trial import name_checkpoint

app = typer.Typer(no_args_is_help=True, help="What there is to resume from.")

_Directories = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIR]…",
        help="Directories that hold checkpoints, or checkpoints. Rings of several nodes are judged together. "
        "Default: those of the job around, its ring as it is on this node.",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Pattern = Annotated[
    str,
    typer.Option(
        "--pattern",
        metavar="NAME",
        help="Names that are checkpoints too: {iteration} stands for the number, * for anything. Those of "
        "Hugging Face Trainer, Lightning and torch.distributed.checkpoint are known.",
        show_default=False,
    ),
]
_Marker = Annotated[
    str,
    typer.Option(
        "--marker",
        metavar="FILE",
        help="The file that ends a checkpoint of --pattern: of an unknown layout none is believed without.",
        show_default=False,
    ),
]


@app.command()
def latest(
    directories: _Directories = None, pattern: _Pattern = "", marker: _Marker = "", as_json: _Json = False
) -> None:
    """Print the newest good checkpoint, every byte verified; exit 1 when there is none.

    In a job it is the newest of which this node has a part, if not all: the ranks find out what the others
    have.
    """
    places = look(directories, parse_naming(pattern, marker))
    if directories:
        chosen, resume_from, skipped = _choose(places)
    else:
        chosen, resume_from, skipped = _choose_own(places)
    said = [f"skipped {bad.directory}: {bad.reason}" for bad in skipped]
    if chosen is not None and not chosen.get("whole", True):
        said.append(f"of it {chosen['state']}; the ranks find out whether other nodes have the rest")
    if chosen is None:
        where = point_below(place for place in places if place.is_empty)
        said.append(f"no good checkpoint in {', '.join(place.directory for place in places)}{where}")
    body = {"resume_from": resume_from, "checkpoint": chosen, "skipped": [asdict(bad) for bad in skipped]}
    _answer(as_json, body, [chosen["directory"]] if chosen else [], said, failed=chosen is None)


@app.command("list")
def list_checkpoints(
    directories: _Directories = None, pattern: _Pattern = "", marker: _Marker = "", as_json: _Json = False
) -> None:
    """List checkpoints, newest first: sizes are compared, bytes are not read.

    A ring checkpoint is one line, whatever number of directories it is in: STATE says how much of it is here.
    """
    places = look(directories, parse_naming(pattern, marker))
    entries, problems = newest_first(places), _problems(places)
    bad = [Skipped(entry.directory, entry.fault) for entry in entries if entry.fault]
    body = {
        "checkpoints": [to_json(entry) for entry in entries if not entry.fault],
        "skipped": [asdict(skipped) for skipped in (*bad, *problems)],
    }
    lines = compose_entries(entries) if entries else []
    _answer(as_json, body, lines, _tell(places, problems), failed=bool(problems))


@app.command()
def show(
    directories: _Directories = None, pattern: _Pattern = "", marker: _Marker = "", as_json: _Json = False
) -> None:
    """Show a checkpoint in detail: its stamp, units, files, sizes and checksums. Of several, the newest."""
    from slurm_guard.cli.checkpoint_show import compose_details

    places = look(directories, parse_naming(pattern, marker))
    entries = newest_first(places)
    newest = (find_newest(place, entries) for place in places)
    shown = list({id(entry): entry for entry in newest if entry}.values())
    problems = _problems(places)
    if directories:
        empty = (place for place in places if place.is_empty and not place.problems)
        problems += [Skipped(p.directory, f"no checkpoints are there{point_below([p])}") for p in empty]
    body = {"checkpoints": [to_json(entry) for entry in shown], "skipped": [asdict(bad) for bad in problems]}
    lines = [line for entry in shown for line in (*compose_details(entry, time.time()), "")]
    _answer(as_json, body, lines[:-1], _tell(places, problems), failed=bool(problems) or not shown)


@app.command()
def verify(
    directories: _Directories = None, pattern: _Pattern = "", marker: _Marker = "", as_json: _Json = False
) -> None:
    """Read every byte of every checkpoint; exit 1 when one is bad, or when there is none."""
    places = look(directories, parse_naming(pattern, marker))
    entries, problems = newest_first(places), _problems(places)
    read = list(zip(entries, verify_entries(entries), strict=True))
    rows = []
    for entry, faults in read:
        bad = [Skipped(directory, fault) for directory, fault in faults.items() if fault != GONE]
        row = {"directory": entry.directory, "good": not bad, "reason": bad[0].reason if bad else entry.doubt}
        rows.append(row | {"size": entry.size, "bad": [asdict(one) for one in bad]})
    body = {"checkpoints": rows, "skipped": [asdict(bad) for bad in problems]}
    is_bad = not all(row["good"] for row in rows)
    lines = [plain(line) for entry, faults in read for line in _compose_verdict(entry, faults)]
    _answer(as_json, body, lines, _tell(places, problems), failed=is_bad or bool(problems) or not entries)


@app.command()
def prune(
    directories: _Directories = None,
    keep: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Keep of each directory the newest N, or as in milestone_keep: last N, every N, size N GB.",
        ),
    ] = "",
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Keep what is younger than this: 12h, 7d. With --keep both must allow it."
        ),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove; without it you only see what would be.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Remove old checkpoints of ours, and unfinished ones of dead writers.

    The newest good one always stays, every byte of it verified first; so does all that slurm-guard did not
    write, that is not whole, or that belongs to somebody else. Of a ring checkpoint all goes or nothing:
    where its parts are on several nodes, name the rings of all. Without --keep or --older-than only
    unfinished ones are removed.
    """
    from slurm_guard.cli.checkpoint_prune import (
        Rule,
        parse_age,
        parse_keep,
        plan_leftovers,
        plan_prune,
        remove_planned,
    )

    rule = Rule(parse_keep(keep), parse_age(older_than))
    places = look(directories, Naming())
    problems = _problems(places)
    problems += [
        Skipped(p.directory, "it is a checkpoint: name the directory above it") for p in places if p.single
    ]
    able = [place for place in places if not (place.single or place.problems)]
    plans = [plan_prune(one, rule, time.time()) for one in group(able)]
    plans += [plan_leftovers(place, time.time()) for place in able]
    problems += [Skipped(plan.directory, plan.refused) for plan in plans if plan.refused]
    problems += [bad for plan in plans for bad in remove_planned(plan)] if yes else []
    failed = {bad.directory for bad in problems}
    going = [one for plan in plans for one in plan.remove if failed.isdisjoint(one.paths)]
    staying = [one for plan in plans for one in plan.keep]
    body = {
        "removed": yes,
        "remove": [asdict(one) for one in going],
        "keep": [{"directory": one.directory, "reason": one.reason} for one in staying],
        "skipped": [asdict(bad) for bad in problems],
    }
    lines = [plain(f"keep     {one.directory}: {one.reason}") for one in staying]
    lines += [
        plain(f"{'removed' if yes else 'remove '}  {one.directory}{_size(one.size)}: {one.reason}")
        for one in going
    ]
    said = _tell(() if lines else places, problems)
    if going and not yes:
        said.append(f"{len(going)} would be removed; nothing was: add --yes")
    _answer(as_json, body, lines, said, failed=bool(problems))


def _answer(
    as_json: bool, body: dict[str, Any], lines: list[str], said: Iterable[str], *, failed: bool
) -> None:
    """Print the body as JSON, or the lines, and on stderr what else is to be said; exit 1 where it failed."""
    if as_json:
        print(dump(body))
    else:
        if lines:
            print("\n".join(lines))
        for line in said:
            print(plain(line), file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _tell(places: Sequence[Place], problems: Iterable[Skipped]) -> list[str]:
    said = [f"{bad.directory}: {bad.reason}" for bad in problems]
    if not said and places and all(place.is_empty for place in places):
        said.append(f"no checkpoints in {', '.join(p.directory for p in places)}{point_below(places)}")
    return said


def _choose(places: Sequence[Place]) -> tuple[dict[str, Any] | None, str, list[Skipped]]:
    """The newest good one of all kinds, what a resume calls it, and why newer ones are not good."""
    skipped = _problems(places)
    for entry in newest_first(places):
        why = entry.fault or (f"{entry.lack}; name the rings of all its nodes" if entry.lack else entry.doubt)
        if why:
            skipped.append(Skipped(entry.directory, why))
            continue
        (faults,) = verify_entries([entry])
        skipped += [Skipped(directory, fault) for directory, fault in faults.items()]
        good = entry.without(faults) if faults else entry
        if not good.lack:
            ours = good.found if isinstance(good.found, Checkpoint) else None
            return to_json(good), name_checkpoint(ours) if ours else good.directory, skipped
    return None, "", skipped


def _choose_own(places: Sequence[Place]) -> tuple[dict[str, Any] | None, str, list[Skipped]]:
    """What this node would resume its job from."""
    own = own_directories()
    choice = find_resume(own.milestone, own.ring, rescue_dir=own.rescue, trials=own_trials())
    chosen = None
    if choice.checkpoint:
        key = key_of(choice.checkpoint)
        entries = (
            e for e in newest_first(places) if isinstance(e.found, Checkpoint) and key_of(e.found) == key
        )
        entry = next(entries, None)
        chosen = to_json(entry) if entry else asdict(choice.checkpoint)
    return chosen, choice.resume_from, list(choice.skipped)


def _compose_verdict(entry: Entry, faults: dict[str, str]) -> list[str]:
    if faults:
        words = {True: "gone", False: "bad "}
        return [f"{words[fault == GONE]}  {directory}: {fault}" for directory, fault in faults.items()]
    note = ", ".join(filter(None, (entry.lack, entry.doubt)))
    return [f"good  {entry.directory}{_size(entry.size)}" + (f": {note}" if note else "")]


def _size(size: int | None) -> str:
    return "" if size is None else f" ({show_size(size)})"


def _problems(places: Iterable[Place]) -> list[Skipped]:
    return [problem for place in places for problem in place.problems]
