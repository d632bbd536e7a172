"""What a node's kernel log says of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_guard.model.health import Finding, HealthReading
from slurm_guard.model.xid import KernelRecord, XidTable
from slurm_guard.policy.health.gpu import name_action
from slurm_guard.policy.health.xid import parse_pci, parse_xids, since_load
from slurm_guard.policy.health.xidjudge import judge_xids


def judge_kernel_log(
    records: Iterable[KernelRecord], reading: HealthReading, table: XidTable
) -> tuple[Finding, ...]:
    """The findings of these records of this boot, from the last load of the driver on.

    What the driver asks for now, as it stands in the reading, is newer than all of them.
    """
    places = [(parse_pci(gpu.bus_id), gpu) for gpu in reading.gpus if isinstance(gpu.bus_id, str)]
    gpus = {place: gpu.index for place, gpu in places if place}
    asked = {place: name_action(gpu.recovery_action) for place, gpu in places if place}
    return judge_xids(list(parse_xids(since_load(records))), table, gpus=gpus, asked=asked)
