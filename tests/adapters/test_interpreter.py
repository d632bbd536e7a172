"""The programs that the hooks call."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slurm_guard.adapters.interpreter import find_program, find_slurm_program


def _give(folder: Path, name: str) -> str:
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program)


def test_the_slurm_of_the_administrator_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's own Slurm comes before a packaged one that lies in /usr/bin and belongs to no cluster."""
    own = _give(tmp_path, "scontrol")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_slurm_program("scontrol") == own


def test_programs_of_the_system_are_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an environment for Python brings along under the same name may be gone tomorrow."""
    _give(tmp_path, "timeout")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_program("timeout") == shutil.which("timeout", path="/usr/bin:/bin")
