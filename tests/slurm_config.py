"""A good configuration of Slurm, as `scontrol show config` of 22.05 prints it, and changes to it."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_guard.model.advice import Advice
from slurm_guard.model.limits import Settings
from slurm_guard.policy.doctor.configuration import judge_config
from slurm_guard.policy.doctor.slurm_conf import parse_scontrol_config

GOOD = (Path(__file__).parent / "data" / "scontrol-config.txt").read_text()


def shown(**changes: str) -> str:
    """The good one with these values: `KillWait="10 sec"`. Every key must be there already."""
    text = GOOD
    for key, value in changes.items():
        line = f"{key} = {value}".replace("\\", r"\\")
        text, found = re.subn(rf"^{key} *=.*$", line, text, flags=re.MULTILINE)
        assert found == 1, key
    return text


def judge(text: str, settings: Settings | None = None) -> list[Advice]:
    """The advice on what scontrol printed."""
    return judge_config(parse_scontrol_config(text), settings or Settings())
