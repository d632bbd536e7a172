"""A sweep drains on two looks, lifts only its own drain, and a node that is well asks Slurm nothing."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.config.compiled import compile_site
from slurm_guard.errors import ConfigError
from slurm_guard.hooks import lift
from slurm_guard.hooks.baseline import Baseline, write_baseline
from slurm_guard.hooks.drain import drain_own_node, read_own_drain
from slurm_guard.hooks.ledger import Ledger
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.snapshot import read_hangs, read_snapshot
from slurm_guard.hooks.sweep import Sweep, run
from slurm_guard.model.claim import Claim, ClaimClass, encode_left
from slurm_guard.model.health import (
    Finding,
    Fitness,
    GpuReading,
    HealthClass,
    HealthReading,
    Level,
    NodeVerdict,
    Trouble,
    Unreadable,
)
from slurm_guard.model.ledger import LedgerKind
from slurm_guard.model.site import SiteSettings
from slurm_guard.ports import Slurm
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.slurm import FakeSlurm

READING = HealthReading(tuple(GpuReading(n, uuid=f"GPU-{n}", serial=f"165400{n}") for n in range(4)))
HEALTHY = NodeVerdict(Fitness.HEALTHY, None)
ECC = Finding("ecc_dram", 3, Level.FAIL, HealthClass.RESET, "1", "0", "1 uncorrectable error in memory")
BUSY = Finding(
    "leftover_process", 0, Level.FAIL, HealthClass.APPLICATION, "1", "0", "processes use the GPU: 7"
)
WARM = Finding("temperature_margin", 2, Level.WARN, HealthClass.REBOOT, "4 C", "5 C", "4 C are left")


def unfit(*findings: Finding) -> NodeVerdict:
    return NodeVerdict(Fitness.UNFIT, HealthClass.RESET, findings)


class Node:
    """The node n1 of a cluster of four, and what its next probes will find."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = FakeClock()
        self.cluster = FakeSlurm(["n1", "n2", "n3", "n4"], clock=self.clock).as_administrator()
        self.settings = SiteSettings(undrain=True, undrain_after_s=600)
        self.reading = READING
        self.looks_s: list[float] = []
        self.asked: list[str] = []

    def sweep(self, *verdicts: NodeVerdict | Exception) -> None:
        """One sweep; AssertionError unless it looks exactly that often."""
        left = list(verdicts)

        def look(timeout_s: float) -> tuple[NodeVerdict, HealthReading]:
            self.looks_s.append(timeout_s)
            verdict = left.pop(0)
            if isinstance(verdict, Exception):
                raise verdict
            return verdict, self.reading

        slurm: Slurm = Counted(self)  # type: ignore[assignment]
        Sweep(self.settings, self.place, "n1", look, slurm, self.clock).run()
        assert not left

    def kinds(self) -> list[str]:
        return [entry.kind.value for entry in Ledger(self.place.ledger).read()]

    @property
    def reason(self) -> str:
        return self.cluster.read_node("n1").reason


