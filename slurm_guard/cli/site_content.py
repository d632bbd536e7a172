"""What the files of the site kit hold on this node: settings, scripts, and the number of its GPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from slurm_guard.adapters.installation import find_page_fault
from slurm_guard.adapters.interpreter import find_program, find_slurm_program
from slurm_guard.adapters.site_kit import read_snippets, render_hook
from slurm_guard.config.compiled import compile_site
from slurm_guard.config.load import load_settings
from slurm_guard.config.shipped import find_shipped
from slurm_guard.config.site import load_site
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.site_kit import EXPECTED, SETTINGS, SITE, KitFile, plan_hooks, plan_texts


def plan_content(settings: SiteSettings, slurm_conf: str) -> list[KitFile]:
    """The scripts, the snippets, and the words for systemd and logrotate."""
    timeout = find_program("timeout")
    if not timeout:
        raise SlurmGuardError("timeout is not found: install coreutils, without it a hook could hang")
    conf = slurm_conf or os.environ.get("SLURM_CONF", "")
    hooks = [
        render_hook(hook, interpreter=sys.executable, timeout=timeout, log=settings.log, slurm_conf=conf)
        for hook in plan_hooks(settings)
    ]
    return [*plan_texts(settings), *read_snippets(), *hooks]


def read_site_file(site: Path | None) -> KitFile:
    """The site.toml for a node that has none: this one, or the shipped one."""
    path = site or find_shipped("site-config") / "site.toml"
    try:
        return KitFile(SITE, path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def read_settings(site: Path | None) -> SiteSettings:
    """The hooks' settings, once the whole file is found to be right."""
    if site is None:
        return SiteSettings()
    load_settings(site=site, job_file=None, environment={}, flags={})
    return load_site(site)


def adopt_site(root: Path, site: Path | None) -> SiteSettings:
    """The settings of the site.toml that is there, or else of this one.

    Raises:
        UsageError: it is wrong, or both are there and differ.
    """
    there = root / SITE
    if site and there.exists() and read_site_file(site) != read_site_file(there):
        raise UsageError(f"{there} is there and differs from {site}: change it there, or move it away")
    return read_settings(there if there.exists() else site)


def compile_alone(text: str, scontrol: str) -> str:
    """The site.json of a site.toml that lies nowhere yet, without tables of the site's own."""
    with TemporaryDirectory() as folder:
        Path(folder, "site.toml").write_text(text)
        return compile_site(Path(folder), scontrol)


def find_scontrol() -> str:
    """The program by which the hooks ask Slurm."""
    return find_slurm_program("scontrol") or "/usr/bin/scontrol"


def check_page(root: Path, program: str) -> list[str]:
    """What is wrong with the program that calls a person; on this node it is refused, in an image told.

    Raises:
        UsageError: on this node, one line with the remedy.
    """
    fault = find_page_fault(program, root)
    if fault and root == Path("/"):
        raise UsageError(f"{root / SITE}: hooks.page = {program!r}: {fault}")
    return [f"nobody will be paged: {fault}"] if fault else []


def find_lacking(root: Path, slurm_conf: str) -> list[str]:
    """What the scripts of an image name and the image does not have (yet), in one line."""
    named = [sys.executable, slurm_conf or os.environ.get("SLURM_CONF", "")]
    lacking = [path for path in named if path and not os.path.lexists(root / path.lstrip("/"))]
    if not lacking or root == Path("/"):
        return []
    names = " and ".join(lacking)
    return [f"the scripts name {names}, and {root} has no such file: put it there before a node runs this"]


def find_called() -> list[str]:
    """The settings by which the running Slurm calls the hooks, also through links of the site's own.

    Raises:
        OutsideError: the controller gives no answer.
    """
    from slurm_guard.adapters.installation import read_hooks
    from slurm_guard.adapters.installed_kit import find_linked
    from slurm_guard.adapters.slurm_cli import SlurmCli
    from slurm_guard.policy.doctor.hook import HOOK_KEYS
    from slurm_guard.policy.doctor.slurm_conf import parse_scontrol_config

    config = parse_scontrol_config(SlurmCli().read_config())
    folder = Path(config.text("SLURM_CONF") or "/etc/slurm/slurm.conf").parent
    used = find_linked(read_hooks(config, folder))
    used |= {key for key in HOOK_KEYS if any(word.startswith(f"/{SETTINGS}/") for word in config.words(key))}
    return [key for key in HOOK_KEYS if key in used]


def plan_expected(gpus: int | None) -> list[KitFile]:
    """The file of the expected number, where it was given."""
    return [] if gpus is None else [KitFile(EXPECTED, f"{gpus}\n", derived=True)]


def find_expected(root: Path, gpus: int | None) -> tuple[list[KitFile], list[str]]:
    """The file of the expected number, and where the number comes from."""
    if gpus is not None:
        return plan_expected(gpus), []
    there = root / EXPECTED
    if there.exists():
        return [], []
    if root != Path("/"):
        return [], [f"{there} is not written: give --gpus N, or a lost GPU is only seen against the PCI bus"]
    count, why = _count_gpus()
    if count is None:
        return [], [f"{there} is not written: {why}; give --gpus N once you know it"]
    return [KitFile(EXPECTED, f"{count}\n")], [f"{there} says {count}, the healthy GPUs that NVML shows now"]


def _count_gpus() -> tuple[int | None, str]:
    from slurm_guard.adapters.gpu_health import NvmlHealth
    from slurm_guard.config.profile import load_profiles
    from slurm_guard.model.health import Fitness
    from slurm_guard.policy.health.node import judge_node

    reading = NvmlHealth(10.0, forked=True).read()
    if not reading.gpus:
        return None, "NVML shows no GPU"
    verdict = judge_node(reading, load_profiles())
    if verdict.fitness not in (Fitness.HEALTHY, Fitness.WARN):
        return None, f"the node is {verdict.fitness.value}"
    return len(reading.gpus), ""
