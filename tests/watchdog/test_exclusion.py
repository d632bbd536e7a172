"""The order `Exclude`, with a scontrol that refuses as long as the job runs."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from slurm_guard.model.order import Exclude
from slurm_guard.watchdog.exclusion import insist

_SCONTROL = """#!/bin/sh
echo "$@" >> {home}/calls
test -e {home}/pending || {{ echo "Job is no longer pending execution" >&2; exit 1; }}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a scontrol on PATH; the job is pending once a file `pending` is in it."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(_SCONTROL.format(home=tmp_path))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_it_asks_again_until_the_job_is_pending(home: Path) -> None:
    """A running job refuses; the list is taken once, and then nobody asks any more."""
    child = insist(Exclude("n1", "7_2", "n3,n4"))
    while not (home / "calls").exists() or (home / "calls").read_text().count("\n") < 2:
        assert not child.ended
    (home / "pending").touch()
    messages = []
    while not child.ended:
        select.select([child], [], [], 5)
        messages += child.read()
    assert messages == [{"excluded": "n3,n4"}]
    assert set((home / "calls").read_text().splitlines()) == {"update jobid=7_2 ExcNodeList=n3,n4"}
