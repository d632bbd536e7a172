"""One breach and all that was done about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from slurm_guard.model.breach import Breach

SCHEMA = 1

STAGES = (
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
"""The stages of an incident in their order. A stage that did not happen stays null."""


@dataclass(slots=True)
class Incident:
    """What `incident.json` holds. `stages` are epoch seconds; `incident` is its name, as `001-stall`.

    `outcome` says of an observed breach what became of it: `outcome` (recovered, ended or open), `after_s`
    and `how`; None until that is known. `rescue` says which ring checkpoint was carried to shared storage, or
    why not; None where there was none to carry.
    """

    incident: str
    job_id: str
    attempt: int
    step_id: str
    breach: Breach
    stages: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(STAGES))
    suspects: tuple[str, ...] = ()
    recovery: str = ""
    verdict: str = ""
    observe: bool = False
    outcome: dict[str, object] | None = None
    rescue: dict[str, object] | None = None

    def as_json(self) -> dict[str, Any]:
        """The document, schema first."""
        body = asdict(self)
        breach = body["breach"]
        breach["red_line"] = self.breach.red_line.value
        breach["kind"] = self.breach.kind.value
        del breach["symptom_ago_s"], breach["suspects"], breach["healthy_iteration"]
        if self.rescue is None:
            del body["rescue"]
        if self.breach.gpu is None:
            del breach["gpu"]
        return {"schema": SCHEMA, **body}