class Counted:
    """Slurm, with a list of what it was asked."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getattr__(self, name: str) -> object:
        method: Callable[..., object] = getattr(self._node.cluster, name)

        def ask(*words: str) -> object:
            self._node.asked.append(name)
            return method(*words)

        return ask


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(Place(tmp_path))


def test_a_node_that_is_well_leaves_a_snapshot_and_asks_slurm_nothing(node: Node) -> None:
    """All nodes of a cluster do so at the same moment."""
    node.sweep(HEALTHY)
    snapshot = read_snapshot(node.place, 60)
    assert snapshot is not None
    assert [gpu.serial for gpu in snapshot.gpus] == ["1654000", "1654001", "1654002", "1654003"]
    assert node.asked == []
    assert node.kinds() == []


def test_what_two_looks_find_drains_the_node_and_stands_in_the_ledger(node: Node) -> None:
    """With the serial number of the GPU, and no prolog trusts the snapshot any more."""
    node.sweep(unfit(ECC), unfit(ECC))
    assert node.reason.startswith("slurm-guard: ecc_dram gpu=3 class=reset id=")
    (entry,) = Ledger(node.place.ledger).read()
    assert (entry.kind, entry.gpu_serial, entry.check, entry.cls) == (
        LedgerKind.DRAIN, "1654003", "ecc_dram", "reset",
    )  # fmt: skip
    assert read_snapshot(node.place, 60) is None


def test_the_second_look_has_more_time_than_the_first(node: Node) -> None:
    """A hang is given its 25 s; both looks and the drain fit into the sweep's time."""
    node.sweep(unfit(ECC), HEALTHY)
    assert node.looks_s == [5.0, 28.0]
    node.settings = SiteSettings(sweep_s=45)
    node.sweep(unfit(ECC), HEALTHY)
    assert node.looks_s[2:] == [4.5, 28.0]


def silent(*gpus: int) -> NodeVerdict:
    """GPUs that gave no answer in a few seconds."""
    found = (Finding("gpu_hung", n, Level.SKIPPED, None, "unknown", "", f"GPU {n}: no answer") for n in gpus)
    return NodeVerdict(Fitness.UNKNOWN, None, tuple(found))


HUNG = Finding("gpu_hung", 1, Level.FAIL, HealthClass.RESET, "hung", "", "the GPU hangs: no answer in 26.0 s")


def test_what_a_short_look_leaves_open_a_long_one_decides(node: Node) -> None:
    """A driver that only starts slowly is healthy, also for the next prologs."""
    node.sweep(silent(1), HEALTHY)
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert read_snapshot(node.place, 60) is not None
    assert not node.place.log.exists()
    node.sweep(silent(1), unfit(HUNG))
    assert node.reason.startswith("slurm-guard: gpu_hung gpu=1 class=reset")
    assert read_hangs(node.place) == {("gpu_hung", 1)}
    node.sweep(silent(2), unfit(HUNG))
    assert "at the second look" in node.place.log.read_text()
    node.sweep(unfit(HUNG), HEALTHY)
    assert read_hangs(node.place) == frozenset()


def test_silence_that_stays_open_is_a_line_and_no_drain(node: Node) -> None:
    """Nor lifts it one."""
    node.sweep(unfit(ECC), unfit(ECC))
    node.clock.advance(3600)
    node.asked.clear()
    node.sweep(silent(1), silent(1))
    assert node.asked == []
    assert (
        "unfit: ecc_dram (GPU 3) -> unknown: gpu_hung (GPU 1): not judged: GPU 1: "
        in node.place.log.read_text()
    )


def test_the_log_tells_what_becomes_of_the_verdict_and_nothing_that_stays(node: Node) -> None:
    """With the names of the checks; a sweep that finds what the last one found has no line."""
    off = [Finding("persistence", n, Level.WARN, HealthClass.APPLICATION, "off", "on", "off") for n in (0, 1)]
    warn = NodeVerdict(Fitness.WARN, None, (*off, WARM))
    for verdict in (HEALTHY, HEALTHY, warn, warn):
        node.sweep(verdict)
    for _ in range(2):
        node.sweep(unfit(ECC, WARM), unfit(ECC, WARM))
    for _ in range(2):
        node.sweep(HEALTHY)
    said = [line.partition("] ")[2] for line in node.place.log.read_text().splitlines()]
    warned = "warn: persistence (GPU 0, 1), temperature_margin (GPU 2)"
    assert [line for line in said if line.startswith("sweep: ")] == [
        f"sweep: healthy -> {warned}",
        f"sweep: {warned} -> unfit: ecc_dram (GPU 3)",
        "sweep: unfit: ecc_dram (GPU 3) -> healthy",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="the program must be root's")
