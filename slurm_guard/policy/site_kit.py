"""What `slurm-guard site install` puts on a node, and what becomes of each file that is there already."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from slurm_guard.model.site import SiteSettings

SETTINGS = "etc/slurm-guard"
OFF = f"{SETTINGS}/off"
SITE = f"{SETTINGS}/site.toml"
COMPILED = f"{SETTINGS}/site.json"
EXPECTED = f"{SETTINGS}/expected-gpus"
RECORD = f"{SETTINGS}/installed.json"
PROLOG = f"{SETTINGS}/prolog.d/50-slurm-guard"
EPILOG = f"{SETTINGS}/epilog.d/50-slurm-guard"
HEALTH_CHECK = f"{SETTINGS}/health-check"
RUN = "run/slurm-guard"


@dataclass(frozen=True, slots=True)
class Hook:
    """One of the three scripts: what runs it, by when it must have answered, and what a failure spares."""

    path: str
    kind: str
    program: str
    deadline_s: float
    spared: str


@dataclass(frozen=True, slots=True)
class KitFile:
    """A file below the root. `derived` ones hold nothing of a person's and are written anew each time."""

    path: str
    text: str
    mode: int = 0o644
    derived: bool = False


class Act(Enum):
    """What becomes of a file."""

    WRITE = "written"
    SAME = "unchanged"
    KEEP = "kept"
    """A person changed it."""
    REMOVE = "removed"


def plan_hooks(settings: SiteSettings) -> tuple[Hook, ...]:
    """The scripts. Each deadline leaves the program time to end by itself."""
    return (
        Hook(PROLOG, "prolog", "prolog", 2 * settings.probe_s + 7, "the job is let in"),
        Hook(EPILOG, "epilog", "epilog", settings.epilog_s + 2, "nothing is drained"),
        Hook(HEALTH_CHECK, "sweep", "sweep", settings.sweep_s + 2, "this sweep is left out"),
    )


def plan_directories(settings: SiteSettings) -> Mapping[str, int]:
    """Directory below the root -> its mode, those above before those below.

    >>> plan_directories(SiteSettings())["var/log/slurm-guard"] == 0o750
    True
    """
    log = settings.log.strip("/").rpartition("/")[0]
    return {
        SETTINGS: 0o755,
        f"{SETTINGS}/prolog.d": 0o755,
        f"{SETTINGS}/epilog.d": 0o755,
        settings.state.strip("/"): 0o750,
        # A log beside others' logs stands in a directory that is not ours.
        **({log: 0o750} if is_own(log) else {}),
    }


def plan_texts(settings: SiteSettings) -> tuple[KitFile, ...]:
    """What other programs of the node should know: systemd of the spool, logrotate of the log."""
    run = f"d /{RUN} 0755 root root -\n"
    rotate = "    weekly\n    rotate 8\n    compress\n    delaycompress\n    missingok\n    notifempty\n"
    return (
        KitFile("etc/tmpfiles.d/slurm-guard.conf", run),
        KitFile("etc/logrotate.d/slurm-guard", f'"{settings.log}" {{\n{rotate}}}\n'),
    )


def is_own(path: str) -> bool:
    """Whether a path is by its name slurm-guard's alone, so that an uninstall may take it away whole.

    >>> is_own("var/lib/slurm-guard"), is_own("etc/tmpfiles.d")
    (True, False)
    """
    return "slurm-guard" in path


def decide_write(file: KitFile, found: str | None, recorded: str | None) -> Act:
    """What install does: `found` and `recorded` are hashes of the file there and of what install wrote.

    >>> ours = hash_text("old")
    >>> decide_write(KitFile("a", "new"), found=ours, recorded=ours)
    <Act.WRITE: 'written'>
    >>> decide_write(KitFile("a", "new"), found=hash_text("mine"), recorded=ours)
    <Act.KEEP: 'kept'>
    """
    if found == hash_text(file.text):
        return Act.SAME
    return Act.WRITE if file.derived or found in (None, recorded) else Act.KEEP


def decide_remove(found: str, recorded: str, *, purge: bool) -> Act:
    """What uninstall does with a file that install wrote."""
    return Act.REMOVE if purge or found == recorded else Act.KEEP


def hash_text(text: str | bytes) -> str:
    """The mark by which a change is known."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()
