"""The table of settings as options of a typer command. Loads typer: import it where that is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from slurm_guard.config.load import JOB_FILE
from slurm_guard.config.schema import Setting, flag_of

_METAVARS = {"int": "N", "float": "NUMBER", "str": "TEXT"}

CONFIG = (
    str | None,
    typer.Option(
        "--config", metavar="FILE", help=f"settings of this job; default: {JOB_FILE} where there is one"
    ),
    None,
)
"""The option that names a file of settings, as `give_options` takes it."""


def give_options(
    run: Callable[..., None], own: Mapping[str, tuple[Any, Any, Any]], settings: Iterable[Setting]
) -> None:
    """Let typer see these options as the keywords of `run`, which takes any: its `own`, each with its type,
    option and default, then one a setting, None where it is not given.
    """
    options = {**own, **{setting.name: (*_make_option(setting), None) for setting in settings}}
    run.__annotations__ = {name: Annotated[kind, option] for name, (kind, option, _) in options.items()}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=run.__annotations__[name]
            )
            for name, (_, _, default) in options.items()
        ]
    )


def _make_option(setting: Setting) -> tuple[Any, Any]:
    flag, about = flag_of(setting), setting.metadata
    if setting.type == "bool":
        return bool | None, typer.Option(f"{flag}/{flag.replace('--', '--no-', 1)}", help=about["text"])
    shown = f" (default {setting.default:g})" if setting.type in ("int", "float") else ""
    unit = "SECONDS" if setting.name.endswith("_s") else _METAVARS[str(setting.type)]
    metavar = "|".join(about["choices"]) or unit
    return str | None, typer.Option(flag, metavar=metavar, help=about["text"] + shown)
