"""The serial numbers of this node's GPUs, remembered until the boot: one that is lost tells none."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record
from slurm_guard.model.health import HealthReading


def name_gpus(place: Place, reading: HealthReading) -> HealthReading:
    """The reading with the serial numbers of before where a GPU does not tell its own; what they tell now is
    remembered. Never raises. Of another number of GPUs nobody knows which is which.
    """
    path = place.node / "serials.json"
    known = (read_record(path) or {}).get("serials")
    if not isinstance(known, list) or len(known) != len(reading.gpus):
        known = [None] * len(reading.gpus)
    pairs = list(zip(reading.gpus, known, strict=True))
    told = [gpu.serial if isinstance(gpu.serial, str) else old for gpu, old in pairs]
    if told != known:
        with contextlib.suppress(OSError):
            write_record(path, {"serials": told})
    gpus = (
        replace(gpu, serial=serial) if isinstance(serial, str) else gpu
        for gpu, serial in zip(reading.gpus, told, strict=True)
    )
    return replace(reading, gpus=tuple(gpus))
