"""Trainings of one machine and their watchers, each dead at the end of its test; and a good package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from watched_training import Training, Watcher, closing_all

from slurm_guard.cli import site


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Starts a training."""
    with closing_all(partial(Training, tmp_path)) as start:
        yield start


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watcher]]:
    """Attaches a watcher, whose records go below `tmp_path`."""
    with closing_all(partial(Watcher, tmp_path)) as start:
        yield start


@pytest.fixture
def good_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter and a package that are root's alone, wherever the tests run."""
    monkeypatch.setattr(site, "find_foreign_code", lambda: [])
    monkeypatch.setattr(site, "compile_package", lambda: [])
    monkeypatch.setattr(site, "find_foreign", lambda path: "")
    monkeypatch.delenv("SLURM_CONF", raising=False)
