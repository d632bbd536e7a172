"""What of slurm-guard's own installation on this machine keeps it from working."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_guard.model.advice import Advice, Level
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig, parse_version

_IMPLY_CONTAIN = frozenset({"contain", "x11", "runinjob"})
PROGRAMS = ("srun", "scontrol", "scancel", "sbatch")


@dataclass(frozen=True, slots=True)
class PathReading:
    """A path of ours. `closed` and `loose` name the part of it that other users can't read, or can change."""

    path: str
    closed: str = ""
    loose: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """What was found on this machine.

    Texts are empty for what is not there or may not be read. `versions` holds what each program of Slurm
    says of itself, `py_spy` what py-spy does. `ptrace_scope` is None where the kernel has no such limit.
    `site_error` and `environment_faults` are sentences; `sudo_scontrol` is the file:line that lets people run
    scontrol as root, `pam_adopt` that which calls pam_slurm_adopt. `as_root`: what root finds is what all
    users will work with.
    """

    paths: tuple[PathReading, ...] = ()
    py_spy: str = "py-spy"
    ptrace_scope: int | None = None
    site_file: str = ""
    site_error: str = ""
    spool: PathReading | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    environment_faults: tuple[str, ...] = ()
    sudo_scontrol: str = ""
    pam_adopt: str = ""
    as_root: bool = False


def judge_installation(found: Installation, config: SlurmConfig | None) -> list[Advice]:
    """Every advice on it, beside the configuration where there is one."""
    return [
        *_judge_paths(found),
        *_judge_stacks(found),
        *_judge_site(found),
        *_judge_programs(found, config),
        *_judge_rights(found, config),
    ]


def _judge_paths(found: Installation) -> Iterator[Advice]:
    for path in found.paths:
        if path.closed and found.as_root:
            what = f"{path.closed} cannot be read by other users"
            why = f"{path.path} is needed by every job on every node"
            yield Advice("install-closed", Level.ERROR, what, why, path.closed, f"chmod a+rX {path.closed}")
        if path.loose:
            what = f"{path.loose} can be changed by other users"
            why = "whoever changes it runs code of his own in everybody's jobs"
            yield Advice("install-loose", Level.ERROR, what, why, path.loose, f"chmod go-w {path.loose}")
    if found.spool and found.spool.loose:
        what = f"{found.spool.loose} can be changed by other users"
        why = "they can put claims there in the name of any job"
        where = found.spool.loose
        yield Advice("spool-loose", Level.ERROR, what, why, where, f"chown root {where}; chmod 755 {where}")


def _judge_stacks(found: Installation) -> Iterator[Advice]:
    if not found.py_spy:
        what, why = "py-spy cannot be run", "a stall without stacks is judged by time alone"
        yield Advice("py-spy", Level.WARN, what, why, "the environment of slurm-guard", "pip install py-spy")
    if found.ptrace_scope:
        what = f"kernel.yama.ptrace_scope is {found.ptrace_scope}"
        why = "py-spy may not read the stacks of ranks; what faulthandler writes instead is all there is"
        line = "kernel.yama.ptrace_scope = 0"
        yield Advice("ptrace", Level.WARN, what, why, "/etc/sysctl.d/10-ptrace.conf", line)


def _judge_site(found: Installation) -> Iterator[Advice]:
    if found.site_error:
        why = "what is wrong does not count: jobs go by the defaults, and site install refuses it"
        yield Advice("site-file", Level.ERROR, found.site_error, why, found.site_file, "as the message says")
    for fault in found.environment_faults:
        why = "guarded-srun refuses a wrong value, and goes without one that it does not know"
        yield Advice("environment", Level.WARN, fault, why, "the environment", "as the message says")


def _judge_programs(found: Installation, config: SlurmConfig | None) -> Iterator[Advice]:
    running = config.version if config else None
    where = "the packages of Slurm on this machine"
    known = {name: parse_version(said) for name, said in found.versions.items() if said}
    missing = [name for name in found.versions if name not in known]
    if missing and known:
        what, why = f"{', '.join(missing)} not found", "guarded-srun starts, stops and requeues by them"
        yield Advice("program-missing", Level.ERROR, what, why, where, f"a PATH that has {missing[0]}")
    if len(set(known.values())) > 1:
        what = "; ".join(f"{name} is {found.versions[name]}" for name in known)
        why = "two Slurms are mixed up in PATH: steps fail in strange ways"
        yield Advice("program-mixed", Level.ERROR, what, why, where, "one release of all of them")
    newest = max((version for version in known.values() if version), default=None)
    if running and newest and newest[:2] > running[:2]:
        what = "the commands here are newer than the controller"
        why = "Slurm serves older commands, not newer ones"
        yield Advice("program-newer", Level.ERROR, what, why, where, "no newer than the controller's")


def _judge_rights(found: Installation, config: SlurmConfig | None) -> Iterator[Advice]:
    if found.sudo_scontrol:
        what, why = (
            "sudo lets people run scontrol",
            "whoever may do that as root or SlurmUser rules the cluster",
        )
        line = "no scontrol: guarded-srun needs no such right, and leaves a bad node out by ExcNodeList"
        yield Advice("sudo-scontrol", Level.NOTE, what, why, found.sudo_scontrol, line)
    flags = {flag.lower() for flag in config.words("PrologFlags")} if config else set()
    if found.pam_adopt and config and not flags & _IMPLY_CONTAIN:
        what = f"pam_slurm_adopt without PrologFlags=Contain ({found.pam_adopt})"
        why = "there is no extern step that a login could be put into: it is refused, or escapes the job"
        line = f"PrologFlags={','.join([*config.words('PrologFlags'), 'Contain'])}"
        yield Advice("pam-adopt", Level.WARN, what, why, "slurm.conf", line)


def find_line(pattern: str, text: str) -> int:
    """The number of the first line, comments left out, that the pattern is found in; 0 where none is.

    >>> find_line("scontrol", "# scontrol\\nops ALL=(root) /usr/bin/scontrol")
    2
    """
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if re.search(pattern, line.partition("#")[0])), 0)
