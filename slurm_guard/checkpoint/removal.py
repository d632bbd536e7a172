"""Removing a checkpoint: at no moment is half of one found under a good name."""

from __future__ import annotations

import os
import shutil


def remove_checkpoint(directory: str) -> bool:
    """Rename it to what every reader passes over, then remove it; whether it is out of the way.

    What a kill leaves of it goes with the next `remove_stale`.
    """
    parent, name = os.path.split(directory)
    doomed = os.path.join(parent, f".tmp-dropped-{name}")
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        os.rename(directory, doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True
