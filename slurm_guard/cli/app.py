"""`slurm-guard`: incidents, checkpoints, batch script templates and how a log is understood.

Only the module of the command that was asked for is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from slurm_guard import __version__
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.job.writer import plain

GROUPS = {
    "incident": "slurm_guard.cli.incident",
    "checkpoint": "slurm_guard.cli.checkpoint",
    "template": "slurm_guard.cli.template",
    "log": "slurm_guard.cli.log",
    "node": "slurm_guard.cli.node",
    "site": "slurm_guard.cli.site",
}
COMMANDS = {
    "scorecard": "slurm_guard.cli.scorecard",
    "replay": "slurm_guard.cli.replay",
    "watch": "slurm_guard.cli.watch",
    "doctor": "slurm_guard.cli.doctor",
}
"""Commands without a group, by module: each has a function of the command's name."""


def make_app(words: Sequence[str]) -> typer.Typer:
    """The app for this command line: with the command that it names, or with all of them for help."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_show)
    asked = next((word for word in words if not word.startswith("-")), "")
    known = {**GROUPS, **COMMANDS}
    for name, module in known.items() if asked not in known else [(asked, known[asked])]:
        if name in GROUPS:
            app.add_typer(import_module(module).app, name=name)
        else:
            app.command(name)(getattr(import_module(module), name))
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
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names and logs hold letters that not every locale has
    try:
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except SlurmGuardError as error:
        print(f"slurm-guard: {plain(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:
        return _give_up(error)


def _give_up(error: OSError) -> int:
    """The output goes nowhere (`| head`, a full disk); the end of Python would say so once more."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        about = f" ({error.filename})" if error.filename else ""
        print(f"slurm-guard: cannot go on{about}: {error.strerror or error}", file=sys.stderr)
    return 1


def _run(words: Sequence[str]) -> int:
    # click's UsageError, wherever this typer keeps click.
    wrong_usage: Any = typer.BadParameter.__base__
    try:
        code = make_app(words)(words, prog_name="slurm-guard", standalone_mode=False)
    except wrong_usage as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
            print(error.format_message(), file=sys.stderr)
            return 2
        path = error.ctx.command_path if error.ctx is not None else "slurm-guard"
        said = " ".join(error.format_message().split()).rstrip(".")
        raise UsageError(f"{said}: see {path} --help") from None
    except typer.Abort:
        print("slurm-guard: aborted", file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0
