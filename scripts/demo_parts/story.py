"""What happens, told while it happens: the job's output beside plain words for each stage."""

from __future__ import annotations

import re
from typing import Any

from demo_parts.job import NAN_AT, STUCK_AT, STUCK_RANK, Job
from rich.console import Console  # noqa: TID253
from rich.markup import escape  # noqa: TID253

EVERY = 20
"""Of the training's own lines every so many-th iteration is shown."""

_ITERATION = re.compile(r"iteration (\d+) loss (\S+)")
_SHOWN = ("resumed", "training finished", "guarded-srun:", "srun:", "slurmstepd:")
_TROUBLE = {
    NAN_AT: "The batches of one rank are poisoned: the loss becomes NaN.",
    STUCK_AT - 1: f"Now rank {STUCK_RANK} enters an endless loop. The others wait for it in their all-reduce,"
    " and nothing says a word.",
}
_STAGES = {
    "breach": "RED LINE",
    "dump_started": "Every node writes down where its ranks stand: stacks, processes, GPUs, environment",
    "dumped": "The scene is in the fault folder",
    "term_sent": "SIGTERM to every process of the training",
    "killed": "Every rank is verified dead",
    "restarted": "The training starts again in the same allocation",
    "requeued": "The job goes back into the queue",
    "resumed": "The training goes on from its checkpoint",
}


class Story:
    """Tells what is new each time it is asked to."""

    def __init__(self, job: Job, console: Console) -> None:
        self._job = job
        self._console = console
        self._offset = 0
        self._told: set[tuple[str, str]] = set()
        self._state = ""
        self._last_iteration = 0

    def tell(self) -> None:
        """Print what happened since the last time."""
        self._tell_output()
        for folder, incident in self._job.read_incidents():
            self._tell_stages(folder.name, incident)
        self._tell_state()

    def _tell_state(self) -> None:
        job = self._job.read_state()
        state = f"{job.state} on {job.nodes}" if job.state == "RUNNING" else job.state
        if job.state == "PENDING" and job.restarts and job.reason == "BeginTime":
            state += " (Slurm lets a requeued job wait a moment before it starts again)"
        if state != self._state:
            self._state = state
            self._console.print(f"[blue]Slurm:[/] job {self._job.job_id} is {state}", soft_wrap=True)

    def _tell_output(self) -> None:
        if not self._job.output.exists():
            return
        with self._job.output.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._tell_line(line)

    def _tell_line(self, line: str) -> None:
        found = _ITERATION.match(line)
        if found is None:
            if line.startswith(_SHOWN):
                self._print_output(line)
            return
        iteration, sick = int(found[1]), found[2] == "nan"
        again = iteration <= self._last_iteration
        self._last_iteration = iteration
        if iteration == 1 or again or iteration % EVERY == 0 or sick or iteration == STUCK_AT - 1:
            self._print_output(line)
        if iteration in _TROUBLE and ("trouble", str(iteration)) not in self._told:
            self._told.add(("trouble", str(iteration)))
            self._console.print(f"\n[yellow]{_TROUBLE[iteration]}[/]", soft_wrap=True)

    def _print_output(self, line: str) -> None:
        self._console.print(f"  [dim]│ {escape(line)}[/]", soft_wrap=True)

    def _tell_stages(self, name: str, incident: dict[str, Any]) -> None:
        stages = incident["stages"]
        for stage, words in _STAGES.items():
            if stages.get(stage) is None or (name, stage) in self._told:
                continue
            self._told.add((name, stage))
            after_s = stages[stage] - stages["breach"]
            self._console.print(
                f"[bold red]{after_s:+7.1f} s[/]  [bold]{words}[/]{_more(stage, incident)}", soft_wrap=True
            )


def _more(stage: str, incident: dict[str, Any]) -> str:
    if stage == "breach":
        return f": {escape(str(incident['breach']['evidence']))}"
    if stage == "requeued" and incident["suspects"]:
        return f", without {escape(', '.join(incident['suspects']))}"
    return ""
