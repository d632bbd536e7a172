"""Python stacks in the output: what faulthandler prints when SIGABRT takes SIGTERM's place."""

from __future__ import annotations

import re

_LINE = re.compile(
    rb"^(?:\s*\d+: |\[\w+\]: ?)?"  # srun --label, torchrun
    rb"(?:Fatal Python error: |(?:Current thread|Thread) 0x[0-9a-f]+ |  File \".*\", line \d+ in )"
)
_BEGIN = b"Fatal Python error: Aborted"


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
