"""`python -I -m slurm_guard.hooks prolog|epilog|sweep`, which the hooks' shell wrappers run.

Exit codes: 77 refuses the job, 0 lets it go on, 1 says that slurm-guard itself is broken: the wrapper makes
0 of it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

REFUSED = 77
BROKEN = 1
_HOOKS = ("prolog", "epilog", "sweep", "rehearsal")


def main(argv: list[str]) -> int:
    """Run the hook that is named; each one loads its own module and no other's."""
    from slurm_guard.hooks.place import Place, is_off

    place = Place()
    if is_off(place):
        return 0
    if len(argv) != 1 or argv[0] not in _HOOKS:
        _complain(f"no hook is named {' '.join(argv)!r}: one of {', '.join(_HOOKS)}")
        return BROKEN
    refused: bool = import_module(f"slurm_guard.hooks.{argv[0]}").run(os.environ, place)
    return REFUSED if refused else 0


def _complain(text: str) -> None:
    # The usual way may be what is broken.
    line = text.encode("unicode_escape").decode()
    os.write(2, f"slurm-guard hook [{os.getpid()}]: {line}\n".encode())


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Exception:
        import traceback

        _complain(traceback.format_exc())
        code = BROKEN
    # What is still open or running here keeps nobody waiting.
    os._exit(code)
