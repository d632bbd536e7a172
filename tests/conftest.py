"""What all tests share: the --long option, and a word on which slurm_guard is under test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A property that holds does so on a busy machine too: no example has to be over within 200 ms of wall time.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long."""
    parser.addoption("--long", action="store_true", help="also run the tests of many rounds")


def pytest_report_header() -> str:
    """Name the package under test: the installed one, unless the install is editable."""
    import slurm_guard

    return f"slurm_guard: {slurm_guard.__file__}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is long unless it is asked for."""
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="many rounds; run with --long"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2,500 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500k", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)
