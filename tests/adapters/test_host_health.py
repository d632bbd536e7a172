"""File systems are asked without being waited for; ports and the clock are read as the kernel has them."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from slurm_guard.adapters import host_health
from slurm_guard.adapters.host_health import (
    has_fabric_manager,
    parse_mounts,
    read_clock_error,
    read_places,
    read_ports,
)
from slurm_guard.model.health import PortReading, Trouble, Unreadable

MOUNTS = (
    "proc /proc proc rw 0 0\n"
    "/dev/sda1 / ext4 rw 0 0\n"
    "server:/home /home nfs4 rw,vers=4.2 0 0\n"
    "10.0.0.1@o2ib:/scratch /my\\040scratch lustre rw 0 0\n"
    "s3 /data fuse.s3fs rw 0 0\n"
    "broken\n"
)


def test_mounts_that_can_hang_are_those_of_networks() -> None:
    """By their type; a blank in the name is written as an octal number."""
    assert parse_mounts(MOUNTS) == ["/home", "/my scratch", "/data"]


def test_what_a_user_has_mounted_says_nothing_of_the_node() -> None:
    """A dead sshfs in somebody's home takes no node away; one that root mounted is the node's."""
    options = "rw,nosuid,nodev,relatime,user_id={},group_id=100,allow_other"
    lines = [f"far: /mnt/{user} fuse.sshfs {options.format(user)} 0 0\n" for user in (0, 1000)]
    assert parse_mounts("".join(lines)) == ["/mnt/0"]


def test_places_say_how_much_is_free(tmp_path: Path) -> None:
    """Percent of space and inodes; one that is not there is a failure in words."""
    here, gone = read_places([str(tmp_path), str(tmp_path / "gone")], 5.0)
    assert (here.asked, here.read_only) == (None, False)
    assert 0 < here.space_percent <= 100
    assert gone.asked == Unreadable("No such file or directory", Trouble.FAILED)


def test_scratch_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of it; why it fails is said in the kernel's words, a missing right is no fault."""
    (place,) = read_places([str(tmp_path)], 5.0, written=[str(tmp_path)])
    assert (place.unwritable, list(tmp_path.iterdir())) == (None, [])
    assert place.size_mib is not None

    def fail(code: int) -> str | None:
        def write(fd: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(host_health, "_prove", write)
        return read_places([str(tmp_path)], 5.0, written=[str(tmp_path)])[0].unwritable

    assert fail(errno.ENOSPC) == "No space left on device"
    assert fail(errno.EACCES) is None


def test_the_fabric_manager_is_a_service_or_a_process(tmp_path: Path) -> None:
    """Seen by its cgroup, else by its name as far as the kernel keeps it."""
    slices, processes = tmp_path / "cgroup", tmp_path / "proc"
    service = slices / "nvidia-fabricmanager.service" / "cgroup.procs"
    service.parent.mkdir(parents=True)
    service.write_text("")
    (processes / "7").mkdir(parents=True)
    (processes / "7" / "comm").write_text("nv-hostengine\n")
    assert not has_fabric_manager([slices], processes)
    (processes / "7" / "comm").write_text("nv-fabricmanage\n")
    assert has_fabric_manager([slices], processes)
    service.write_text("4711\n")
    assert has_fabric_manager([slices], tmp_path / "nowhere")


def test_a_file_system_that_hangs_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up at the deadline."""
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == "/hung":
            signal.pause()
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    hung, here = read_places(["/hung", str(tmp_path)], 0.456789)
    assert hung.asked == Unreadable("no answer in 0.5 s", Trouble.HUNG)
    assert here.asked is None


def test_ports_of_infiniband_only(tmp_path: Path) -> None:
    """The kernel's words without their numbers; Ethernet is left out."""
    for name, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text("1: DOWN\n")
        (port / "phys_state").write_text("2: Polling\n")
    assert list(read_ports(tmp_path)) == [PortReading("mlx5_0/1", "DOWN", "Polling")]
    assert list(read_ports(tmp_path / "none")) == []


def test_the_clock_has_an_error_or_a_reason() -> None:
    """Never zero for unknown."""
    error_s = read_clock_error()
    assert isinstance(error_s, Unreadable) or error_s >= 0