def test_a_person_is_called_for_a_drain_and_for_a_drain_too_many(node: Node, tmp_path: Path) -> None:
    """Each with what was found."""
    out, pager = tmp_path / "out", tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\necho "$1" >>{out}\n')
    pager.chmod(0o755)
    node.settings = SiteSettings(drain_limit=1, page=str(pager))
    node.sweep(unfit(ECC), unfit(ECC))
    node.cluster.undrain_node("n1")
    node.cluster.drain_node("n2", "slurm-guard: ecc_dram class=reset id=00000000")
    node.sweep(unfit(ECC), unfit(ECC))
    why = "GPU 3: ecc_dram (reset): 1 uncorrectable error in memory"
    while not (out.exists() and len(out.read_text().splitlines()) == 2):
        time.sleep(0.01)
    assert sorted(out.read_text().splitlines()) == [
        f"slurm-guard: n1 is unfit and drained: {why}",
        f"slurm-guard: n1 is unfit, but enough nodes are drained: it stays in service: {why}",
    ]


def test_a_gpu_that_is_lost_is_known_by_the_serial_number_that_it_had(node: Node) -> None:
    """It tells none any more; of another number of GPUs nobody knows which is which."""
    node.sweep(HEALTHY)
    lost = GpuReading(3, gone=Unreadable("GPU is lost", Trouble.LOST))
    node.reading = HealthReading((*READING.gpus[:3], lost))
    node.sweep(unfit(ECC), unfit(ECC))
    assert [entry.gpu_serial for entry in Ledger(node.place.ledger).read()] == ["1654003"]
    node.cluster.undrain_node("n1")
    node.reading = HealthReading((*READING.gpus[:2], lost))
    node.sweep(unfit(ECC), unfit(ECC))
    assert [entry.gpu_serial for entry in Ledger(node.place.ledger).read()] == ["1654003", ""]


@pytest.mark.parametrize(
    "second", [HEALTHY, unfit(replace(ECC, gpu=2)), unfit(replace(ECC, check="xid")), ConfigError("broken")]
)
def test_what_only_one_look_finds_drains_nothing(second: NodeVerdict | Exception, node: Node) -> None:
    """Another fault at the second look is one look at each of both; the log tells of it."""
    node.sweep(unfit(ECC), second)
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert "unfit, but " in node.place.log.read_text()


def test_processes_on_a_gpu_drain_nothing_and_are_left_out_of_the_reason(node: Node) -> None:
    """The node is in use. But no prolog takes it for swept."""
    node.sweep(unfit(BUSY))
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert read_snapshot(node.place, 60) is None
    node.sweep(unfit(BUSY, ECC), unfit(BUSY, ECC))
    assert node.reason.startswith("slurm-guard: ecc_dram gpu=3 class=reset")


def test_a_node_that_could_not_be_judged_is_only_a_line_in_the_log(node: Node) -> None:
    """The snapshot of before speaks no longer."""
    node.sweep(HEALTHY)
    node.sweep(ConfigError("expected-gpus holds no number"))
    assert read_snapshot(node.place, 60) is None
    node.sweep(NodeVerdict(Fitness.UNKNOWN, None))
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert len(node.place.log.read_text().splitlines()) == 2


def test_a_humans_drain_stays_word_for_word_whatever_the_sweep_finds(node: Node) -> None:
    """Sick or well."""
    node.cluster.set_node("n1", "IDLE", "DRAIN", reason="bad cable, ticket 4711", by="alice")
    before = node.cluster.read_node("n1")
    node.sweep(unfit(ECC), unfit(ECC))
    node.clock.advance(7200)
    node.sweep(HEALTHY)
    assert node.cluster.read_node("n1") == before


def test_our_own_drain_is_lifted_in_health_after_its_time(node: Node) -> None:
    """And that stands in the ledger."""
    node.sweep(unfit(ECC), unfit(ECC))
    node.clock.advance(590)
    node.sweep(HEALTHY)
    assert "DRAIN" in node.cluster.read_node("n1").states
    node.clock.advance(10)
    node.sweep(HEALTHY)
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert node.kinds() == ["drain", "undrain"]
    assert read_own_drain(node.place, "n1") is None


