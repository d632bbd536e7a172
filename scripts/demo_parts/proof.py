"""Whether it really happened: each claim of the demo, held against files and Slurm's own word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_parts.job import ITERATIONS, STUCK_RANK, Job

HARD_LIMIT_S = 60.0
ORDER = ("symptom", "breach", "dump_started", "dumped", "term_sent", "killed")
STUCK_FUNCTION = "stuck_in_a_loop_outside_the_collective"


@dataclass(frozen=True)
class Proof:
    """A claim and whether it holds."""

    claim: str
    holds: bool


def prove(job: Job) -> list[Proof]:
    """Every claim, in the order of the story."""
    found = job.read_incidents()
    by_kind = {incident["breach"]["kind"]: (folder, incident) for folder, incident in found}
    kinds = [incident["breach"]["kind"] for _, incident in found]
    proofs = [Proof("there were two incidents: a NaN loss and a stall", kinds == ["non_finite", "stall"])]
    if "non_finite" in by_kind:
        proofs += _prove_nan(*by_kind["non_finite"])
    if "stall" in by_kind:
        proofs += _prove_stall(*by_kind["stall"], job.read_nodes())
    return proofs + _prove_end(job)


def _prove_nan(folder: Path, incident: dict[str, Any]) -> list[Proof]:
    return [
        _prove_stop("NaN", folder, incident),
        Proof("NaN: no node was blamed", incident["suspects"] == []),
        _prove_resumed("NaN", incident, "restarted"),
    ]


def _prove_stall(folder: Path, incident: dict[str, Any], nodes: list[str]) -> list[Proof]:
    suspects, rank = incident["suspects"], incident["breach"]["rank"]
    stacks = "".join(path.read_text(errors="replace") for path in (folder / "stacks").glob("*"))
    return [
        _prove_stop("stall", folder, incident),
        Proof(f"stall: rank {STUCK_RANK} was named", rank == STUCK_RANK and len(suspects) == 1),
        Proof("stall: its stack shows the loop", STUCK_FUNCTION in stacks),
        Proof(
            f"stall: the job ran on without {', '.join(suspects)}, on {', '.join(nodes)}",
            bool(suspects) and bool(nodes) and not set(suspects) & set(nodes),
        ),
        _prove_resumed("stall", incident, "requeued"),
    ]


def _prove_stop(name: str, folder: Path, incident: dict[str, Any]) -> Proof:
    """All stages up to the last death, in order and in time, and the scene on disk."""
    at = [incident["stages"].get(stage) for stage in ORDER]
    in_order = None not in at and at == sorted(at)
    killed_s = at[-1] - at[1] if in_order else None
    scene = (folder / "log-tail.txt").is_file() and any((folder / "stacks").glob("*"))
    after = "" if killed_s is None else f" {killed_s:.1f} s after the breach"
    return Proof(
        f"{name}: all ranks were dead{after}, the scene saved before",
        killed_s is not None and killed_s < HARD_LIMIT_S and scene,
    )


def _prove_resumed(name: str, incident: dict[str, Any], how: str) -> Proof:
    stages = incident["stages"]
    went = None not in (stages.get(how), stages.get("resumed"), stages.get("killed"))
    in_order = went and stages["killed"] <= stages[how] <= stages["resumed"]
    return Proof(f"{name}: the training was {how} and resumed", in_order)


def _prove_end(job: Job) -> list[Proof]:
    log = job.output.read_text(errors="replace") if job.output.is_file() else ""
    resumed = re.findall(r"^resumed from (\w+) .* at iteration (\d+)$", log, re.MULTILINE)
    points = " and ".join(f"{source} {iteration}" for source, iteration in resumed)
    state = job.read_state()
    finished = f"training finished at iteration {ITERATIONS}" in log
    return [
        Proof(f"it went on from checkpoints: {points or 'none'}", len(resumed) == 2),
        Proof(
            f"job {job.job_id} is {state.state} with exit code {state.exit_code}, at iteration {ITERATIONS}",
            finished and state.state == "COMPLETED" and state.exit_code == "0:0",
        ),
    ]
