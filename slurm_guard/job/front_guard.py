"""The guard as the front has it: a child that may die, is started again once, and is then done without."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from slurm_guard.job.link import FrontLink, FrontMessage, GuardMessage, Start

GUARD_COMMAND = (sys.executable, "-I", "-m", "slurm_guard.job.run")
_STARTS = 2


class GuardChild:
    """One guard at a time. Nothing here raises or waits because a guard is slow, wrong or dead.

    `copies` are the read ends of the copied stdout and stderr; the front keeps them, so that the next guard
    reads on where the last one ended.
    """

    def __init__(self, command: Sequence[str], copies: tuple[int, int]) -> None:
        self._command = command
        self._copies = copies
        self._starts_left = _STARTS
        self._process: subprocess.Popen[bytes] | None = None
        self.link: FrontLink | None = None

    @property
    def may_start(self) -> bool:
        """Whether one more may be started."""
        return self._starts_left > 0

    def start(self, message: Start) -> None:
        """Start a guard and give it its first message; when that fails, `lost` says so."""
        self._starts_left -= 1
        ours, theirs = socket.socketpair()
        self.link = FrontLink(ours)
        numbers = (theirs.fileno(), *self._copies)
        try:
            self._process = subprocess.Popen(
                [*self._command, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Out of the terminal's reach: Ctrl-C is for srun, and a guard has its incident to finish.
                start_new_session=True,
                pass_fds=numbers,
                env={name: value for name, value in os.environ.items() if name != "SLURM_GUARD_RUN"},
            )
        except OSError:
            self._process = None
        finally:
            theirs.close()
        self.link.send(message)

    def send(self, message: FrontMessage) -> None:
        """Tell the guard, if there is one."""
        if self.link is not None:
            self.link.send(message)

    def read(self) -> list[GuardMessage]:
        """What the guard has said since; empty when there is none."""
        if self.link is None:
            return []
        self.link.flush()
        return self.link.read()

    def lost(self) -> bool:
        """Whether the guard is gone, told once for each; it is buried by that."""
        if self.link is None:
            return False
        if self._process is not None and not self.link.closed:
            return False
        self.link.close()
        self.link = None
        if self._process is not None:
            self._process.poll()
        return True
