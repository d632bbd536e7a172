"""The channel to the one watchdog of a process that is watched without Slurm: a child on two pipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_guard.job.channel import Channel


class LocalChannel(Channel):
    """The watchdog of the tree below `top` (pid, start time in ticks)."""

    def __init__(
        self, python: str, run: str, top: tuple[int, int], env: Mapping[str, str],
        trouble: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(python, run, env, "", trouble)
        self._command += map(str, top)

    def argv(self, nodes: tuple[str, ...]) -> list[str]:  # noqa: ARG002
        """No srun: there is one node, and this is it."""
        return self._command
