"""The installed hooks as the doctor sees them: what is left of them, and what the prolog would say now."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_guard.adapters.installation import find_page_fault
from slurm_guard.adapters.site_kit import SiteKit
from slurm_guard.config.compiled import load_compiled
from slurm_guard.errors import ConfigError, SlurmGuardError, UsageError
from slurm_guard.policy.doctor.hook import HookPattern
from slurm_guard.policy.doctor.site_kit import InstalledKit
from slurm_guard.policy.site_kit import (
    COMPILED,
    EPILOG,
    EXPECTED,
    HEALTH_CHECK,
    OFF,
    PROLOG,
    SETTINGS,
    SITE,
    plan_hooks,
)

_SCRIPTS = (PROLOG, EPILOG, HEALTH_CHECK)
_SOURCES = (SITE, f"{SETTINGS}/gpu-profiles.toml", f"{SETTINGS}/xid.toml")
_CALL = re.compile(r"^\(exec (.*?) -I -m slurm_guard\.hooks ", re.MULTILINE)
_CONF = re.compile(r"^SLURM_CONF=\$\{SLURM_CONF:-(.*)\}$", re.MULTILINE)
_DEADLINE_S = 150.0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the prolog's script did: its code (77 refuses), its words, and how long it took."""

    code: int
    said: str
    seconds: float


def read_kit(root: Path = Path("/")) -> InstalledKit | None:
    """What is installed; None where nothing is.

    Raises:
        SlurmGuardError: the record of it cannot be read.
    """
    kit = SiteKit(root)
    scripts = [name for name in _SCRIPTS if name in kit.record.files]
    if not scripts:
        return None
    off = [name for name in kit.find_changed() if name in scripts]
    return InstalledKit(
        gone=tuple(str(root / name) for name in off if not (root / name).exists()),
        changed=tuple(str(root / name) for name in off if (root / name).exists()),
        interpreters=tuple(sorted({_find_dead(root / name) for name in scripts} - {""})),
        newer=tuple(
            str(root / name) for name in _SOURCES if _read_time(root / name) > _read_time(root / COMPILED)
        ),
        unread=_read_fault(root / COMPILED),
        off=os.path.lexists(root / OFF),
        page=_read_page_fault(root),
        expected=_read_expected_fault(root / EXPECTED),
        deadlines_s=_read_deadlines(root / COMPILED),
        slurm_conf=_find_conf(root / HEALTH_CHECK),
    )


def find_linked(patterns: Iterable[HookPattern], root: Path = Path("/")) -> frozenset[str]:
    """The settings of slurm.conf whose files are, links followed, the installed scripts."""
    scripts = {os.path.realpath(root / name) for name in _SCRIPTS}
    return frozenset(
        pattern.key
        for pattern in patterns
        if any(os.path.realpath(file.path) in scripts for file in pattern.files)
    )


def _find_dead(script: Path) -> str:
    """The interpreter that the script calls, where it cannot be run."""
    words = shlex.split(_search(_CALL, script))
    return "" if not words or os.access(words[-1], os.X_OK) else words[-1]


def _find_conf(script: Path) -> str:
    return "".join(shlex.split(_search(_CONF, script)))


def _search(pattern: re.Pattern[str], script: Path) -> str:
    """What the group of the pattern holds; empty where it is not there, or the script is not."""
    try:
        found = pattern.search(script.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def _read_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_deadlines(path: Path) -> dict[str, float]:
    """By when each script has ended: a second after its program is told to."""
    try:
        prolog, epilog, _ = plan_hooks(load_compiled(path).settings)
    except ConfigError:
        return {}
    return {"Prolog": prolog.deadline_s + 1, "Epilog": epilog.deadline_s + 1}


def _read_page_fault(root: Path) -> str:
    try:
        return find_page_fault(load_compiled(root / COMPILED).settings.page, root)
    except ConfigError:
        return ""


def _read_expected_fault(path: Path) -> str | None:
    """Why the number cannot be read; None where there is none."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}"
    return "" if text.isdecimal() else f"{path} holds {text[:40]!r}, no number"


def _read_fault(path: Path) -> str:
    try:
        load_compiled(path)
    except ConfigError as error:
        return str(error)
    return ""


def rehearse(environ: Mapping[str, str], root: Path = Path("/")) -> Rehearsal:
    """Run the installed prolog as slurmd does, with the word that it may touch nothing.

    Raises:
        UsageError: none is installed here.
        SlurmGuardError: it gave no answer, or cannot be run.
    """
    script = root / PROLOG
    if not script.exists():
        raise UsageError(f"{script} is not here: slurm-guard site install puts it on the node")
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            [str(script), "--dry"],
            env=_as_slurmd(environ),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmGuardError(f"{script} gave no answer in {_DEADLINE_S:g} s") from None
    except OSError as error:
        raise SlurmGuardError(f"{script} cannot be run: {error.strerror}") from None
    said = " ".join(done.stdout.decode(errors="replace").split())
    return Rehearsal(done.returncode, said, time.monotonic() - started_s)


def _as_slurmd(environ: Mapping[str, str]) -> dict[str, str]:
    """All that a prolog is told, of a job that there is none of."""
    node = environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    conf = {"SLURM_CONF": environ["SLURM_CONF"]} if environ.get("SLURM_CONF") else {}
    numbers = dict.fromkeys(("SLURM_JOB_UID", "SLURM_UID", "SLURM_JOB_GID"), "65534")
    job = dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "0")
    context = {"SLURM_JOB_USER": "nobody", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_WORK_DIR": "/"}
    return {"SLURMD_NODENAME": node, **conf, **job, **numbers, **context}
