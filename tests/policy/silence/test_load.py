"""GPUs in a silence, compared with what they did in training."""

from __future__ import annotations

import pytest

from slurm_guard.model.reading import LoadReading
from slurm_guard.policy.silence.load import LoadTable


def table(
    now: tuple[int | None, float | None], *, usual: tuple[int, float] = (98, 600.0), gpus: int = 2
) -> LoadTable:
    """Twenty readings in training, silence by silence, then five in silence 99."""
    found = LoadTable()
    for gpu in range(gpus):
        for silence in range(20):
            found.seen(LoadReading("n1", gpu, *usual), silence)
        for _ in range(5):
            found.seen(LoadReading("n1", gpu, *now), 99)
    return found


@pytest.mark.parametrize(
    ("utilisation", "power_w", "pinned", "working"),
    [
        (100, 300.0, True, False),
        (100, 420.0, False, False),
        (97, 590.0, False, True),
        (0, 80.0, False, False),
        (60, 300.0, False, False),
        (None, 300.0, False, False),
        (100, None, False, False),
    ],
)
def test_pinned_without_power_is_a_collective_that_waits(
    utilisation: int | None, power_w: float | None, pinned: bool, working: bool
) -> None:
    """Full utilisation below 0.6 of its own power; from 0.8 on it works; unknown is neither."""
    found = table((utilisation, power_w))
    assert (found.pinned(99), found.working(99)) == (pinned, working)


def test_one_gpu_that_does_not_spin_is_no_picture() -> None:
    """Rank 0 saves: its GPU is idle while the others wait for it."""
    found = table((100, 300.0), gpus=4)
    for _ in range(3):
        found.seen(LoadReading("n1", 0, 0, 90.0), 99)
    assert not found.pinned(99)


def test_few_readings_say_nothing() -> None:
    """Neither of the silence nor of the training before it."""
    found = LoadTable()
    for _ in range(5):
        found.seen(LoadReading("n1", 0, 100, 300.0), 1)
    assert not found.pinned(1)
    assert not table((100, 300.0)).pinned(98)
    assert not LoadTable().pinned(0)
    assert not LoadTable().working(0)


def test_idle_power_of_a_job_that_never_used_more_is_no_work() -> None:
    """A job that is bound by its CPUs: at the same power its GPUs must be as busy too."""
    assert not table((0, 78.0), usual=(30, 80.0)).working(99)
    assert table((28, 78.0), usual=(30, 80.0)).working(99)
