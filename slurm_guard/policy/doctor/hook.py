"""What of prolog, epilog and health check hurts: their settings in slurm.conf, and the programs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_guard.model.advice import Advice, Level
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig, Version
from slurm_guard.policy.site_kit import SETTINGS

CONF = "slurm.conf"
HOOK_KEYS = ("Prolog", "Epilog", "HealthCheckProgram")
"""The settings that name programs which slurmd runs as root on every node."""

_COMPILED_CONF = "/etc/slurm/slurm.conf"
_IMPLY_ALLOC = frozenset({"alloc", "contain", "x11", "runinjob", "forcerequeueonfail"})
_STRAY = re.compile(r"(~|\.(bak|orig|rej|swp|tmp|md|txt)|\.(dpkg|rpm|ucf)-?\w+|/readme[^/]*)$", re.IGNORECASE)
_SHELL = re.compile(r"#!.*\b(ba|da|k|z)?sh\b")
_SLURM = re.compile(
    r"^[^#\n]*?(?<![\w.-])(scontrol(?!\s+update)|sinfo|squeue|scancel|sacct)(?![\w.-])", re.MULTILINE
)
_BARE = re.compile(
    r"^[^#\n]*?(?<![\w/.-])(scontrol|sinfo|squeue|scancel|sacct|nvidia-smi|dcgmi)(?![\w/.-])", re.MULTILINE
)
_FAULTS: tuple[tuple[Version, Version, str], ...] = (
    ((22, 5, 0), (22, 5, 4), "kills a prolog or epilog that has redirected its stdout"),
    ((23, 2, 0), (23, 2, 3), "may wait for ever for a prolog or epilog that is gone"),
    ((23, 2, 3), (23, 2, 5), "kills what a prolog or epilog has started as soon as it ends"),
    ((24, 5, 0), (24, 5, 1), "gives prologs of large arrays up too early, and drains their nodes"),
    ((25, 5, 0), (25, 5, 1), 'drains nodes with "Kill task failed" without a cause'),
    ((25, 11, 0), (25, 11, 4), "loses the end of a prolog or epilog: jobs stay in CG"),
)


@dataclass(frozen=True, slots=True)
class HookFile:
    """One program that a setting names. `loose` is the path (itself or a folder above it) that somebody
    other than root may change, empty if there is none."""

    path: str
    executable: bool
    loose: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class HookPattern:
    """What one path or pattern of a setting stands for on this machine; `here`: its folder exists."""

    key: str
    pattern: str
    here: bool
    files: tuple[HookFile, ...] = ()


def judge_fault(config: SlurmConfig) -> Advice | None:
    """Releases that are known to lose jobs or nodes around prolog and epilog."""
    version = config.version
    if version is None or not _has_hooks(config):
        return None
    found = [(mended, what) for first, mended, what in _FAULTS if first <= version < mended]
    if not found and "runinjob" in _flags(config) and version < (25, 11, 6):
        found = [((25, 11, 6), "leaves jobs with PrologFlags=RunInJob in CG")]
    if not found:
        return None
    (major, minor, patch), what = found[0]
    return Advice(
        "version-fault",
        Level.ERROR,
        f"Slurm {version[0]}.{version[1]:02}.{version[2]} has a known fault",
        f"it {what}",
        "the packages of Slurm",
        f"{major}.{minor:02}.{patch} or newer",
    )


def judge_hook_timeout(config: SlurmConfig) -> Advice | None:
    """A prolog or epilog that hangs holds its node and its job; one that is cut off drains the node."""
    own = [(key, config.number(f"{key}Timeout")) for key in ("Prolog", "Epilog") if config.text(key)]
    common = config.number("PrologEpilogTimeout")
    for key, own_s in own:
        limit_s = common if own_s is None or own_s == math.inf else own_s
        if limit_s is None or 30 <= limit_s <= 120:
            continue
        endless = limit_s == math.inf
        return Advice(
            "hook-timeout",
            Level.WARN,
            f"{key} has no time limit" if endless else f"{key} has a time limit of {limit_s:g} s",
            "one that is cut off too early drains its node"
            if limit_s < 30
            else "one that hangs holds its node, and the job in CG or CF, all that time",
            CONF,
            "PrologEpilogTimeout=60 (30 to 120)",
        )
    return None


def judge_prolog_flags(config: SlurmConfig) -> Advice | None:
    """When the prolog runs, and whether the job waits for those of all its nodes."""
    if not config.text("Prolog"):
        return None
    flags = _flags(config)
    alloc = bool(flags & _IMPLY_ALLOC) or ("deferbatch" in flags and config.since(26, 5))
    if alloc and "deferbatch" in flags:
        return None
    missing = [name for name in ("Alloc", "DeferBatch") if not (alloc and name == "Alloc")]
    missing = [name for name in missing if name.lower() not in flags]
    return Advice(
        "prolog-flags",
        Level.WARN,
        f"PrologFlags lacks {' and '.join(missing)}",
        "the batch script starts before the prologs of all nodes are done"
        if alloc
        else "the prolog waits for the first step: a node is given to a job unchecked",
        CONF,
        f"PrologFlags={','.join([*config.words('PrologFlags'), *missing])}",
    )


def judge_prolog_hold(config: SlurmConfig) -> Advice | None:
    """What becomes of a job whose node is refused by the prolog."""
    free = config.option("SchedulerParameters", "nohold_on_prolog_fail") is not None
    if free and config.before(23, 2):
        return Advice(
            "prolog-hold",
            Level.ERROR,
            "nohold_on_prolog_fail with a Slurm before 23.02",
            "a job whose prolog fails starts again without a limit, and drains a node each time",
            CONF,
            "SchedulerParameters without nohold_on_prolog_fail",
        )
    if free or not config.text("Prolog") or not config.since(23, 2):
        return None
    return Advice(
        "prolog-hold",
        Level.NOTE,
        "SchedulerParameters lacks nohold_on_prolog_fail",
        "a job whose node is refused by the prolog is held until somebody releases it",
        CONF,
        f"SchedulerParameters={','.join([*config.words('SchedulerParameters'), 'nohold_on_prolog_fail'])}",
    )


def judge_controller_prolog(config: SlurmConfig) -> Advice | None:
    """A failing PrologSlurmctld is tried without end."""
    if not config.text("PrologSlurmctld"):
        return None
    return Advice(
        "prolog-slurmctld",
        Level.NOTE,
        f"PrologSlurmctld is {config.text('PrologSlurmctld')}",
        "when it fails the job is requeued at once and without a limit: it is no place to check nodes",
        CONF,
        "PrologSlurmctld without checks of nodes (these belong into Prolog)",
    )


def judge_health_interval(config: SlurmConfig) -> Advice | None:
    """A health check that never runs."""
    if not config.text("HealthCheckProgram") or config.number("HealthCheckInterval") != 0:
        return None
    return Advice(
        "health-interval",
        Level.WARN,
        "HealthCheckInterval is 0",
        "HealthCheckProgram runs when slurmd starts and never again",
        CONF,
        "HealthCheckInterval=300",
    )


HOOK_RULES = (
    judge_fault,
    judge_hook_timeout,
    judge_prolog_flags,
    judge_prolog_hold,
    judge_controller_prolog,
    judge_health_interval,
)


def judge_hooks(patterns: tuple[HookPattern, ...], conf: str, *, installed: bool = True) -> list[Advice]:
    """Every advice on the programs themselves; of folders that are not on this machine nothing is known.

    `conf` is the path of slurm.conf, which a health check is not told; `installed` is whether slurm-guard's
    own hooks are on this machine: where they are not, `judge_kit` says what there is to say of that.
    """
    said: list[Advice] = []
    for pattern in patterns:
        elsewhere = not installed and pattern.pattern.startswith(f"/{SETTINGS}/")
        if pattern.here and not pattern.files and not elsewhere:
            health = pattern.key == "HealthCheckProgram"
            what = f"{pattern.key}={pattern.pattern} matches no file"
            why = "no node is checked" if health else "every node that should run it is drained"
            line = f"{pattern.key}= a program that is there"
            said.append(Advice("hook-missing", Level.ERROR, what, why, CONF, line))
        for file in pattern.files:
            said += _judge_file(pattern, file)
            if _SHELL.match(file.text):
                said += _judge_shell(pattern.key, file, conf)
    return said


def _judge_file(pattern: HookPattern, file: HookFile) -> Iterator[Advice]:
    where, key = file.path, pattern.key
    if file.loose:
        what, why = f"{file.loose} can be changed by others than root", f"root runs {file.path} on every node"
        line = f"chown root {file.loose}; chmod go-w {file.loose}"
        yield Advice("hook-loose", Level.ERROR, what, why, file.loose, line)
    if pattern.pattern != file.path and _STRAY.search(file.path):
        what, why = f"{file.path} looks like a leftover", f"everything that matches {key} is executed"
        yield Advice("hook-stray", Level.ERROR, what, why, where, f"rm {file.path}")
    elif not file.executable:
        what, why = f"{file.path} is not executable", f"{key} fails on every node"
        yield Advice("hook-executable", Level.ERROR, what, why, where, f"chmod 755 {file.path}")


def _judge_shell(key: str, file: HookFile, conf: str) -> Iterator[Advice]:
    where = file.path
    if (bare := _BARE.search(file.text)) and not re.search(r"(?<!\w)PATH=", file.text):
        what, why = f"{bare[1]} is called without its path", f"slurmd gives {key} no PATH: it is not found"
        yield Advice("hook-path", Level.WARN, what, why, where, "PATH=/usr/bin:/bin; export PATH")
    if key == "Prolog" and (slurm := _SLURM.search(file.text)):
        what, why = f"{file.path} calls {slurm[1]}", "a slow controller then holds every job that starts"
        yield Advice("prolog-calls-slurm", Level.NOTE, what, why, where, f"no {slurm[1]} where all is well")
    health = key == "HealthCheckProgram" and conf != _COMPILED_CONF
    if health and "SLURM_CONF" not in file.text and re.search(r"\bscontrol\b", file.text):
        what, why = f"{file.path} calls scontrol without SLURM_CONF", f"{key} is not told that it is {conf}"
        yield Advice("hook-conf", Level.WARN, what, why, where, f"SLURM_CONF={conf}; export SLURM_CONF")


def _has_hooks(config: SlurmConfig) -> bool:
    return bool(config.text("Prolog") or config.text("Epilog"))


def _flags(config: SlurmConfig) -> frozenset[str]:
    return frozenset(word.lower() for word in config.words("PrologFlags"))
