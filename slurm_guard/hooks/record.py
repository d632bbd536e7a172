"""What root remembers from one hook to the next: small JSON files that are whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurm_guard.adapters.files import read_regular, write_atomic

_MOST_BYTES = 1 << 20


def write_record(path: Path, body: dict[str, Any]) -> None:
    """Write it into a directory that only root can look into.

    Raises:
        OSError: as the file system says.
    """
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    write_atomic(path, json.dumps(body, separators=(",", ":")).encode())


def read_record(path: Path) -> dict[str, Any] | None:
    """What stands there; None where it is missing or broken."""
    try:
        body = json.loads(read_regular(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
