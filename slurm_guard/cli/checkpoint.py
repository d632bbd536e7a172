"""`slurm-guard checkpoint`: what there is to resume from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from slurm_guard.checkpoint.choice import Choice, find_newest, find_resume
from slurm_guard.checkpoint.directory import plan_directories
from slurm_guard.checkpoint.manifest import read_checkpoints
from slurm_guard.model.checkpoint import Checkpoint, Skipped

app = typer.Typer(no_args_is_help=True, help="What there is to resume from.")

_Directories = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIR…]", help="Directories that hold checkpoints. Default: those of the job around."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def latest(directories: _Directories = None, as_json: _Json = False) -> None:
    """Print the newest good checkpoint, every byte verified; exit 1 when there is none."""
    if directories:
        choice = find_newest(directories)
    else:
        own = plan_directories(os.environ, os.getcwd())
        choice = find_resume(own.milestone, own.ring)
    if as_json:
        print(json.dumps(_as_json(choice), indent=1))
    else:
        for skipped in choice.skipped:
            typer.echo(f"skipped {skipped.directory}: {skipped.reason}", err=True)
        if choice.checkpoint is None:
            typer.echo(f"no good checkpoint in {', '.join(_default(directories))}", err=True)
        else:
            print(choice.checkpoint.directory)
    if choice.checkpoint is None:
        raise typer.Exit(1)


@app.command("list")
def list_checkpoints(directories: _Directories = None, as_json: _Json = False) -> None:
    """List checkpoints by iteration: sizes are compared, bytes are not read."""
    found: list[Checkpoint] = []
    skipped: list[Skipped] = []
    for directory in _default(directories):
        good, bad = read_checkpoints(directory)
        found.extend(good)
        skipped.extend(bad)
    found.sort(key=lambda checkpoint: checkpoint.iteration)
    if as_json:
        body = {"checkpoints": [asdict(c) for c in found], "skipped": [asdict(s) for s in skipped]}
        print(json.dumps(body, indent=1))
        return
    if found:
        print(f"{'iteration':>10}  {'kind':9}  {'loss':>10}  {'size':>10}  {'written':19}  directory")
    for checkpoint in found:
        print(_row(checkpoint))
    for bad_one in skipped:
        typer.echo(f"no checkpoint: {bad_one.directory}: {bad_one.reason}", err=True)
    if not found:
        typer.echo(f"no checkpoints in {', '.join(_default(directories))}", err=True)


def _default(directories: list[str] | None) -> list[str]:
    own = plan_directories(os.environ, os.getcwd())
    return directories or [own.ring, own.milestone]


def _as_json(choice: Choice) -> dict[str, Any]:
    return {
        "resume_from": choice.resume_from,
        "checkpoint": asdict(choice.checkpoint) if choice.checkpoint else None,
        "skipped": [asdict(skipped) for skipped in choice.skipped],
    }


def _row(checkpoint: Checkpoint) -> str:
    loss = (
        "not finite" if not checkpoint.finite else "" if checkpoint.loss is None else f"{checkpoint.loss:.4f}"
    )
    size_mb = sum(part.size for part in checkpoint.parts) / 1e6
    written = datetime.fromtimestamp(checkpoint.written_s).isoformat(" ", "seconds")
    kind, iteration = checkpoint.kind.value, checkpoint.iteration
    return f"{iteration:>10}  {kind:9}  {loss:>10}  {size_mb:>7.2f} MB  {written:19}  {checkpoint.directory}"
