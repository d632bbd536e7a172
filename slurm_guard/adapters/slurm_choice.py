"""By which way administrators' commands ask Slurm: through pyslurm where it fits, else its own commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from slurm_guard.adapters.slurm_api import SlurmApi
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.errors import OutsideError
from slurm_guard.policy.doctor.slurm_conf import parse_scontrol_config
from slurm_guard.ports import Slurm


@dataclass(frozen=True, slots=True)
class SlurmChoice:
    """`by` is `pyslurm` or `commands`, `why` the reason for it; `pyslurm` its version, or empty."""

    slurm: Slurm
    by: str
    why: str
    pyslurm: str = ""


def find_pyslurm() -> str:
    """The version of the installed pyslurm, empty where there is none; it is not imported for that."""
    try:
        return metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return ""


def choose_slurm(
    environ: Mapping[str, str] | None = None,
    *,
    find: Callable[[], str] = find_pyslurm,
    interpreter: str = sys.executable,
) -> SlurmChoice:
    """The port for administrators' commands (`node drained`), and why it is this one.

    pyslurm is taken where it is of the running Slurm's release (major.minor), slurm.conf is a file here,
    and a child reached the controller by it. Guard, watchdog and hooks never ask this: they use `SlurmCli`,
    which answers ten times sooner and fits every release. Without pyslurm this costs nothing.
    """
    environ = os.environ if environ is None else environ
    commands, version = SlurmCli(environ=environ), find()
    if not version:
        return SlurmChoice(commands, "commands", "pyslurm is not installed")
    port = SlurmApi(environ=environ, interpreter=interpreter)
    amiss = _find_amiss(commands, port, version, environ)
    if amiss:
        return SlurmChoice(commands, "commands", amiss, version)
    return SlurmChoice(port, "pyslurm", f"pyslurm {version} is of the running Slurm's release", version)


def _find_amiss(commands: SlurmCli, port: SlurmApi, version: str, environ: Mapping[str, str]) -> str:
    """Why this pyslurm is not used; empty when it is."""
    try:
        config = parse_scontrol_config(commands.read_config())
    except OutsideError as error:
        return f"pyslurm {version} may not match: the controller could not be asked ({error})"
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if config.version is None or release != tuple(config.version[:2]):
        of = ".".join(f"{part:02}" for part in config.version[:2]) if config.version else "an unknown release"
        return f"pyslurm {version} does not match this Slurm, which is {of}"
    conf = environ.get("SLURM_CONF") or config.text("SLURM_CONF")
    if not conf or not Path(conf).is_file():
        return f"pyslurm {version} needs a slurm.conf here, and {conf or 'none'} is no file"
    try:
        lacking = port.look()
    except OutsideError as error:
        return f"pyslurm {version} cannot be used: {error}"
    return f"pyslurm {version} lacks {', '.join(lacking)}" if lacking else ""
