"""The closing page: the stages of both incidents, the fault folder and the proofs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from demo_parts.job import STUCK_RANK, Job
from demo_parts.proof import Proof
from rich.console import Console  # noqa: TID253
from rich.markup import escape  # noqa: TID253
from rich.table import Table  # noqa: TID253

STAGES = {
    "symptom": "last sign of health",
    "breach": "red line crossed",
    "dump_started": "capturing begins",
    "dumped": "scene captured",
    "term_sent": "SIGTERM",
    "killed": "every rank verified dead",
    "restarted": "restarted in the allocation",
    "requeued": "requeued",
    "resumed": "training again",
}
KINDS = {"non_finite": "NaN loss", "stall": "stall"}
STACK_LINES = 6


def show_page(job: Job, proofs: list[Proof], console: Console, svg: Path | None) -> None:
    """Print the page; with `svg` also as a picture there, if it is one to show."""
    if svg is not None:
        console.export_text()  # forgets what was printed before: the picture is of this page
    incidents = job.read_incidents()
    console.print()
    console.print(_stage_table([incident for _, incident in incidents]))
    if incidents:
        _show_folder(incidents[-1][0], job.work, console)
    console.print("\n[bold]What this proves[/]")
    for proof in proofs:
        console.print(f"  {'[green]✓[/]' if proof.holds else '[red]✗[/]'} {escape(proof.claim)}")
    if svg is not None and all(proof.holds for proof in proofs):
        svg.write_text(_without_fonts(console.export_svg(title="scripts/demo")))
    console.print(f"\nAll of it is in {job.work}. To look at an incident:", soft_wrap=True)
    console.print(
        f"  {Path(sys.executable).parent}/slurm-guard incident show --state-dir {job.work}/slurm-guard",
        soft_wrap=True,
    )


def _without_fonts(picture: str) -> str:
    """The picture without rich's fonts from another server: whoever looks at it asks nobody."""
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def _stage_table(incidents: list[dict[str, Any]]) -> Table:
    table = Table(title="Seconds since the red line was crossed", title_justify="left")
    table.add_column("stage")
    for incident in incidents:
        breach = incident["breach"]
        where = f", {breach['node']} rank {breach['rank']}" if breach["rank"] is not None else ""
        table.add_column(f"{KINDS.get(breach['kind'], breach['kind'])}{where}", justify="right")
    for stage, words in STAGES.items():
        at = [incident["stages"].get(stage) for incident in incidents]
        if any(second is not None for second in at):
            table.add_row(words, *map(_since_breach, incidents, at))
    return table


def _since_breach(incident: dict[str, Any], at_s: float | None) -> str:
    return "" if at_s is None else f"{at_s - incident['stages']['breach']:+.1f}"


def _show_folder(folder: Path, work: Path, console: Console) -> None:
    """Its files, those of a kind in one line, and the stack that stands apart from the others."""
    console.print(f"\n[bold]The fault folder of the last one[/], {escape(str(folder.relative_to(work)))}")
    kinds: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            kind = re.sub(r"demo-n\d+", "*", str(path.relative_to(folder)))
            kinds[kind] = kinds.get(kind, 0) + 1
    for kind, count in kinds.items():
        console.print(f"  {escape(kind)}" + (f"  ({count} nodes)" if count > 1 else ""))
    for path in sorted((folder / "stacks").glob(f"signature-*-ranks-{STUCK_RANK}.txt"))[:1]:
        console.print(f"\n[bold]stacks/{path.name}[/]")
        for line in path.read_text(errors="replace").splitlines()[:STACK_LINES]:
            console.print(f"  {escape(line)}", soft_wrap=True)
