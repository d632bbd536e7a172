"""`slurm-guard incident`: what crossed a red line, and what was done about it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_guard.adapters.files import read_regular
from slurm_guard.cli.table import compose_table
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.job.writer import plain
from slurm_guard.model.incident import SCHEMA, STAGES
from slurm_guard.policy.rescue import describe_size

app = typer.Typer(no_args_is_help=True, help="What crossed a red line, and what was done about it.")

_StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A state directory, or one that holds some. Default: SLURM_GUARD_STATE_DIR or slurm-guard.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_KINDS = {"incident": str, "job_id": str, "breach": dict, "stages": dict, "suspects": list}
_LATEST_S = 2**33
_HEAD = ("INCIDENT", "JOB", "WHEN", "RED LINE", "WHERE", "KILLED AFTER", "RECOVERY", "VERDICT")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that should hold an incident and doesn't."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """An incident's document and its fault folder."""

    folder: Path
    body: dict[str, Any]

    @property
    def name(self) -> str:
        """Unlike in the document, unique among several jobs: JOB/INCIDENT."""
        return f"{self.body['job_id']}/{self.body['incident']}"

    def seconds(self, stage: str) -> float | None:
        """Seconds from the breach to this stage; None where either did not happen."""
        at, breach = self.body["stages"].get(stage), self.body["stages"].get("breach")
        return None if at is None or breach is None else at - breach

    def as_json(self) -> dict[str, Any]:
        """The document, where it lies, and what lies beside it."""
        return {**self.body, "folder": str(self.folder), "files": self.files()}

    def files(self) -> list[str]:
        """The files of the fault folder, relative to it."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@app.command("list")
def list_incidents(state_dir: _StateDir = None, as_json: _Json = False) -> None:
    """Show all incidents in a table, oldest first."""
    found, unreadable = read_incidents(_readable(_directory(state_dir)))
    if as_json:
        body = [incident.as_json() for incident in found]
        lost = [{"file": lost.file, "reason": lost.reason} for lost in unreadable]
        print(json.dumps({"incidents": body, "unreadable": lost}, indent=1))
        return
    _warn(unreadable)
    if found:
        for line in compose_table([_HEAD, *map(_row, found)]):
            print(line)
    else:
        print(f"no incidents in {_directory(state_dir)}", file=sys.stderr)


@app.command()
def show(
    incident: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", help="JOB, its name, or JOB/NAME; the beginning will do. Default: newest."
        ),
    ] = "",
    state_dir: _StateDir = None,
    as_json: _Json = False,
) -> None:
    """Show one incident: its stages, evidence, suspects and files."""
    found, unreadable = read_incidents(_directory(state_dir))
    _warn(unreadable)
    chosen = choose_incident(found, incident, _directory(state_dir))
    if others := [one.name for one in found if one.body["job_id"] == incident and one is not chosen]:
        said = (
            f"the newest of {len(others) + 1} of job {incident}: {chosen.name}; there are {', '.join(others)}"
        )
        print(f"slurm-guard: {said} too", file=sys.stderr)
    if as_json:
        print(json.dumps(chosen.as_json(), indent=1))
        return
    for line in _page(chosen):
        print(line)


def read_incidents(directory: Path) -> tuple[list[Found], list[Unreadable]]:
    """Every incident of one state directory or of those in `directory`, by time; and what can't be read."""
    files = [*directory.glob("faults/*/incident.json"), *directory.glob("*/faults/*/incident.json")]
    found: list[Found] = []
    unreadable: list[Unreadable] = []
    for file in files:
        try:
            found.append(Found(file.parent, parse_incident(read_regular(file).decode())))
        except (OSError, ValueError) as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            unreadable.append(Unreadable(str(file), reason))
    found.sort(key=lambda one: (one.body["stages"].get("breach") or 0.0, one.name))
    return found, sorted(unreadable, key=lambda one: one.file)


