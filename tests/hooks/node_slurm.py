"""A scontrol for the tests of the hooks: one cluster in a few files, and every call written down."""

from __future__ import annotations

import time
from pathlib import Path

_SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
sleep "$(cat "$here/slow")"
[ -e "$here/silent" ] && { echo "Unable to contact slurm controller (connect failure)" >&2; exit 1; }
case "$*" in
"show node -o") cat "$here"/node-* ;;
"show node "*) cat "$here/node-$3" ;;
"show job "*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
update*state=drain*)
    node=$2 node=${node#nodename=}
    reason="${4#reason=} [root@$(TZ=UTC date +%Y-%m-%dT%H:%M:%S)]"
    echo "NodeName=$node State=IDLE+DRAIN Partitions=p Reason=$reason" >"$here/node-$node" ;;
update*state=undrain*)
    node=$2 node=${node#nodename=}
    echo "NodeName=$node State=IDLE Partitions=p" >"$here/node-$node" ;;
esac
"""


class NodeSlurm:
    """`program` is its scontrol; node n2 is one of four."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.program = folder / "scontrol"
        self.program.write_text(_SCRIPT)
        self.program.chmod(0o755)
        self.slow(0)
        for number in range(1, 5):
            self.set_node(f"n{number}", "State=IDLE")

    def set_node(self, name: str, fields: str) -> None:
        """What it says of a node."""
        (self._folder / f"node-{name}").write_text(f"NodeName={name} {fields} Partitions=p\n")

    def drain(self, name: str, reason: str, by: str = "root") -> None:
        """Somebody has drained a node."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        text = f"NodeName={name} State=IDLE+DRAIN Partitions=p Reason={reason} [{by}@{stamp}]\n"
        (self._folder / f"node-{name}").write_text(text)

    def silence(self) -> None:
        """The controller is gone."""
        (self._folder / "silent").touch()

    def slow(self, seconds: float) -> None:
        """Each answer takes so long."""
        (self._folder / "slow").write_text(f"{seconds}")

    @property
    def calls(self) -> list[str]:
        """All that it was asked."""
        path = self._folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def node(self, name: str) -> str:
        """What it says of a node now."""
        return (self._folder / f"node-{name}").read_text()
