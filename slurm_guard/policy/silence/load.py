"""What the GPUs of the job do in a silence, compared with what they did while it made progress."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from slurm_guard.model.reading import LoadReading

PINNED_PERCENT = 95
"""Utilisation from which on a GPU counts as pinned: a collective that waits spins like that."""

SPIN_POWER = 0.6
"""Share of its own usual power below which a pinned GPU computes nothing."""

WORK_POWER = 0.8
"""Share of its own usual power from which on a GPU works as it does in training."""

_READINGS = 3
_KNOWN = 10
_HISTORY = 240


@dataclass(slots=True)
class _Gpu:
    usual: deque[LoadReading] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    now: deque[LoadReading] = field(default_factory=lambda: deque(maxlen=_READINGS))
    silence: int = -1

    def power_share(self) -> float | None:
        """The power of this silence as a share of the usual; None where either is not known."""
        usual, now = _powers(self.usual), _powers(self.now)
        if len(usual) < _KNOWN or len(now) < _READINGS or median(usual) <= 0:
            return None
        return median(now) / median(usual)

    def busy_share(self) -> float:
        """The utilisation of this silence as a share of the usual; 1 where that was next to nothing."""
        usual = [reading.utilisation for reading in self.usual if reading.utilisation is not None]
        now = [reading.utilisation for reading in self.now if reading.utilisation is not None]
        if not usual or not now or median(usual) <= 0:
            return 1.0
        return median(now) / median(usual)


def _powers(readings: deque[LoadReading]) -> list[float]:
    return [reading.power_w for reading in readings if reading.power_w is not None]


@dataclass(slots=True)
class LoadTable:
    """The GPUs of the job, by node and number: a value that its owner updates in place."""

    gpus: dict[tuple[str, int], _Gpu] = field(default_factory=dict)

    def seen(self, reading: LoadReading, silence: int) -> None:
        """A reading of this silence; when the silence has a new number, the last one was none."""
        gpu = self.gpus.setdefault((reading.node, reading.gpu), _Gpu())
        if gpu.silence != silence:
            gpu.usual.extend(gpu.now)
            gpu.now.clear()
            gpu.silence = silence
        gpu.now.append(reading)

    def pinned(self, silence: int) -> bool:
        """Whether all GPUs are fully used at far less than their usual power: they spin in a collective."""
        return bool(self.gpus) and all(
            gpu.silence == silence
            and (share := gpu.power_share()) is not None
            and share < SPIN_POWER
            and all((reading.utilisation or 0) >= PINNED_PERCENT for reading in gpu.now)
            for gpu in self.gpus.values()
        )

    def working(self, silence: int) -> bool:
        """Whether more than half of the GPUs use the power, and are as busy, as in training."""
        at_work = sum(
            gpu.silence == silence and (gpu.power_share() or 0.0) >= WORK_POWER and gpu.busy_share() >= 0.5
            for gpu in self.gpus.values()
        )
        return 2 * at_work > len(self.gpus)
