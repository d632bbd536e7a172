"""What is found of a node beside its GPUs."""

from __future__ import annotations

import pytest

from slurm_guard.config.profile import load_profiles
from slurm_guard.model.health import (
    Finding,
    HealthClass,
    HealthReading,
    HostReading,
    Level,
    PlaceReading,
    PortReading,
    Profile,
    Switch,
    Trouble,
    Unreadable,
)
from slurm_guard.policy.health.host import judge_host
from slurm_guard.policy.health.node import judge_node

KEPT = 0.01
PLACE = PlaceReading("/tmp")


def find(host: HostReading) -> list[Finding]:
    return list(judge_host(host, Profile("generic")))


def test_a_good_node_has_no_findings() -> None:
    """Everything answers, has room, is up and in time."""
    port = PortReading("mlx5_0/1", "ACTIVE", "LinkUp")
    shm = PlaceReading("/dev/shm", size_mib=1024)
    assert find(HostReading((PLACE,), (PLACE, shm), (port,), KEPT, fabric_manager=True)) == []


@pytest.mark.parametrize(
    ("host", "check", "level", "evidence"),
    [
        (
            HostReading(mounts=(PlaceReading("/home", Unreadable("no answer in 2 s", Trouble.HUNG)),)),
            "host_mount",
            Level.FAIL,
            "/home: no answer in 2 s",
        ),
        (
            HostReading(mounts=(PlaceReading("/home", Unreadable("Permission denied", Trouble.DENIED)),)),
            "host_mount",
            Level.SKIPPED,
            "/home: Permission denied",
        ),
        (
            HostReading(scratch=(PlaceReading("/tmp", read_only=True),)),
            "host_scratch",
            Level.FAIL,
            "/tmp is read-only",
        ),
        (
            HostReading(scratch=(PlaceReading("/tmp", space_percent=4.9),)),
            "host_scratch",
            Level.FAIL,
            "/tmp has 4.9 % of its space free",
        ),
        (
            HostReading(scratch=(PlaceReading("/dev/shm", inode_percent=0.0),)),
            "host_scratch",
            Level.FAIL,
            "/dev/shm has 0.0 % of its inodes free",
        ),
        (
            HostReading(scratch=(PlaceReading("/tmp", unwritable="Disk quota exceeded"),)),
            "host_scratch",
            Level.FAIL,
            "/tmp is not to be written: Disk quota exceeded",
        ),
        (
            HostReading(scratch=(PlaceReading("/dev/shm", size_mib=64),)),
            "host_shm",
            Level.FAIL,
            "/dev/shm has 64 MiB in all: loaders and NCCL fail there",
        ),
        (
            HostReading(clock_error_s=KEPT, fabric_manager=False),
            "host_fabric_manager",
            Level.FAIL,
            "no Fabric Manager runs, and the GPUs hang on NVSwitches: start nvidia-fabricmanager",
        ),
        (
            HostReading(ports=(PortReading("mlx5_0/1", "INIT", "LinkUp"),)),
            "host_port",
            Level.FAIL,
            "the InfiniBand port mlx5_0/1 is INIT, LinkUp",
        ),
        (HostReading(clock_error_s=1.5), "host_clock", Level.FAIL, "the clock may be off by 1.500 s"),
        (
            HostReading(clock_error_s=Unreadable("nothing keeps it", Trouble.UNRELIABLE)),
            "host_clock",
            Level.WARN,
            "nothing keeps it",
        ),
        (HostReading(clock_error_s=Unreadable("no right")), "host_clock", Level.SKIPPED, "no right"),
    ],
)
def test_one_fault(host: HostReading, check: str, level: Level, evidence: str) -> None:
    """It is the first finding, of its check and with its evidence; the clock is unknown besides."""
    found = find(host)[0]
    assert (found.check, found.gpu, found.level, found.evidence) == (check, None, level, evidence)


def test_what_hangs_wants_a_reboot_and_what_is_not_there_does_not() -> None:
    """A directory that nobody made is no fault of the node's file systems; a dead mount is."""
    gone, hung = Unreadable("No such file or directory", Trouble.FAILED), Unreadable("", Trouble.HUNG)
    places = [PlaceReading("/local", gone), PlaceReading("/local", hung)]
    mount = PlaceReading("/home", Unreadable("Stale file handle", Trouble.FAILED))
    found = find(HostReading((mount,), tuple(places), clock_error_s=KEPT))
    assert [one.cls for one in found] == [HealthClass.REBOOT, HealthClass.APPLICATION, HealthClass.REBOOT]


def test_a_full_disk_only_warns_until_the_site_says_more() -> None:
    """New checks start so."""
    host = HostReading(scratch=(PlaceReading("/tmp", space_percent=0.0),), clock_error_s=KEPT)
    shipped = load_profiles()
    strict = [Profile("generic", switches={"host_scratch": Switch.FAIL})]
    assert judge_node(HealthReading(), shipped, host=host).fitness.value == "warn"
    assert judge_node(HealthReading(), strict, host=host).fitness.value == "unfit"
