"""The prolog's own probe: a job is refused only for what two looks have found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_guard.config.compiled import Compiled, compile_site
from slurm_guard.hooks import gate
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.gate import Gate
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import Finding, Fitness, HealthClass, HealthReading, Level, NodeVerdict
from slurm_guard.policy.admission import Admission, unjudged

JOB = HookJob("12", 65534, 65534, "", "n1")
WELL = NodeVerdict(Fitness.HEALTHY, None)
Judge = Callable[..., Admission]


def unfit(check: str) -> NodeVerdict:
    """A node with this one fault."""
    found = Finding(check, None, Level.FAIL, HealthClass.REBOOT, "no answer", "", f"{check} says so")
    return NodeVerdict(Fitness.UNFIT, HealthClass.REBOOT, (found,))


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The answer of a gate that finds one verdict after the other; no look is left over."""

    def run(*verdicts: NodeVerdict, site: str = "") -> Admission:
        (tmp_path / "site.toml").write_text(site)
        looks = list(verdicts)
        monkeypatch.setattr(gate, "judge_here", lambda *_: (looks.pop(0), HealthReading()))
        monkeypatch.setattr(gate, "_AGAIN_S", 0.0)
        compiled = Compiled(json.loads(compile_site(tmp_path)))
        admission = Gate(compiled, Place(tmp_path), JOB, time.monotonic()).judge()
        assert looks == []
        return admission

    return run


@pytest.mark.parametrize("fault", ["node_hung", "node_no_library", "node_mismatch", "gpu_lost"])
def test_what_only_the_first_look_finds_refuses_nobody(judge: Judge, tmp_path: Path, fault: str) -> None:
    """A driver was slow once, or its library was being replaced; the log remembers it."""
    assert judge(unfit(fault), WELL).admitted
    assert f"at the first look only: node: {fault} (reboot): " in Place(tmp_path).log.read_text()


def test_what_both_looks_find_refuses(judge: Judge) -> None:
    """It lasts."""
    admission = judge(unfit("node_hung"), unfit("node_hung"))
    assert (admission.admitted, admission.verdict.cls) == (False, HealthClass.REBOOT)


@pytest.mark.parametrize("again", [unfit("gpu_count"), unjudged("no process can be made")])
def test_second_look_that_finds_something_else_proves_nothing(judge: Judge, again: NodeVerdict) -> None:
    """A driver that is being loaded says one thing after the other."""
    assert judge(unfit("node_no_driver"), again).admitted


def test_site_that_refuses_the_unjudged_is_not_kept_waiting(judge: Judge) -> None:
    """There is nothing that a second look could confirm."""
    assert not judge(unjudged("no process can be made"), site='[prolog]\nunjudged = "refuse"\n').admitted
