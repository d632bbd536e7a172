"""`slurm-guard doctor`: what to change in Slurm's configuration, and in slurm-guard's own installation."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_guard.adapters.installation import read_conf, read_hooks, read_installation, read_site
from slurm_guard.adapters.installed_kit import find_linked, read_kit, rehearse
from slurm_guard.adapters.slurm_choice import SlurmChoice, choose_slurm, find_pyslurm
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.errors import OutsideError, SlurmGuardError, UsageError
from slurm_guard.hooks.context import read_node_name
from slurm_guard.job.writer import plain
from slurm_guard.model.advice import Advice, Level
from slurm_guard.policy.doctor.configuration import judge_config
from slurm_guard.policy.doctor.hook import judge_hooks
from slurm_guard.policy.doctor.installation import Installation, judge_installation
from slurm_guard.policy.doctor.ring import find_private_file, judge_ring
from slurm_guard.policy.doctor.site_kit import judge_kit
from slurm_guard.policy.doctor.slurm_conf import (
    SlurmConfig,
    find_unknown,
    holds_settings,
    parse_scontrol_config,
    parse_slurm_conf,
    parse_version,
)

REFUSED = 77
"""What the program of a hook says to its script."""
UNJUDGED = 75
"""What the rehearsal says where it could not judge the node."""
CONTROLLER = "the controller"
DEFAULT_CONF = Path("/etc/slurm/slurm.conf")


@dataclass(frozen=True, slots=True)
class Looked:
    """What could be seen, of the controller or of a file; `blind` says why the controller gave no answer."""

    source: str
    conf: Path
    config: SlurmConfig | None
    blind: str = ""


def doctor(
    conf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Judge this slurm.conf (and the cgroup.conf beside it); the controller is not asked.",
            show_default=False,
        ),
    ] = None,
    as_prolog: Annotated[
        bool,
        typer.Option(
            "--as-prolog", help="Only try the installed prolog, as slurmd runs it; nothing is touched."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check Slurm's configuration and this installation: what is wrong, why, and the line to change.

    Exit code 0: no errors; 1: errors; 2: the controller could not be asked. Then its slurm.conf is judged,
    by SLURM_CONF or in /etc/slurm. Programs of prolog and epilog are judged where they are on this machine.
    With --as-prolog 0: a job would be let in here; 1: refused; 2: let in unchecked, for the prolog is broken
    or could not judge this node.
    """
    if as_prolog:
        raise typer.Exit(_rehearse(as_json))
    installation = read_installation(os.environ)
    looked = _read_file(conf, installation) if conf else _ask(installation)
    advice = _judge(looked, installation)
    choice = choose_slurm() if conf is None else None
    if as_json:
        print(json.dumps(_as_json(looked, installation, choice, advice), indent=1))
    else:
        for line in _page(looked, advice):
            print(line)
        if choice and choice.pyslurm:
            way = "pyslurm" if choice.by == "pyslurm" else "its own commands"
            print(plain(f"slurm-guard node drained asks Slurm through {way}: {choice.why}."))
        if looked.blind:
            print(f"slurm-guard: {plain(looked.blind)}", file=sys.stderr)
    errors = any(one.level is Level.ERROR for one in advice)
    raise typer.Exit(2 if looked.blind else int(errors))


def _rehearse(as_json: bool) -> int:
    tried = rehearse(os.environ)
    verdict = {0: "admitted", REFUSED: "refused", UNJUDGED: "unjudged"}.get(tried.code, "broken")
    if as_json:
        print(json.dumps({"verdict": verdict, **asdict(tried)}, indent=1))
    elif verdict == "broken":
        print(plain(f"The prolog is broken (code {tried.code}), every job is let in unchecked: {tried.said}"))
    else:
        said = tried.said or "slurm-guard is off"
        came = "let in unchecked" if verdict == "unjudged" else verdict
        print(plain(f"A job would be {came} after {tried.seconds:.2f} s: {said}"))
    return {"admitted": 0, "refused": 1}.get(verdict, 2)


def _ask(installation: Installation) -> Looked:
    """The controller, else the file that it would have read."""
    conf = Path(os.environ.get("SLURM_CONF") or DEFAULT_CONF)
    try:
        config = parse_scontrol_config(SlurmCli().read_config())
    except OutsideError as error:
        blind = f"the controller could not be asked: {error}"
    else:
        conf = Path(config.text("SLURM_CONF") or conf)
        lacking = (*find_unknown(config), *(() if config.version else ("SLURM_VERSION",)))
        blind = f"the controller's answer is not whole: it lacks {', '.join(lacking)}" if lacking else ""
        return Looked(CONTROLLER, conf, config, blind)
    try:
        config, wrong = _read_config(conf, installation)
    except OSError as error:
        remedy = "set SLURM_CONF or give --conf FILE"
        return Looked("", conf, None, f"{blind}; nor can {conf} be read ({error.strerror}): {remedy}")
    return Looked(str(conf), conf, config, "; ".join(part for part in (blind, wrong) if part))


