"""Which boot this is, and how long it has lasted."""

from __future__ import annotations

import time

from slurm_guard.errors import OutsideError


def read_boot_id() -> str:
    """The kernel's name for this boot, without dashes.

    Raises:
        OutsideError: /proc does not tell it.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip().replace("-", "")
    except OSError as error:
        raise OutsideError(f"the boot id cannot be read: {error.strerror}") from None


def read_boot_s() -> float:
    """Seconds since the boot, those included in which the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