def test_a_site_that_lifts_no_drain_is_not_even_asked(node: Node) -> None:
    """The default: a human lifts it."""
    node.settings = SiteSettings()
    node.sweep(unfit(ECC), unfit(ECC))
    node.clock.advance(1_000_000)
    node.asked.clear()
    node.sweep(HEALTHY)
    assert node.asked == []
    assert "DRAIN" in node.cluster.read_node("n1").states


@pytest.mark.parametrize("change", ["words", "again", "other"])
def test_a_drain_that_a_human_has_made_his_own_is_never_lifted(change: str, node: Node) -> None:
    """Also where he gives the very same words again, and where another of ours has another id."""
    node.sweep(unfit(ECC), unfit(ECC))
    ours = node.reason
    node.clock.advance(60)
    said = {"words": f"{ours} keep for the vendor", "again": ours, "other": f"{ours[:-8]}00000000"}[change]
    node.cluster.set_node("n1", "IDLE", "DRAIN", reason=said, by="root")
    node.clock.advance(3600)
    node.sweep(HEALTHY)
    assert node.reason == said
    assert "is not slurm-guard's any more" in node.place.log.read_text()


def test_a_drain_of_slurms_own_that_shows_our_old_reason_is_never_lifted(node: Node) -> None:
    """A human lifted ours, the reason stayed, and Slurm drains the node itself: it keeps words and time."""
    node.cluster = FakeSlurm(["n1", "n2"], clock=node.clock, keeps_reasons=True).as_administrator()
    node.sweep(unfit(ECC), unfit(ECC))
    ours = node.cluster.read_node("n1")
    node.cluster.undrain_node("n1")
    assert node.reason == ours.reason
    node.sweep(HEALTHY)
    node.cluster.drain_itself("n1", "Low RealMemory")
    assert node.cluster.read_node("n1") == ours
    node.clock.advance(3600)
    node.sweep(HEALTHY)
    assert node.cluster.read_node("n1") == ours


