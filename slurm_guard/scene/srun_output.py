"""The files that srun writes the output of its tasks to, by its `--output` and `--error` patterns."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping

_PATTERN = re.compile(r"%(\d*)([a-zA-Z%])")
_PER_TASK = frozenset("tnN")
_PER_STEP = frozenset("sJ")


def needs_step(pattern: str) -> bool:
    """Whether the names hold the number of the step, so that they are not known before it exists."""
    return any(found[2] in _PER_STEP for found in _PATTERN.finditer(pattern))


def expand_pattern(pattern: str, environ: Mapping[str, str], step_id: str, cwd: str) -> str | None:
    """The files of srun's `--output` pattern as a glob; None where srun itself passes the output on.

    `all` and a task number leave the output with srun. What differs from task to task becomes `*`.

    >>> expand_pattern("out-%j.%t", {"SLURM_JOB_ID": "7"}, "7.0", "/home/ann")
    '/home/ann/out-7.*'
    """
    if pattern == "all" or pattern.isdigit():
        return None
    job, _, step = step_id.partition(".")
    values = {
        "j": environ.get("SLURM_JOB_ID", job),
        "J": step_id,
        "s": step,
        "A": environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": environ.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "u": environ.get("SLURM_JOB_USER", environ.get("USER", "")),
        "x": environ.get("SLURM_JOB_NAME", ""),
        "%": "%",
    }

    def fill(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter in _PER_TASK:
            return "*"
        value = values.get(letter)
        return "*" if value is None else value.zfill(int(width or 0)) if value.isdigit() else value

    parts: list[str] = []
    at = 0
    for found in _PATTERN.finditer(pattern):
        parts += [glob.escape(pattern[at : found.start()]), fill(found)]
        at = found.end()
    return os.path.join(glob.escape(cwd), "".join([*parts, glob.escape(pattern[at:])]))
