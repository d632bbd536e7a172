"""Every exception that slurm-guard raises on purpose.

SlurmGuardError              one line for a person; the CLI prints it and exits non-zero
├── UsageError               the command line or a configuration is wrong
│   └── ConfigError          names file, key, value and remedy
├── OutsideError             something outside did not do what we need
│   ├── CommandFailed        a program ended non-zero; carries argv, code and stderr
│   ├── CommandTimedOut      a program did not end in its time
│   └── SlurmUnavailable     the controller did not answer: unknown is not failed
└── CheckpointError          a checkpoint cannot be written or read
    ├── PeerError            another rank's node did not take or give one
    └── DamagedError         what one node holds is not whole; another's copy may be
"""

from __future__ import annotations


class SlurmGuardError(Exception):
    """The root: its text is one clear line (what, where, remedy)."""


class UsageError(SlurmGuardError):
    """The user asked for something that cannot be done as written."""


class ConfigError(UsageError):
    """A setting is wrong; the text names its source, key, value and remedy."""


class OutsideError(SlurmGuardError):
    """Something outside slurm-guard failed."""


class CommandFailed(OutsideError):
    """A command ended with a non-zero code."""

    def __init__(self, argv: list[str], code: int, stderr: str) -> None:
        self.argv = argv
        self.code = code
        self.stderr = stderr.strip()
        detail = self.stderr.splitlines()[-1] if self.stderr else "no message"
        super().__init__(f"{' '.join(argv[:3])} failed with code {code}: {detail}")


class CommandTimedOut(OutsideError):
    """A command was still running at its deadline and was killed."""

    def __init__(self, argv: list[str], timeout_s: float) -> None:
        self.argv = argv
        self.timeout_s = timeout_s
        super().__init__(f"{' '.join(argv[:3])} gave no answer in {round(timeout_s, 2):g} s")


class SlurmUnavailable(OutsideError):
    """The Slurm controller could not be asked; what it knows is unknown, not false."""


class CheckpointError(SlurmGuardError):
    """A checkpoint could not be written, read or chosen."""


class MisfitError(CheckpointError):
    """The checkpoint is whole, but of another training: an older one would be no better."""


class PeerError(CheckpointError):
    """A checkpoint could not be brought from one node to another; training goes on without that copy."""


class DamagedError(CheckpointError):
    """What is to be copied is not what its manifest says, or cannot be read; others may have it whole."""
