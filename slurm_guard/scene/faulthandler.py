"""Python stacks in the output: what faulthandler prints when SIGABRT takes SIGTERM's place."""

from __future__ import annotations

import re

_LINE = re.compile(
    rb"^(?:\s*\d+: |\[\w+\]: ?)?"  # srun --label, torchrun
    rb"(?:Fatal Python error: |(?:Current thread|Thread) 0x[0-9a-f]+ |  File \".*\", line \d+ in )"
)
_BEGIN = b"Fatal Python error: Aborted"


_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
# faulthandler takes these together: ILL, ABRT, BUS, FPE, SEGV.
_ITS_SIGNALS = sum(1 << (number - 1) for number in (4, 6, 7, 8, 11))


def prints_stack_at_abort(status: str) -> bool:
    """Whether the process of this /proc/PID/status has faulthandler on.

    The environment would only say that it was asked for, and not every process lets us read it.

    >>> prints_stack_at_abort("SigCgt:\t00000000000004ea")
    True
    """
    found = _CAUGHT.search(status)
    return found is not None and int(found[1], 16) & _ITS_SIGNALS == _ITS_SIGNALS


def extract_stacks(output: bytes) -> bytes:
    """The lines of all stacks from the first abort on, as they were printed; empty when there is none.

    Ranks print at the same time, so their lines may be mixed unless srun labels them.

    >>> extract_stacks(b'loss 1\\nFatal Python error: Aborted\\n  File "t.py", line 3 in f\\nbye\\n')
    b'Fatal Python error: Aborted\\n  File "t.py", line 3 in f\\n'
    """
    at = output.find(_BEGIN)
    if at < 0:
        return b""
    start = output.rfind(b"\n", 0, at) + 1
    return b"".join(line for line in output[start:].splitlines(keepends=True) if _LINE.match(line))
