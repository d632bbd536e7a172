"""The prolog as `slurm-guard doctor --as-prolog` sees it: judged and told, and nothing is touched."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from slurm_guard.config.compiled import load_compiled
from slurm_guard.errors import UsageError
from slurm_guard.hooks.context import read_job
from slurm_guard.hooks.gate import Gate
from slurm_guard.hooks.note import escape
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import Fitness

UNJUDGED = 75
"""The exit code where a job would be let in because the node could not be judged."""


def run(environ: Mapping[str, str], place: Place) -> bool:
    """Whether a job would be refused now; the reason goes to stdout.

    A fresh snapshot is not asked: what is of interest is the probe.

    Raises:
        SystemExit: nothing can be judged, so that every job would be let in; with UNJUDGED where only this
            look came to nothing.
    """
    started_s = time.monotonic()
    try:
        job = read_job(environ)
        compiled = load_compiled(place.compiled)
    except UsageError as error:
        raise SystemExit(escape(str(error))) from None
    gate = Gate(compiled, place.adopt(compiled), job, started_s)
    admission = gate.judge()
    sys.stdout.write(f"{escape(admission.why)}; {len(gate.reading.gpus)} GPUs seen\n")
    sys.stdout.flush()
    if admission.admitted and admission.verdict.fitness is Fitness.UNKNOWN:
        raise SystemExit(UNJUDGED)
    return not admission.admitted
