"""What of the installed hooks has gone wrong since `site install`, or is not called at all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_guard.model.advice import Advice, Level
from slurm_guard.policy.doctor.hook import CONF, HOOK_KEYS
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig
from slurm_guard.policy.site_kit import EPILOG, EXPECTED, HEALTH_CHECK, OFF, PROLOG, SETTINGS, SITE

_AGAIN = "slurm-guard site install"
_FOUND = ("", "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where Slurm finds its slurm.conf by itself; the last one is that of a configless node."""
_PATTERNS = {
    "Prolog": f"/{PROLOG.rpartition('/')[0]}/*",
    "Epilog": f"/{EPILOG.rpartition('/')[0]}/*",
    "HealthCheckProgram": f"/{HEALTH_CHECK}",
}


@dataclass(frozen=True, slots=True)
class InstalledKit:
    """What is left of an installation; paths are full.

    `gone` and `changed` are scripts that install wrote, `interpreters` those that they call and cannot,
    `newer` the sources that site.json does not know yet; `unread` says why site.json cannot be read.
    `page` says why the program that calls a person would not be run, `expected` why the expected number of
    GPUs cannot be read; None where nobody has written it down.
    `deadlines_s` holds by when each hook has ended, by the setting that names it; `slurm_conf` is what the
    sweep is told, empty where Slurm finds it by itself.
    """

    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    unread: str = ""
    off: bool = False
    page: str = ""
    expected: str | None = ""
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    slurm_conf: str = ""


def judge_kit(
    kit: InstalledKit | None, config: SlurmConfig | None, linked: Collection[str] = (), *, gpus: int = 0
) -> list[Advice]:
    """Every advice on it; None where nothing is installed on this machine.

    `linked` are the settings whose own directories lead to the scripts, `gpus` is how many GPUs Slurm thinks
    that this node has.
    """
    called = [key for key in HOOK_KEYS if config and (key in linked or _calls(config, key))]
    if kit is None:
        what = f"{', '.join(called)} of slurm.conf name hooks of slurm-guard, and none is installed here"
        why = "a node without them is drained by its first job; a login node needs none"
        return [Advice("kit-missing", Level.NOTE, what, why, f"/{SETTINGS}", _AGAIN)] if called else []
    said = [*_judge_scripts(kit), *_judge_settings(kit), *_judge_expected(kit, gpus)]
    if config:
        said += [*_judge_calls(called), *_judge_deadlines(kit, config, called), *_judge_conf(kit, config)]
    return said


def _calls(config: SlurmConfig, key: str) -> bool:
    return any(word.startswith(f"/{SETTINGS}/") for word in config.words(key))


def _judge_scripts(kit: InstalledKit) -> Iterator[Advice]:
    for path in kit.gone:
        why = "a setting that matches no file drains the node"
        yield Advice("kit-gone", Level.ERROR, f"{path} is gone", why, path, _AGAIN)
    for path in kit.interpreters:
        what, why = f"the hooks call {path}, which cannot be run", "every job is let in unchecked"
        yield Advice(
            "kit-interpreter", Level.ERROR, what, why, path, f"{_AGAIN}, by the slurm-guard of today"
        )
    for path in kit.changed:
        what, why = f"{path} was changed by hand", "an upgrade leaves it as it is"
        yield Advice("kit-changed", Level.WARN, what, why, path, f"move it away; {_AGAIN}")


def _judge_settings(kit: InstalledKit) -> Iterator[Advice]:
    if kit.unread:
        why = "the hooks judge nothing: every job is let in unchecked"
        yield Advice("kit-settings", Level.ERROR, kit.unread, why, f"/{SETTINGS}", _AGAIN)
    for path in kit.newer:
        what, why = f"{path} is newer than site.json", "the hooks still do what it said before"
        yield Advice("kit-stale", Level.WARN, what, why, path, _AGAIN)
    if kit.page:
        why = "nobody is called when a node is drained, or too many are"
        yield Advice("kit-page", Level.ERROR, kit.page, why, f"/{SITE}", f"page in [hooks]; {_AGAIN}")
    if kit.off:
        what, why = f"/{OFF} is there", "no hook does anything on this node"
        yield Advice("kit-off", Level.NOTE, what, why, f"/{OFF}", f"rm /{OFF}")


def _judge_expected(kit: InstalledKit, gpus: int) -> Iterator[Advice]:
    if kit.expected:
        why = "the GPUs are not judged: every job is let in unchecked"
        line = f"{_AGAIN} --gpus {gpus or 'N'}"
        yield Advice("kit-expected", Level.ERROR, kit.expected, why, f"/{EXPECTED}", line)
    elif kit.expected is None and gpus:
        what = f"Slurm counts {gpus} GPUs here, and /{EXPECTED} does not say how many there should be"
        why = "one that falls off the bus is missed by nobody"
        yield Advice("kit-expected", Level.WARN, what, why, f"/{EXPECTED}", f"{_AGAIN} --gpus {gpus}")


def _judge_calls(called: list[str]) -> Iterator[Advice]:
    for key in HOOK_KEYS:
        if key not in called:
            what, why = f"{key} does not name the installed hook", "it is never run"
            yield Advice("kit-unused", Level.WARN, what, why, CONF, f"{key}={_PATTERNS[key]}")


def _judge_deadlines(kit: InstalledKit, config: SlurmConfig, called: list[str]) -> Iterator[Advice]:
    for key in ("Prolog", "Epilog"):
        limits_s = (config.number(f"{key}Timeout"), config.number("PrologEpilogTimeout"))
        limit_s = next((limit for limit in limits_s if limit not in (None, math.inf)), None)
        deadline_s = kit.deadlines_s.get(key, 0)
        if limit_s is None or key not in called or deadline_s < limit_s:
            continue
        what = f"Slurm gives {key} {limit_s:g} s, and the hook may take {deadline_s:g} s"
        line = f"PrologEpilogTimeout={math.ceil(deadline_s) + 5}, or a shorter time in site.toml"
        yield Advice(
            "kit-timeout", Level.ERROR, what, "Slurm drains the node of one that it cuts off", CONF, line
        )


def _judge_conf(kit: InstalledKit, config: SlurmConfig) -> Iterator[Advice]:
    conf = config.text("SLURM_CONF")
    if conf not in (*_FOUND, kit.slurm_conf):
        what = f"the sweep is not told that slurm.conf is {conf}"
        why = "slurmd does not tell a health check, so it cannot drain this node"
        yield Advice("kit-conf", Level.WARN, what, why, f"/{HEALTH_CHECK}", f"{_AGAIN} --slurm-conf {conf}")
