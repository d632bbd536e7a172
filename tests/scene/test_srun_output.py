"""The names of the files that srun writes output to."""

from __future__ import annotations

import pytest

from slurm_guard.scene.srun_output import expand_pattern, needs_step

ENVIRON = {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "ann", "SLURM_JOB_NAME": "my[job]*"}


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("all", None),
        ("3", None),
        ("log", "/home/ann/log"),
        ("/tmp/x", "/tmp/x"),
        ("%j-%s-%u", "/home/ann/7-2-ann"),
        ("%J.out", "/home/ann/7.2.out"),
        ("%4j", "/home/ann/0007"),
        ("out.%t", "/home/ann/out.*"),
        ("%N/%n.log", "/home/ann/*/*.log"),
        ("%%j", "/home/ann/%j"),
        ("a[1]*%t", "/home/ann/a[[]1][*]*"),
        ("%A_%a", "/home/ann/7_4294967294"),
        ("%z", "/home/ann/*"),
    ],
)
def test_pattern(pattern: str, files: str | None) -> None:
    """As srun fills it in; what differs from task to task, or is not known, is a star."""
    assert expand_pattern(pattern, ENVIRON, "7.2", "/home/ann") == files


@pytest.mark.parametrize(
    ("pattern", "needs"),
    [("out-%j.%t", False), ("%J.out", True), ("%j.%4s", True), ("%%s", False), ("all", False)],
)
def test_step_in_the_name(pattern: str, needs: bool) -> None:
    """Such a name is known only when the step exists."""
    assert needs_step(pattern) is needs
