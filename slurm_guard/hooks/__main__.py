"""`python -I -m slurm_guard.hooks prolog|epilog|sweep`, which the hooks' shell wrappers run.

Exit codes: 77 refuses the job, 0 lets it go on, 70 says that slurm-guard itself is broken and has told so in
one line: the wrapper makes 0 of it, as of every other code.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_guard.hooks.place import Place

REFUSED = 77
BROKEN = 70
_HOOKS = ("prolog", "epilog", "sweep", "rehearsal")


def main(argv: list[str], environ: Mapping[str, str], place: Place | None = None) -> int:
    """Run the hook that is named; each one loads its own module and no other's. The exit code.

    What is wrong with slurm-guard itself is one line on stderr.
    """
    try:
        return _run(argv, environ, place)
    except Exception:
        import traceback

        _complain(argv, traceback.format_exc())
        return BROKEN


def _run(argv: list[str], environ: Mapping[str, str], place: Place | None) -> int:
    from slurm_guard.hooks.place import Place, is_off

    place = place or Place()
    if is_off(place):
        return 0
    if len(argv) != 1 or argv[0] not in _HOOKS:
        _complain(argv, f"no hook is named {' '.join(argv)!r}: one of {', '.join(_HOOKS)}")
        return BROKEN
    refused: bool = import_module(f"slurm_guard.hooks.{argv[0]}").run(environ, place)
    return REFUSED if refused else 0


def _complain(argv: list[str], text: str) -> None:
    # With nothing of our own: that may be what is broken.
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = " ".join(argv)[:40] + ": broken, nothing is refused or drained: " + text[-4000:]
    line = line.encode("unicode_escape").decode()
    os.write(2, f"{stamp} [{os.getpid()}] {line}\n".encode())


if __name__ == "__main__":
    # It lives for a moment: looking for garbage is a tenth of its start.
    gc.disable()
    # What is still open or running here keeps nobody waiting.
    os._exit(main(sys.argv[1:], os.environ))