def _read_file(conf: Path, installation: Installation) -> Looked:
    try:
        return Looked(str(conf), conf.absolute(), *_read_config(conf, installation))
    except OSError as error:
        raise UsageError(f"{error.filename or conf} cannot be read: {error.strerror}") from None


def _read_config(conf: Path, installation: Installation) -> tuple[SlurmConfig, str]:
    """The file's settings, of the version of the commands here, and why it cannot be judged by them."""
    beside = conf.with_name("cgroup.conf")
    text, cgroup = read_conf(conf), read_conf(beside) if beside.exists() else ""
    config = parse_slurm_conf(text, cgroup, parse_version(installation.versions.get("srun", "")))
    if not holds_settings(text):
        return config, f"{conf} holds no setting that is judged: is it a slurm.conf?"
    unknown = find_unknown(config)
    return config, f"{conf}: {', '.join(unknown)} must be a number" if unknown else ""


def _judge(looked: Looked, installation: Installation) -> list[Advice]:
    config, kit = looked.config, read_kit()
    advice = judge_installation(installation, config)
    if config is not None:
        settings, _ = read_site()
        advice += judge_config(config, settings)
        advice += judge_ring(config, settings, _read_private(config, looked.conf))
        hooks = read_hooks(config, looked.conf.parent)
        advice += judge_hooks(hooks, str(looked.conf), installed=kit is not None)
        gpus = _count_gpus() if kit and looked.source == CONTROLLER else 0
        advice += judge_kit(kit, config, find_linked(hooks), gpus=gpus)
    else:
        advice += judge_kit(kit, None)
    order = list(Level)
    return sorted(advice, key=lambda one: order.index(one.level))


def _read_private(config: SlurmConfig, conf: Path) -> str:
    """What says which directories each job gets for itself, as far as it is on this machine."""
    try:
        return read_conf(conf.with_name(find_private_file(config)))
    except (OSError, ValueError):
        return ""


def _count_gpus() -> int:
    """How many GPUs Slurm thinks that this node has; 0 where it knows none, or does not know the node."""
    try:
        return SlurmCli().count_gpus(read_node_name(os.environ))
    except SlurmGuardError:
        return 0


def _page(looked: Looked, advice: Sequence[Advice]) -> list[str]:
    seen = f"the configuration of {looked.source}" if looked.source else ""
    what = " and ".join(part for part in (seen, "this installation of slurm-guard") if part)
    if not advice and looked.config is None:
        return []  # next to nothing was looked at
    if not advice:
        return [plain(f"Nothing to change in {what}.")]
    lines = []
    for one in advice:
        lines += [f"{one.level.value}: {one.what}: {one.why} [{one.check}]"]
        lines += [f"    {_locate(one, looked.conf)}: {one.line}"]
    return [plain(line) for line in lines]


def _locate(one: Advice, conf: Path) -> str:
    """The file, and the number of the line in it that sets the same key now."""
    if one.where not in ("slurm.conf", "cgroup.conf"):
        return one.where
    file = conf if one.where == "slurm.conf" else conf.with_name(one.where)
    key = re.match(r"\w+", one.line)
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return str(file)
    now = rf"\s*{key[0]}\s*=" if key else r"(?!)"
    numbers = [number for number, line in enumerate(lines, 1) if re.match(now, line, re.IGNORECASE)]
    return f"{file}:{numbers[-1]}" if numbers else str(file)


def _as_json(
    looked: Looked, installation: Installation, choice: SlurmChoice | None, advice: Sequence[Advice]
) -> dict[str, Any]:
    version = looked.config.version if looked.config else None
    return {
        "source": looked.source,
        "conf": str(looked.conf),
        "blind": looked.blind,
        "version": list(version) if version else None,
        "programs": dict(installation.versions),
        "slurm_by": choice.by if choice else "",
        "slurm_why": choice.why if choice else "with --conf Slurm is not asked",
        "pyslurm": find_pyslurm(),
        "findings": [
            {**asdict(one), "level": one.level.value, "where": _locate(one, looked.conf)} for one in advice
        ],
    }
