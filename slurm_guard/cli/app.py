"""`slurm-guard`: incidents, checkpoints, batch script templates and how a log is understood.

Only the module of the command group that was asked for is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from slurm_guard import __version__
from slurm_guard.errors import SlurmGuardError, UsageError

GROUPS = {
    "incident": "slurm_guard.cli.incident",
    "checkpoint": "slurm_guard.cli.checkpoint",
    "template": "slurm_guard.cli.template",
    "log": "slurm_guard.cli.log",
}


def make_app(words: Sequence[str]) -> typer.Typer:
    """The app for this command line: with the group that it names, or with all of them for help."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_show)
    group = next((word for word in words if not word.startswith("-")), "")
    for name in [group] if group in GROUPS else GROUPS:
        app.add_typer(import_module(GROUPS[name]).app, name=name)
    return app


def _show(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """An emergency brake for distributed PyTorch training on Slurm."""
    if version:
        print(f"slurm-guard {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run slurm-guard; 2 for a wrong command line or setting, 1 for everything else that failed."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        make_app(words)(words, prog_name="slurm-guard")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except SlurmGuardError as error:
        print(f"slurm-guard: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
