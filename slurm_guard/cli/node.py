"""`slurm-guard node`: is this node fit to run jobs?"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_guard.adapters.gpu_health import NvmlHealth
from slurm_guard.adapters.host_health import read_host
from slurm_guard.cli.drained import drained
from slurm_guard.cli.history import history
from slurm_guard.cli.table import compose_table
from slurm_guard.cli.xid import read_own, xid
from slurm_guard.config.load import SITE_FILE, load_settings
from slurm_guard.config.profile import SITE_PROFILES, load_profiles
from slurm_guard.config.schema import nearest
from slurm_guard.config.site import load_site
from slurm_guard.config.xid import SITE_FILE as XID_FILE
from slurm_guard.config.xid import load_xid_table
from slurm_guard.errors import OutsideError, UsageError
from slurm_guard.hooks.context import read_node_name
from slurm_guard.hooks.judgement import list_scratch
from slurm_guard.job.writer import plain
from slurm_guard.model.health import (
    Finding,
    Fitness,
    GpuReading,
    HealthClass,
    HealthReading,
    Level,
    NodeVerdict,
)
from slurm_guard.policy.health.check import skip
from slurm_guard.policy.health.hang import find_doubts
from slurm_guard.policy.health.kernel_log import judge_kernel_log
from slurm_guard.policy.health.link import wants_fabric_manager
from slurm_guard.policy.health.node import judge_node

app = typer.Typer(no_args_is_help=True, help="The health of this node.")
app.command()(xid)
app.command()(history)
app.command()(drained)

_CODES = {Fitness.HEALTHY: 0, Fitness.WARN: 0, Fitness.UNFIT: 1, Fitness.UNKNOWN: 2}
_ORDER = (Level.FAIL, Level.WARN, Level.SKIPPED)
_LOG = "xid"
_TO_DO = {
    HealthClass.APPLICATION: "no hardware; set right or clear up what the line names",
    HealthClass.RESTART: "start again what the line names (job or service); note the node if it comes back",
    HealthClass.RESET: "let its jobs end, then nvidia-smi --gpu-reset, and check again",
    HealthClass.REBOOT: "drain the node, boot it (power off where a GPU is lost), and check again",
    HealthClass.REPLACE: "drain the node, open a ticket with an nvidia-bug-report, have the part replaced",
}
"""What a person does about each class."""
_HEAD = ("LEVEL", "CHECK", "GPU", "CLASS", "EVIDENCE")


@app.command()
def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Judge every GPU by this profile. Default: by its model.")
    ] = "",
    timeout_s: Annotated[
        float, typer.Option(min=0.5, max=300, help="Deadline of the GPU probe in seconds.")
    ] = 8.0,
) -> None:
    """Judge this node: healthy, warn, unfit or unknown, and what mends it.

    Its GPUs and what the kernel log says of them since the driver was loaded, network file systems, scratch
    space, InfiniBand ports and the clock.

    Leaves with 0 for healthy and warn, 1 for unfit, 2 where the node could not be judged. Profiles are those
    of site-config/gpu-profiles.toml and of /etc/slurm-guard/gpu-profiles.toml.
    """
    profiles = load_profiles(SITE_PROFILES)
    names = [known.name for known in profiles]
    if profile and profile not in names:
        raise UsageError(f"--profile {profile} is no profile: {nearest(profile, names)}")
    reading = NvmlHealth(timeout_s, forked=True).read()
    host = read_host(scratch=_list_scratch(), fabric=wants_fabric_manager(reading))
    verdict = judge_node(reading, profiles, profile or None, host=host, log=judge_log(reading))
    print(json.dumps(_as_json(verdict, reading), indent=1) if as_json else _page(verdict, reading))
    raise typer.Exit(_CODES[verdict.fitness])


def judge_log(reading: HealthReading) -> Sequence[Finding]:
    """What the kernel log says of these GPUs since the driver was loaded."""
    table = load_xid_table(XID_FILE if XID_FILE.exists() else None)
    try:
        records = read_own().records
    except OutsideError as error:
        return [skip("xid", None, str(error))]
    return judge_kernel_log(records, reading, table)


def _list_scratch() -> list[str]:
    site = SITE_FILE if SITE_FILE.exists() else None
    of_jobs, _ = load_settings(site=site, job_file=None, environment={}, flags={})
    return list_scratch(load_site(), of_jobs.ring_dir)


def _read_boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _as_json(verdict: NodeVerdict, reading: HealthReading) -> dict[str, Any]:
    return {
        "node": read_node_name(os.environ),
        "boot_id": _read_boot_id(),
        "verdict": verdict.fitness.value,
        "class": verdict.cls and verdict.cls.value,
        "gpus": [
            {"index": gpu.index, "uuid": _known(gpu.uuid), "bus_id": _known(gpu.bus_id),
             "serial": _known(gpu.serial), "verdict": verdict.gpus[gpu.index].value}
            for gpu in reading.gpus
        ],
        "findings": [_finding_as_json(finding) for finding in verdict.findings],
    }  # fmt: skip


def _known(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    said = asdict(finding)
    cls = said.pop("cls")
    return {**said, "level": finding.level.value, "class": cls and cls.value}


def _page(verdict: NodeVerdict, reading: HealthReading) -> str:
    skipped = [finding for finding in verdict.findings if finding.level is Level.SKIPPED]
    # What could not be judged is of interest where no GPU was, and where it is not for want of a feature.
    telling = find_doubts(skipped) if reading.gpus else skipped
    rows = [one for one in verdict.findings if one not in skipped or one.check == _LOG or one in telling]
    rows.sort(key=lambda finding: _ORDER.index(finding.level))
    left = len([one for one in skipped if one not in rows])
    cls = f" ({verdict.cls.value})" if verdict.cls else ""
    node, seen = plain(read_node_name(os.environ)), _count(len(reading.gpus), "GPU")
    line = f"{node}: {verdict.fitness.value}{cls}, {seen}"
    if left:
        line += f" ({left} {'check does' if left == 1 else 'checks do'} not apply, --json says why)"
    table = compose_table([_HEAD, *map(_row, rows)]) if rows else []
    sick = [_name(gpu) for gpu in reading.gpus if verdict.gpus[gpu.index] is not Fitness.HEALTHY]
    classes = [cls for cls in HealthClass if any(one.cls is cls for one in rows)]
    return "\n".join([line, *table, *filter(None, sick), *(f"{cls.value}: {_TO_DO[cls]}" for cls in classes)])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _name(gpu: GpuReading) -> str:
    """What to look for in the rack; empty where the GPU does not tell."""
    serial = f"serial {gpu.serial}" if _known(gpu.serial) else None
    words = [plain(word) for word in (_known(gpu.uuid), _known(gpu.bus_id), serial) if word]
    return f"GPU {gpu.index} is {', '.join(words)}" if words else ""


def _row(finding: Finding) -> tuple[str, ...]:
    gpu = "-" if finding.gpu is None else str(finding.gpu)
    return (
        finding.level.value,
        finding.check,
        gpu,
        finding.cls.value if finding.cls else "-",
        finding.evidence,
    )
