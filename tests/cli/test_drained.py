"""`slurm-guard node drained`: the drains of slurm-guard's own, of the whole cluster."""

from __future__ import annotations

import json
import time

import pytest

from slurm_guard.adapters.slurm_choice import SlurmChoice
from slurm_guard.cli import drained
from slurm_guard.cli.app import main
from slurm_guard.errors import CommandFailed
from slurm_guard.model.reading import NodeReading
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.slurm import FakeSlurm

LOST = "slurm-guard: gpu_lost gpu=0 class=reboot job=12 id=00ab12cd"
SCRATCH = "slurm-guard: scratch class=reboot id=11ab12cd"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Five nodes: n1 and n4 drained by us, n2 by a person, n3 kept by a person in our words, n5 idle."""
    clock = FakeClock(wall_s=1795978441.0)
    cluster = FakeSlurm([f"n{number}" for number in range(1, 6)], clock=clock)
    root = cluster.as_administrator()
    root.drain_node("n1", LOST)
    clock.advance(60)
    root.drain_node("n2", "bad cable")
    root.drain_node("n3", f"{LOST}, keep for the vendor")
    root.drain_node("n4", SCRATCH)
    monkeypatch.setattr(drained, "choose_slurm", lambda: SlurmChoice(cluster, "commands", "a test"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return cluster


@pytest.mark.usefixtures("slurm")
def test_the_last_one_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Who has changed a reason has taken the drain over."""
    assert main(["node", "drained"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 of 5 nodes drained by slurm-guard, 2 by others",
        "SINCE                NODE  CHECK     GPU  CLASS   JOB  STATE       PARTITIONS",
        "2026-11-29 18:55:01  n4    scratch   -    reboot  -    DRAIN+IDLE  main",
        "2026-11-29 18:54:01  n1    gpu_lost  0    reboot  12   DRAIN+IDLE  main",
    ]


@pytest.mark.usefixtures("slurm")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same, with the reason in whole."""
    assert main(["node", "drained", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["drained_by_others"] == 2
    assert [one["node"] for one in said["nodes"]] == ["n4", "n1"]
    assert said["nodes"][1] == {
        "node": "n1",
        "states": ["DRAIN", "IDLE"],
        "partitions": ["main"],
        "reason": LOST,
        "by": "root",
        "since_s": 1795978441.0,
        "check": "gpu_lost",
        "class": "reboot",
        "gpu": 0,
        "job": "12",
        "id": "00ab12cd",
    }


def test_a_machine_without_slurm_conf_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """scontrol's own words end where an administrator begins to ask."""

    class Lost(FakeSlurm):
        def read_nodes(self) -> tuple[NodeReading, ...]:
            said = "scontrol: fatal: Could not establish a configuration source"
            raise CommandFailed(["scontrol", "show", "node"], 1, said)

    choice = SlurmChoice(Lost(["n1"]), "commands", "a test")
    monkeypatch.setattr(drained, "choose_slurm", lambda: choice)
    assert main(["node", "drained"]) == 1
    said = capsys.readouterr().err
    assert said.endswith("a configuration source: set SLURM_CONF to the path of slurm.conf\n")


def test_a_silent_controller_is_one_line(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown is not none."""
    slurm.available = False
    assert main(["node", "drained"]) == 1
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert "no answer" in said.err
