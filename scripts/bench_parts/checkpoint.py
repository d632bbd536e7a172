"""What a ring save costs the training, the node and the disk, and a resume: one rank, state on the CPU."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bench_parts.figure import Figure, read_interval
from bench_parts.site import Site, run

SIZE_MB = 1000
_SPARE_MB = 64
_DISK = Path("/var/tmp")
"""The default base of a ring."""

_Round = dict[str, float]


def measure_checkpoint(site: Site, runs: int) -> list[Figure]:
    """`runs` rounds with a state of 1 GB."""
    place = Path(tempfile.mkdtemp(prefix="slurm-guard-bench-", dir=_DISK))
    try:
        program = [site.python, "-I", site.program("save_rounds.py"), str(runs), str(SIZE_MB), str(place)]
        told: dict[str, Any] = json.loads(run(program))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    rounds, size_mb = told["rounds"], told["size_mb"]
    room_mb = size_mb + _SPARE_MB
    verify = read_interval([size_mb / one["verify"] / 1000 for one in rounds])
    return [
        _ratio("wait for the copy of a ring save, to torch.save", rounds, "block", "save", 0.1),
        _ratio("the same, to torch.save and fsync", rounds, "block", "synced", 0.1),
        _ratio("the same, to async_save of torch.distributed.checkpoint", rounds, "block", "dcp", 1.0),
        _ratio("the same, to async_save with a stager that keeps its memory", rounds, "block", "kept", 1.0),
        _seconds("the wait itself", rounds, "block"),
        Figure("the wait for the first save, whose memory is fresh", f"{told['first']:.2f} s"),
        _seconds("torch.save, not synced", rounds, "save"),
        _share("background write's rate to that of a raw synced write", rounds, "raw", "background", 0.9),
        _seconds("background write, synced, hashed and read back", rounds, "background"),
        _seconds("dropping the oldest after it, in the background too", rounds, "dropping"),
        Figure("verifying a checkpoint in the page cache", verify.show(".1f") + " GB/s", ">= 1 GB/s",
               verify.median >= 1, runs),
        _ratio("resume (verified, applied) to torch.load, page cache", rounds, "resume", "load", 1.2),
        _ratio("the same from the disk", rounds, "cold_resume", "cold_load", 1.2),
        _ratio("resume to torch.load and load_state_dict, page cache", rounds, "resume", "applied"),
        _ratio("the same from the disk, load_state_dict too", rounds, "cold_resume", "cold_applied"),
        _memory("memory of a save", told["extra_mb"], room_mb),
        _memory("memory of a resume", told["resume_mb"], room_mb),
        Figure("memory of an async_save of torch.distributed.checkpoint", f"{told['dcp_mb']:.0f} MB"),
        _ratio("an iteration, one save in 50, to one without", rounds, "saving", "quiet"),
        _ratio("an iteration beside another process that writes as many bytes", rounds, "other", "quiet"),
        _seconds("an iteration (small operations) while nothing is written", rounds, "quiet", 1000, "ms"),
        _added(rounds),
    ]  # fmt: skip


def _added(rounds: list[_Round]) -> Figure:
    added = read_interval([50 * (one["saving"] - one["quiet"]) for one in rounds])
    return Figure("what a save adds to the training, the wait included", added.show(".2f") + " s",
                  runs=len(rounds))  # fmt: skip


def _memory(what: str, used_mb: float, room_mb: float) -> Figure:
    return Figure(what, f"{used_mb:.0f} MB", f"<= {room_mb:.0f} MB", used_mb <= room_mb)


def _ratio(what: str, rounds: list[_Round], upper: str, lower: str, goal: float | None = None) -> Figure:
    interval = read_interval([one[upper] / one[lower] for one in rounds])
    if goal is None:
        return Figure(what, interval.show(".2f"), runs=len(rounds))
    return Figure(what, interval.show(".2f"), f"<= {goal:g}", interval.median <= goal, len(rounds))


def _share(what: str, rounds: list[_Round], upper: str, lower: str, goal: float) -> Figure:
    interval = read_interval([one[upper] / one[lower] for one in rounds])
    return Figure(what, interval.show(".2f"), f">= {goal:g}", interval.median >= goal, len(rounds))


def _seconds(what: str, rounds: list[_Round], key: str, factor: float = 1.0, unit: str = "s") -> Figure:
    interval = read_interval([one[key] * factor for one in rounds])
    return Figure(what, interval.show(".2f") + f" {unit}", runs=len(rounds))
