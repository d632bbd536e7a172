"""incident.json: the keys that others rely on."""

from __future__ import annotations

import json

from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.incident import STAGES, Incident


def test_document() -> None:
    """Schema first, every stage there, null where it did not happen; plain JSON throughout."""
    breach = Breach(RedLine.NUMERIC, BreachKind.NON_FINITE, "nan", "the loss …", "n2", 1, 40, ("n2",), 3.0)
    incident = Incident("i-1", "7_3", 2, "7.0", breach, suspects=("n2",), recovery="requeue", verdict="why")
    incident.stages["breach"] = 12.5
    body = json.loads(json.dumps(incident.as_json()))
    assert body == {
        "schema": 1,
        "incident": "i-1",
        "job_id": "7_3",
        "attempt": 2,
        "step_id": "7.0",
        "breach": {
            "red_line": "numeric",
            "kind": "non_finite",
            "value": "nan",
            "evidence": "the loss …",
            "node": "n2",
            "rank": 1,
            "iteration": 40,
        },
        "stages": {**dict.fromkeys(STAGES), "breach": 12.5},
        "suspects": ["n2"],
        "recovery": "requeue",
        "verdict": "why",
        "observe": False,
        "outcome": None,
    }
    assert next(iter(body)) == "schema"


def test_stages_are_in_the_order_in_which_they_happen() -> None:
    """And every incident has stages of its own."""
    assert STAGES == (
        "symptom",
        "breach",
        "dump_started",
        "dumped",
        "term_sent",
        "killed",
        "drain_requested",
        "restarted",
        "requeued",
        "resumed",
    )
    breach = Breach(RedLine.NUMERIC, BreachKind.NON_FINITE, "nan", "")
    first, second = (Incident("i", "7", 0, "7.0", breach) for _ in range(2))
    first.stages["breach"] = 1.0
    assert list(second.stages) == list(STAGES)
    assert second.stages["breach"] is None
