"""Real logs of public trainings, and what is known of each.

They are not part of the repository: SLURM_GUARD_REAL_LOGS names their folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER = Path(os.environ.get("SLURM_GUARD_REAL_LOGS") or "/nonexistent")


def truth() -> list[dict[str, object]]:
    """One entry a log: `file`, and what whoever labelled it saw in `truth`; empty without the folder."""
    if not FOLDER.is_dir():
        return []
    return [json.loads(line) for line in (FOLDER / "index.jsonl").read_text(encoding="utf-8").splitlines()]
