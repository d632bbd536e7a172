"""The prolog: is this node fit for the job that is about to start, and where may its watchdog leave a word?

Where a fresh sweep speaks for the node nothing is probed, and Slurm is asked nothing before a refusal. The
words of the probe are loaded only where there is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.config.compiled import load_compiled
from slurm_guard.errors import OutsideError, UsageError
from slurm_guard.hooks.baseline import Baseline, write_baseline
from slurm_guard.hooks.context import HookJob, read_job
from slurm_guard.hooks.note import note, note_job
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.snapshot import GpuCount, count_gpus, read_snapshot
from slurm_guard.hooks.spool import prepare_spool


def run(environ: Mapping[str, str], place: Place) -> bool:
    """Whether the job is refused; an answer takes `prolog.probe_s`, a refusal twice that and 6 s."""
    started_s = time.monotonic()
    try:
        job = read_job(environ)
        compiled = load_compiled(place.compiled)
        place = place.adopt(compiled)
        spool_mib, snapshot_s = compiled.value("spool_mib"), compiled.value("snapshot_s")
    except UsageError as error:
        note(place, f"prolog: nothing is judged, the job starts: {error}")
        return False
    try:
        prepare_spool(place, job, spool_mib)
    except OSError as error:
        note_job(place, job, f"there is no spool, the job starts without: {error}")
    swept = read_snapshot(place, snapshot_s)
    if swept is not None:
        _remember(place, job, started_s, swept.gpus)
        warned = f": {', '.join(swept.warned)}" if swept.warned else ""
        note_job(place, job, f"admitted: {swept.fitness} in the sweep {swept.age_s:.0f} s ago{warned}")
        return False
    from slurm_guard.hooks.gate import Gate

    gate = Gate(compiled, place, job, started_s)
    admission = gate.judge()
    _remember(place, job, started_s, count_gpus(gate.reading))
    if admission.admitted:
        note_job(place, job, f"admitted: {admission.why}")
        return False
    return gate.refuse(admission, environ)


def _remember(place: Place, job: HookJob, started_s: float, gpus: tuple[GpuCount, ...]) -> None:
    try:
        attempt = os.urandom(4).hex()
        write_baseline(
            place, job.job_id, Baseline(attempt, read_boot_id(), time.time(), started_s, gpus, job.gpus)
        )
    except (OSError, OutsideError) as error:
        note_job(place, job, f"there is no baseline for the epilog: {error}")
