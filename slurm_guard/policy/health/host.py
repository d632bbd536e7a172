"""Checks of the node beside its GPUs: file systems, InfiniBand ports, the clock, the Fabric Manager."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_guard.model.health import (
    Finding,
    HealthClass,
    HostReading,
    Level,
    PlaceReading,
    PortReading,
    Profile,
    Trouble,
    Unreadable,
)
from slurm_guard.policy.health.check import skip

_SHM = "/dev/shm"


def judge_host(host: HostReading, profile: Profile) -> Iterator[Finding]:
    """The findings; `gpu` is None in all of them."""
    for mount in host.mounts:
        yield from _judge_answer("host_mount", mount)
    for place in host.scratch:
        yield from _judge_answer("host_scratch", place)
        yield from _judge_scratch(place, profile)
        yield from _judge_shm(place, profile)
    for port in host.ports:
        yield from _judge_port(port)
    yield from _judge_clock(host.clock_error_s, profile)
    yield from _judge_fabric_manager(host.fabric_manager)


def _judge_answer(check: str, place: PlaceReading) -> Iterator[Finding]:
    asked = place.asked
    if asked is None:
        return
    if asked.trouble in (Trouble.DENIED, Trouble.UNSUPPORTED):
        yield skip(check, None, f"{place.path}: {asked.reason}")
        return
    evidence, said, cls = f"{place.path}: {asked.reason}", "no answer", HealthClass.REBOOT
    if check == "host_scratch" and asked.trouble is not Trouble.HUNG:
        said, cls = "not there", HealthClass.APPLICATION  # nobody made it
    yield Finding(check, None, Level.FAIL, cls, said, "", evidence)


def _judge_scratch(place: PlaceReading, profile: Profile) -> Iterator[Finding]:
    if place.asked is not None:
        return
    check, fail, cls = "host_scratch", Level.FAIL, HealthClass.APPLICATION
    if place.read_only or place.unwritable is not None:
        said = "read-only" if place.read_only else f"not to be written: {place.unwritable}"
        evidence = f"{place.path} is {said}"
        yield Finding(check, None, fail, HealthClass.REBOOT, "read-only", "", evidence)
    for what, free in (("space", place.space_percent), ("inodes", place.inode_percent)):
        if free < profile.free_percent:
            value, limit = f"{free:.1f} %", f"{profile.free_percent} %"
            yield Finding(
                check, None, fail, cls, value, limit, f"{place.path} has {value} of its {what} free"
            )


def _judge_shm(place: PlaceReading, profile: Profile) -> Iterator[Finding]:
    if place.path == _SHM and place.size_mib is not None and place.size_mib < profile.shm_mib:
        value, limit = f"{place.size_mib} MiB", f"{profile.shm_mib} MiB"
        evidence = f"{_SHM} has {value} in all: loaders and NCCL fail there"
        yield Finding("host_shm", None, Level.FAIL, HealthClass.APPLICATION, value, limit, evidence)


def _judge_fabric_manager(running: bool | None) -> Iterator[Finding]:
    if running is False:
        evidence = "no Fabric Manager runs, and the GPUs hang on NVSwitches: start nvidia-fabricmanager"
        yield Finding(
            "host_fabric_manager", None, Level.FAIL, HealthClass.RESTART, "not running", "running", evidence
        )


def _judge_port(port: PortReading) -> Iterator[Finding]:
    if port.state == "ACTIVE" and port.physical == "LinkUp":
        return
    said = f"{port.state}, {port.physical}"
    evidence = f"the InfiniBand port {port.name} is {said}"
    yield Finding("host_port", None, Level.FAIL, HealthClass.REBOOT, said, "ACTIVE, LinkUp", evidence)


def _judge_clock(error_s: float | Unreadable, profile: Profile) -> Iterator[Finding]:
    check, cls = (
        "host_clock",
        HealthClass.APPLICATION,
    )  # nothing of the node is broken: chrony is to be set up
    if isinstance(error_s, Unreadable):
        if error_s.trouble is Trouble.UNRELIABLE:
            yield Finding(check, None, Level.WARN, cls, "free", "kept", error_s.reason)
        else:
            yield skip(check, None, error_s.reason)
    elif error_s > profile.clock_error_s:
        value, limit = f"{error_s:.3f} s", f"{profile.clock_error_s} s"
        yield Finding(check, None, Level.FAIL, cls, value, limit, f"the clock may be off by {value}")
