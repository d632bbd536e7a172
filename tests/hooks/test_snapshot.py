"""What one hook remembers for the next: the sweep's snapshot, the job's baseline, the log line."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.hooks import baseline as baselines
from slurm_guard.hooks import snapshot as snapshots
from slurm_guard.hooks.baseline import Baseline, find_others_gpus, read_baseline, write_baseline
from slurm_guard.hooks.note import escape, note
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.snapshot import GpuCount, Snapshot, forget_snapshot, read_snapshot, write_snapshot
from slurm_guard.model.health import Fitness, GpuReading, HealthReading, NodeVerdict, Trouble, Unreadable
from slurm_guard.model.site import SiteSettings

READING = HealthReading(
    (
        GpuReading(0, uuid="GPU-0", serial="17", minor=1, ecc_corrected=4, remap_failed=False),
        GpuReading(1, gone=Unreadable("lost", Trouble.LOST), uuid="GPU-1"),
    )
)
COUNTS = (GpuCount(0, "GPU-0", "17", 1, None, 4, False), GpuCount(1, "GPU-1"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The boot that the node is in, and how long."""
    now: dict[str, Any] = {"id": "b1", "s": 1000.0}
    for module in (snapshots, baselines):
        monkeypatch.setattr(module, "read_boot_id", lambda: now["id"])
    monkeypatch.setattr(snapshots, "read_boot_s", lambda: now["s"])
    return now


def sweep(place: Place, fitness: Fitness = Fitness.HEALTHY) -> None:
    write_snapshot(place, NodeVerdict(fitness, None), READING)


def test_fresh_snapshot_speaks_for_the_node(place: Place, boot: dict[str, Any]) -> None:
    """With its age, and with what the GPUs had counted."""
    sweep(place)
    boot["s"] = 1120.0
    found = read_snapshot(place, 120)
    assert found == Snapshot("healthy", 120.0, COUNTS)


@pytest.mark.parametrize(
    ("fitness", "speaks"), [("healthy", True), ("warn", True), ("unfit", False), ("unknown", False)]
)
def test_only_a_good_snapshot_counts(place: Place, boot: dict[str, Any], fitness: str, speaks: bool) -> None:
    """A bad one never refuses by itself: the prolog asks again."""
    sweep(place, Fitness(fitness))
    assert (read_snapshot(place, 120) is not None) is speaks


@pytest.mark.parametrize(("boot_id", "now_s"), [("b1", 1120.1), ("b1", 999.9), ("b2", 1001.0)])
def test_snapshot_of_another_time_counts_for_nothing(
    place: Place, boot: dict[str, Any], boot_id: str, now_s: float
) -> None:
    """Too old, from the future, or of another boot."""
    sweep(place)
    boot.update(id=boot_id, s=now_s)
    assert read_snapshot(place, 120) is None


def test_site_without_snapshots_has_none(place: Place, boot: dict[str, Any]) -> None:
    """Zero seconds are over before the prolog can look."""
    sweep(place)
    boot["s"] += 0.001
    assert read_snapshot(place, 0) is None


def test_forgotten_snapshot_is_gone(place: Place, boot: dict[str, Any]) -> None:
    """And forgetting what is not there is no error."""
    sweep(place)
    forget_snapshot(place)
    forget_snapshot(place)
    assert read_snapshot(place, 120) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", "{}", '{"boot_id":"b1","boot_s":"x","fitness":"healthy","gpus":[]}',
             '{"boot_id":"b1","boot_s":1000,"fitness":"healthy","gpus":[{"serial":"1"}]}',
             '{"boot_id":"b1","boot_s":1000,"fitness":["healthy"],"gpus":[]}', "[" * 50_000]
)  # fmt: skip
def test_broken_snapshot_is_none(place: Place, boot: dict[str, Any], text: str) -> None:
    """The prolog probes then."""
    place.node.mkdir(parents=True)
    place.snapshot.write_text(text)
    assert read_snapshot(place, 120) is None


def test_only_root_looks_into_it(place: Place, boot: dict[str, Any]) -> None:
    """The folder is closed, the jobs' beside it is not its child."""
    sweep(place)
    assert stat.S_IMODE(place.node.stat().st_mode) == 0o700
    assert place.node not in place.jobs.parents


def test_baseline_comes_back_in_the_same_boot(place: Place, boot: dict[str, Any]) -> None:
    """And not after a reboot, when its counters mean nothing; a later run's replaces it."""
    write_baseline(place, "12", Baseline("a1", "b1", 5.0, 6.0, ()))
    later = Baseline("a2", "b1", 7.0, 8.0, COUNTS, (0, 3))
    write_baseline(place, "12", later)
    assert read_baseline(place, "12") == later
    assert read_baseline(place, "13") is None
    boot["id"] = "b2"
    assert read_baseline(place, "12") is None


def test_gpus_of_other_jobs_are_known(place: Place, boot: dict[str, Any]) -> None:
    """By the baselines of jobs that have not ended; those before the boot have."""
    assert find_others_gpus(place, "12") == frozenset()
    for job_id, boot_id, minors in (("12", "b1", (0, 1)), ("13", "b1", (1, 2)), ("14", "b0", (3,))):
        write_baseline(place, job_id, Baseline("a", boot_id, 5.0, 6.0, (), minors))
    sweep(place)
    place.baseline("15").write_text("{")
    assert find_others_gpus(place, "12") == {1, 2}
    assert find_others_gpus(place, "13") == {0, 1}


def test_broken_baseline_is_none(place: Place, boot: dict[str, Any]) -> None:
    """The epilog does without."""
    place.node.mkdir(parents=True)
    place.baseline("12").write_text(json.dumps({"boot_id": "b1", "attempt": "a"}))
    assert read_baseline(place, "12") is None


def test_paths_are_those_of_the_settings(place: Place) -> None:
    """What stands in both is the same."""
    assert (Place().state_path, Place().log_path) == (SiteSettings().state, SiteSettings().log)


def test_note_is_one_line(place: Place) -> None:
    """Whatever a user put into its words."""
    note(place, "job named\n2026-01-01 [1] forged\x1b[2J\udc80 $(reboot) größer")
    note(place, "x" * 10_000)
    first, second = place.log.read_text().splitlines()
    assert first.partition("] ")[2] == r"job named\n2026-01-01 [1] forged\x1b[2J\udc80 $(reboot) größer"
    assert len(second) < 4100


def test_note_without_a_log_goes_to_stderr(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """A FIFO in its place holds nobody; a link is not followed."""
    place.log.parent.mkdir(parents=True)
    os.mkfifo(place.log)
    note(place, "one")
    place.log.unlink()
    place.log.symlink_to(place.root / "elsewhere")
    note(place, "two")
    assert [line.rpartition(" ")[2] for line in capfd.readouterr().err.splitlines()] == ["one", "two"]
    assert not (place.root / "elsewhere").exists()


def test_plain_words_stay_as_they_are() -> None:
    """Only what would break the line is escaped."""
    assert escape("GPU 3: 4 °C, 'quoted' \\n") == "GPU 3: 4 °C, 'quoted' \\n"