def parse_incident(text: str) -> dict[str, Any]:
    """The document in incident.json.

    Raises:
        ValueError: it is no JSON, of a newer schema, or not an incident; the text says which.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("no JSON (half-written?)" if text.strip() else "empty") from None
    schema = body.get("schema") if isinstance(body, dict) else None
    wrong = ""
    if type(schema) is not int:
        wrong = "it has no schema"
    elif schema > SCHEMA:
        wrong = f"its schema {schema} is newer than this slurm-guard, which reads up to {SCHEMA}"
    wrong = wrong or next((f"{key} is missing or wrong" for key in _KINDS if not _fits(body, key)), "")
    if wrong:
        raise ValueError(f"not an incident: {wrong}")
    return dict(body)


def _fits(body: dict[str, Any], key: str) -> bool:
    value = body.get(key)
    if key == "stages" and isinstance(value, dict):
        return all(at is None or (type(at) in (int, float) and 0 <= at < _LATEST_S) for at in value.values())
    return isinstance(value, _KINDS[key])


def _readable(directory: Path) -> Path:
    """The directory, if it can be looked into; nothing there yet is no fault.

    Raises:
        SlurmGuardError: it is somebody else's, or no directory.
    """
    try:
        os.listdir(directory)
    except FileNotFoundError:
        return directory
    except OSError as error:
        raise SlurmGuardError(f"{directory} cannot be read: {error.strerror}") from None
    return directory


def choose_incident(found: list[Found], name: str, directory: Path) -> Found:
    """The incident of this name or beginning; the newest of that job, or of all without a name.

    Raises:
        UsageError: the name fits none or several.
        SlurmGuardError: there are no incidents.
    """
    if not found:
        raise SlurmGuardError(f"no incidents in {directory}: name the state directory with --state-dir")
    if not name:
        return found[-1]
    if of_job := [one for one in found if one.body["job_id"] == name]:
        return of_job[-1]
    exact = [one for one in found if name in (one.name, one.body["incident"])]
    fits = exact or [
        one for one in found if one.name.startswith(name) or one.body["incident"].startswith(name)
    ]
    if len(fits) == 1:
        return fits[0]
    names = ", ".join(one.name for one in fits or found)
    raise UsageError(f"{name!r} is {'more than one' if fits else 'no'} incident: choose one of {names}")


def _directory(given: Path | None) -> Path:
    return given or Path(os.environ.get("SLURM_GUARD_STATE_DIR") or "slurm-guard")


def _warn(unreadable: Iterable[Unreadable]) -> None:
    for lost in unreadable:
        print(f"slurm-guard: {plain(f'{lost.file}: {lost.reason}')}", file=sys.stderr)


def _row(one: Found) -> tuple[str, ...]:
    breach, body = one.body["breach"], one.body
    recovery = f"{body.get('recovery') or '-'}{' (observed)' if body.get('observe') else ''}"
    return (
        body["incident"],
        body["job_id"],
        _time(body["stages"].get("breach")),
        f"{breach.get('red_line')}: {breach.get('kind', '')}",
        _where(breach),
        _seconds(one.seconds("killed")),
        recovery,
        str(body.get("verdict") or "-"),
    )


def _page(one: Found) -> list[str]:
    breach, body = one.body["breach"], one.body
    run = f"attempt {body.get('attempt')}, step {body.get('step_id')}"
    lines = [
        f"{body['incident']} of job {body['job_id']}, {run}",
        f"  red line   {breach.get('red_line')}: {breach.get('kind', '')} ({breach.get('value')})",
        f"  where      {_where(breach)}, iteration {_known(breach.get('iteration'))}",
        *_gpu(breach.get("gpu")),
        f"  evidence   {_known(breach.get('evidence'))}",
        f"  suspects   {', '.join(map(str, body['suspects'])) or 'none'}",
        f"  recovery   {body.get('recovery') or '-'}{' (observe: not done)' if body.get('observe') else ''}",
        f"  verdict    {body.get('verdict') or '-'}",
        *_rescue(body.get("rescue")),
        *([f"  outcome    {_outcome(body)}"] if body.get("observe") else []),
        "",
        "STAGE             TIME                  AFTER BREACH",
    ]
    for stage in STAGES:
        at = body["stages"].get(stage)
        lines.append(f"{stage:16}  {_time(at):20}  {_seconds(one.seconds(stage)):>12}")
    return [plain(line) for line in [*lines, "", f"FILES in {one.folder}", *(f"  {f}" for f in one.files())]]


def _where(breach: dict[str, Any]) -> str:
    node, rank = breach.get("node"), breach.get("rank")
    return " ".join([*([str(node)] if node else []), *([f"rank {rank}"] if rank is not None else [])]) or "-"


def _gpu(gpu: object) -> list[str]:
    """The GPU of a hardware breach, by which check, and what mends it."""
    if not isinstance(gpu, dict):
        return []
    said = f"{_known(gpu.get('check'))}, limit {_known(gpu.get('limit'))}, class {_known(gpu.get('cls'))}"
    return [f"  gpu        {_known(gpu.get('gpu'))} {_known(gpu.get('uuid'))}: {said}"]


def _rescue(told: object) -> list[str]:
    """What was carried to shared storage before the job left its nodes."""
    if not isinstance(told, dict):
        return []
    count, copied, seconds = (told.get(key) for key in ("bytes", "copied", "seconds"))
    if not isinstance(count, int) or not isinstance(copied, int) or not isinstance(seconds, (int, float)):
        return []
    size = describe_size(count) if copied == count else f"{describe_size(copied)} of {describe_size(count)}"
    why = f", not whole: {told['reason']}" if told.get("reason") else ""
    return [f"  rescue     iteration {_known(told.get('iteration'))}, {size} in {seconds:.1f} s{why}"]


def _outcome(body: dict[str, Any]) -> str:
    """What became of an observed breach; the beginning says it in one word."""
    told = body.get("outcome")
    if not isinstance(told, dict):
        return "open: not known yet, or nobody saw it"
    after_s = told.get("after_s")
    after = f" after {after_s:.1f} s" if type(after_s) in (int, float) else ""
    return f"{_known(told.get('outcome'))}{after}: {_known(told.get('how'))}"


def _known(value: object) -> str:
    return "-" if value is None else str(value)


def _time(at_s: float | None) -> str:
    return "-" if at_s is None else datetime.fromtimestamp(at_s).isoformat(" ", "seconds")


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
