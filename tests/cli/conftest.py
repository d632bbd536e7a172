"""Trainings of one machine and their watchers, each dead at the end of its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from watched_training import Training, Watcher, closing_all


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
