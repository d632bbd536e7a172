"""Random states: all generators of a rank go on where they were, or none is touched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.random
import pytest
from state_file import read_state

from slurm_guard.errors import CheckpointError
from slurm_guard.training.random import apply_random, collect_random
from slurm_guard.training.state import write_state


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests see nothing of it."""
    before = collect_random()
    yield
    apply_random(before)


def draw() -> list[Any]:
    import torch

    return [torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]


def test_all_generators_go_on_where_they_were(tmp_path: Path) -> None:
    """Through a file that is loaded safely; with the second number of a Gaussian pair still to come."""
    random.gauss(0, 1)
    np.random.randn()
    write_state(collect_random(), str(tmp_path))
    expected = draw()
    assert draw() != expected
    apply_random(read_state(tmp_path))
    assert draw() == expected


def test_without_cuda_in_use_nothing_of_it_is_saved_and_what_was_saved_is_left_out() -> None:
    """A checkpoint of a GPU is looked at on a laptop."""
    import torch

    saved = collect_random()
    assert set(saved) == {"torch", "python", "numpy"}
    apply_random({**saved, "cuda": torch.zeros(16, dtype=torch.uint8)})


def spoil(name: str) -> Any:
    """What the file may hold instead."""
    import torch

    good = collect_random()
    python, numpy = good["python"], good["numpy"]
    bad = {
        "none": None,
        "foreign": {"loss": 1.0},
        "more": {**good, "jax": 1},
        "less": {name: good[name] for name in ("torch", "numpy")},
        "short": {**good, "torch": good["torch"][:-1]},
        "text": {**good, "torch": "seed 3"},
        "version": {**good, "python": {**python, "version": 9}},
        "words": {**good, "python": {**python, "state": python["state"][:-1]}},
        "negative": {**good, "python": {**python, "state": -python["state"]}},
        "gauss": {**good, "numpy": {**numpy, "gauss": "much"}},
        "position": {**good, "numpy": {**numpy, "position": 625}},
        "wide": {**good, "numpy": {**numpy, "state": numpy["state"] + (1 << 32)}},
        "cuda": {**good, "cuda": torch.zeros(3, dtype=torch.uint8)},
    }
    return bad[name]


NAMES = ["none", "foreign", "more", "less", "short", "text", "version", "words", "negative", "gauss",
         "position", "wide", "cuda"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bad_contents_are_refused_and_nothing_has_changed(name: str) -> None:
    """Not even the generators whose states are good."""
    draw()
    bad = spoil(name)
    before = collect_random()
    expected = draw()
    apply_random(before)
    with pytest.raises(CheckpointError, match="random state"):
        apply_random(bad)
    assert draw() == expected