def test_a_drain_that_was_never_counted_is_counted_by_the_next_sweep(node: Node) -> None:
    """The hook was killed in the middle, and meanwhile one with a smaller name has the same second."""

    class Killed(FakeClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    clock = Killed()
    node.settings = SiteSettings(drain_limit=1)
    node.cluster = FakeSlurm(["n0", "n1"], clock=clock).as_administrator()
    with pytest.raises(KeyboardInterrupt):
        drain_own_node(node.cluster, "n1", unfit(ECC), node.settings, clock, place=node.place)
    node.cluster.drain_node("n0", "slurm-guard: ecc_dram class=reset id=00000000")
    node.sweep(unfit(ECC), unfit(ECC))
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert "its drain was one too many within the hour" in node.place.log.read_text()


def test_a_node_over_the_cap_stays_in_service_with_one_entry_in_six_hours(node: Node) -> None:
    """However often it is found."""
    node.settings = SiteSettings(drain_limit=1)
    for _ in range(3):
        node.cluster.undrain_node("n2")
        node.cluster.drain_node("n2", "slurm-guard: ecc_dram class=reset id=00000000")
        node.sweep(unfit(ECC), unfit(ECC))
        node.clock.advance(3600)
    assert node.cluster.read_node("n1").states == {"IDLE"}
    assert node.kinds() == ["capped"]


def test_a_node_over_the_cap_asks_nothing_for_ten_minutes_and_more(node: Node) -> None:
    """A whole cluster may be over it. When there is room again it is drained."""
    node.settings = SiteSettings(drain_limit=1)
    node.cluster.drain_node("n2", "slurm-guard: ecc_dram class=reset id=00000000")
    node.sweep(unfit(ECC), unfit(ECC))
    node.asked.clear()
    node.clock.advance(599)
    node.sweep(unfit(ECC))
    assert node.asked == []
    node.clock.advance(3600)
    node.sweep(unfit(ECC), unfit(ECC))
    assert "DRAIN" in node.cluster.read_node("n1").states


@pytest.mark.parametrize("change", ["gpu", "check", "class", "healed", "settings"])
def test_a_node_over_the_cap_that_has_changed_is_asked_for_at_once(change: str, node: Node) -> None:
    """Another fault, one that was away in between, or a new limit: the old answer holds for none of them."""
    node.settings = SiteSettings(drain_limit=1)
    node.cluster.drain_node("n2", "slurm-guard: ecc_dram class=reset id=00000000")
    node.sweep(unfit(ECC), unfit(ECC))
    assert (
        "n1: ecc_dram GPU 3: 1 uncorrectable error in memory: stays in service: "
        in node.place.log.read_text()
    )
    node.sweep(unfit(ECC))
    node.cluster.undrain_node("n2")
    found = {
        "gpu": replace(ECC, gpu=2),
        "check": replace(ECC, check="xid"),
        "class": replace(ECC, cls=HealthClass.REPLACE),
    }.get(change, ECC)
    if change == "healed":
        node.sweep(HEALTHY)
    if change == "settings":
        node.settings = SiteSettings(drain_limit=2)
    node.sweep(unfit(found), unfit(found))
    assert "DRAIN" in node.cluster.read_node("n1").states


def test_a_lemon_is_for_a_person_to_lift(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drain that was lifted is a fault of its own. He is called once; what he lifts is lifted."""
    paged: list[str] = []
    monkeypatch.setattr(lift, "page", lambda _, kind, node, said, **more: paged.append(said))
    for _ in range(3):
        node.sweep(unfit(ECC), unfit(ECC))
        node.clock.advance(600)
        node.sweep(HEALTHY)
        node.sweep(HEALTHY)
    assert "DRAIN" in node.cluster.read_node("n1").states
    why = "a lemon (3 × proved fault): its drain is for a person to lift"
    assert paged == [f"slurm-guard: n1 is healthy again, but {why}"]
    assert node.place.log.read_text().count(why) == 1
    assert node.kinds() == ["drain", "undrain", "drain", "undrain", "drain"]
    node.cluster.undrain_node("n1")
    node.sweep(HEALTHY)
    assert read_own_drain(node.place, "n1") is None


def test_a_warning_is_entered_when_it_begins_and_not_at_each_sweep(node: Node) -> None:
    """When it comes back it is another one."""
    for findings in ((WARM,), (WARM,), (), (WARM,)):
        node.sweep(NodeVerdict(Fitness.WARN, None, findings))
    assert node.kinds() == ["sweep_warn", "sweep_warn"]


def leave_claim(place: Place, clock: FakeClock, job_id: str = "12") -> None:
    spool = place.spool(job_id)
    spool.mkdir(parents=True)
    claim = Claim(ClaimClass.HARDWARE, job_id, "n1", "001-ecc", clock.wall_s(), gpu="GPU-3", check="ecc_dram")
    (spool / "hardware-001-ecc.json").write_bytes(encode_left(claim))
    write_baseline(place, job_id, Baseline("a1", read_boot_id(), clock.wall_s() - 60, 0.0))


def test_the_claim_of_a_living_job_is_written_down_once_and_believed_never(node: Node) -> None:
    """The probe finds nothing: nothing is drained, and no GPU is blamed, which may be another job's."""
    leave_claim(node.place, node.clock)
    node.sweep(HEALTHY)
    node.sweep(HEALTHY)
    (entry,) = Ledger(node.place.ledger).read()
    assert (entry.kind, entry.gpu_serial, entry.user_id, entry.job_id, entry.check) == (
        LedgerKind.CLAIM, "", os.getuid(), "12", "ecc_dram",
    )  # fmt: skip
    assert node.cluster.read_node("n1").states == {"IDLE"}


def test_the_claim_of_a_living_job_that_the_probe_confirms_drains_with_its_number(node: Node) -> None:
    """Claim, proof and drain stand in the ledger."""
    leave_claim(node.place, node.clock)
    node.sweep(unfit(ECC), unfit(ECC))
    assert node.reason.startswith("slurm-guard: ecc_dram gpu=3 class=reset job=12 id=")
    assert sorted(node.kinds()) == ["claim", "drain", "proof"]


def test_a_state_directory_that_cannot_be_written_costs_the_memory_and_not_the_drain(node: Node) -> None:
    """The log says that a human has to lift it."""
    node.place.state.parent.mkdir(parents=True)
    node.place.state.write_text("")
    node.sweep(unfit(ECC), unfit(ECC))
    assert "DRAIN" in node.cluster.read_node("n1").states
    assert "is for a human to lift" in node.place.log.read_text()


def test_a_controller_that_is_silent_leaves_a_line_and_the_node_as_it_is(node: Node) -> None:
    """The next sweep tries again."""
    node.cluster.available = False
    node.sweep(unfit(ECC), unfit(ECC))
    assert "n1 could not be drained" in node.place.log.read_text()
    assert read_own_drain(node.place, "n1") is None


@pytest.fixture
def site(tmp_path: Path) -> Place:
    """A node whose scontrol says that it was called."""
    place = Place(tmp_path)
    place.settings.mkdir(parents=True)
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    program.chmod(0o755)
    place.compiled.write_text(compile_site(place.settings, str(program)))
    return place


def test_the_hook_needs_nothing_but_the_name_of_its_node(site: Place) -> None:
    """Its environment holds nothing else; a machine without GPUs is well."""
    assert run({"SLURMD_NODENAME": "n1"}, site) is False
    assert read_snapshot(site, 60) is not None
    assert not (site.root / "called").exists()


def test_a_sweep_without_room_for_its_lock_judges_all_the_same(site: Place) -> None:
    """As on a full /run: a lost GPU must not be missed for that."""
    site.node.parent.mkdir(parents=True)
    site.node.touch()
    assert run({"SLURMD_NODENAME": "n1"}, site) is False
    assert "sweep: no snapshot for the prologs: " in site.log.read_text()


def test_a_second_sweep_at_the_same_time_leaves_at_once(site: Place) -> None:
    """The first may be slow."""
    site.node.mkdir(parents=True)
    started, done = os.pipe()
    going, ended = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.open(site.node / "sweep.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(done, b"x")
        os.close(ended)
        os.read(going, 1)
        os._exit(0)
    os.read(started, 1)
    assert run({"SLURMD_NODENAME": "n1"}, site) is False
    assert not site.snapshot.exists()
    os.close(ended)
    os.waitpid(child, 0)
    run({"SLURMD_NODENAME": "n1"}, site)
    assert site.snapshot.exists()


def test_broken_settings_are_one_line_in_the_log(site: Place) -> None:
    """And nothing is judged."""
    site.compiled.write_text("{}")
    assert run({"SLURMD_NODENAME": "n1"}, site) is False
    assert "sweep: nothing is judged: " in site.log.read_text()


@pytest.mark.parametrize("name", ["claims", "warned", "state", "waits_for", "until_s"])
@pytest.mark.parametrize("value", [None, 7, "x", {}])
def test_a_memory_of_another_form_is_forgotten(node: Node, name: str, value: object) -> None:
    """Another version's, say: it must not break every sweep until the next boot."""
    memory = node.place.node / "sweep.json"
    memory.parent.mkdir(parents=True)
    memory.write_text(json.dumps({name: value}))
    node.sweep(unfit(ECC), unfit(ECC))
    assert "ecc_dram" in node.reason
