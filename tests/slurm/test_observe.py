"""Observe mode on a real Slurm: it tells what it would have stopped, and afterwards whether wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from slurm.driven import Driven, is_alive, read_journal, wait_for

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

SCRIPT = "{guarded} --observe --stall-s 3 --dump-s 5 -N2 bash -c '{train}; exit 7'\necho srun=$?\n"


def test_a_wrong_and_a_right_stop_are_told_apart_and_nothing_is_killed(cluster: RealCluster) -> None:
    """A silence that ends by itself, then NaN to the end: the same ranks throughout, and srun's code."""
    job = Driven(cluster, SCRIPT, "-N2")
    job.wait_guarded(2)
    ranks = job.ranks()
    job.touch("quiet")
    job.wait_output("red line heartbeat")
    job.wait_incident("dumped")
    (job.control / "quiet").unlink()
    job.wait_output("a stop would have been wrong")
    job.touch("nan")
    job.wait_output("red line numeric")
    wait_for(
        lambda: [i for i in job.incidents() if i["breach"]["kind"] == "non_finite"], "the second incident"
    )
    job.wait_incident("dumped")
    assert job.ranks() == ranks
    assert all(map(is_alive, ranks.values()))
    job.touch("done")
    finished = job.wait_end()
    assert "srun=7" in finished.output
    assert "attempt 1" not in finished.output
    told = [(e["kind"], e["outcome"]) for e in read_journal(job.state_dir) if e["what"] == "outcome"]
    assert told == [("stall", "recovered"), ("non_finite", "ended")]
    for incident in finished.incidents():
        stages = incident["stages"]
        assert stages["term_sent"] is stages["killed"] is stages["restarted"] is None
        folder = job.state_dir / "faults" / incident["incident"]
        assert "driven.py" in "".join(p.read_text() for p in (folder / "stacks").glob("*.txt"))
    check_scorecard(cluster, job)


def check_scorecard(cluster: RealCluster, job: Driven) -> None:
    """One wrong, one right; `incident show` says the same of each."""
    guard = str(Path(cluster.python).with_name("slurm-guard"))
    card = json.loads(cluster.run_as_user([guard, "scorecard", "--json", "slurm-guard"]).stdout)
    counts = {(s["red_line"], s["kind"]): (s["right"], s["wrong"], s["open"]) for s in card["scores"]}
    assert counts == {("heartbeat", "stall"): (0, 1, 0), ("numeric", "non_finite"): (1, 0, 0)}
    assert card["wrong"][0]["incident"].startswith(f"{job.job_id}/")
    shown = cluster.run_as_user([guard, "incident", "show", card["wrong"][0]["incident"]]).stdout
    assert "outcome    recovered after" in shown
    assert "progress came again" in shown
