"""Call a person: run the site's own program with one sentence, and don't wait for it."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

from slurm_guard.adapters.files import write_atomic
from slurm_guard.hooks.place import Place

_PAUSE_S = 600.0
_START_S = 2.0


def page(program: str, kind: str, node: str, sentence: str, *, place: Place, wall_s: float) -> bool:
    """Run the site's `program` (the setting `page`, may be empty) with this sentence as its only argument.

    At most once in ten minutes for a node and kind (`drain`, `capped` …). Whether it was started; why not
    stands in the log. Never raises, never takes more than 2 s.
    """
    raise NotImplementedError
