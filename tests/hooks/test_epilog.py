"""The end of a job: cleared up, its scene safe, and the node drained on root's own proof, never on a word."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooks.node_slurm import NodeSlurm

from slurm_guard.adapters.boot import read_boot_id
from slurm_guard.config.compiled import compile_site
from slurm_guard.hooks import epilog
from slurm_guard.hooks.baseline import Baseline, write_baseline
from slurm_guard.hooks.epilog import compare, name_lost, run
from slurm_guard.hooks.leftover import Leftover
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.serial import name_gpus
from slurm_guard.hooks.snapshot import GpuCount
from slurm_guard.model.claim import Claim, ClaimClass, Left, ScenePointer, encode_left, name_file
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
from slurm_guard.policy.admission import unjudged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the epilog has it")

USER = 54322
GPUS = (
    GpuReading(0, uuid="GPU-0", serial="s0", minor=0, ecc_uncorrected=0, mig=False),
    GpuReading(1, uuid="GPU-1", serial="s1", minor=1, ecc_uncorrected=2, mig=False),
)
READING = HealthReading(GPUS)
ECC = Finding("ecc_sram", 1, Level.FAIL, HealthClass.RESET, "2", "0", "2 uncorrectable errors")
HEALTHY = NodeVerdict(Fitness.HEALTHY, None)
SICK = NodeVerdict(Fitness.UNFIT, HealthClass.RESET, (ECC,))
CLAIM = Claim(ClaimClass.HARDWARE, "7", "n2", "i", 0.0, gpu="GPU-1", check="ecc_sram")


class Node:
    """Node n2 after job 7 of user 54322, which had GPU 1."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = Place(root / "root")
        self.slurm = NodeSlurm(root / "slurm")
        self.environ = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": f"{USER}",
            "SLURM_JOB_GPUS": "1",
            "SLURMD_NODENAME": "n2",
            "SLURM_CLUSTER_NAME": "c",
        }
        self.place.settings.mkdir(parents=True)
        (self.place.root / "var/tmp").mkdir(parents=True)
        self.configure("")
        self.probes = 0
        self.verdicts = [HEALTHY]
        monkeypatch.setattr(epilog, "judge_here", self._judge)
        monkeypatch.setattr(epilog, "_PAUSE_S", 0.01)

    def _judge(self, *given: object) -> tuple[NodeVerdict, HealthReading]:
        self.probes += 1
        return self.verdicts[min(self.probes, len(self.verdicts)) - 1], READING

    def configure(self, toml: str) -> None:
        """The site's settings."""
        (self.place.settings / "site.toml").write_text(toml)
        body = json.loads(compile_site(self.place.settings, str(self.slurm.program)))
        self.place.compiled.write_text(json.dumps(body))

    def begin(self) -> None:
        """What the prolog did."""
        spool = self.place.spool("7")
        spool.mkdir(parents=True)
        os.chown(spool, USER, USER)
        before = tuple(GpuCount(gpu, f"GPU-{gpu}", f"s{gpu}", gpu, 0) for gpu in (0, 1))
        write_baseline(self.place, "7", Baseline("ab12", read_boot_id(), time.time(), 0.0, before))

    def leave(self, left: Left) -> None:
        """What the job's watchdog leaves."""
        path = self.place.spool("7") / name_file(left)
        path.write_bytes(encode_left(left))
        os.chown(path, USER, USER)

    def claim(self, gpu: str = "GPU-1") -> None:
        """A claim about a GPU."""
        self.leave(Claim(ClaimClass.HARDWARE, "7", "n2", "i", time.time(), gpu=gpu, check="ecc_sram"))

    def run(self) -> bool:
        """The epilog; whether it refuses."""
        return run(self.environ, self.place)

    @property
    def log(self) -> list[str]:
        """The lines of its log, without time and pid."""
        path = self.place.log
        return [line.split("] ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def ledger(self) -> list[tuple[object, ...]]:
        """Kind, GPU, user and check of each entry."""
        path = self.place.ledger
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(e["kind"], e["gpu_serial"], e["user_id"], e["job_id"], e["check"]) for e in entries]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """One."""
    return Node(tmp_path, monkeypatch)


def test_usual_end_asks_slurm_nothing_and_leaves_nothing(node: Node) -> None:
    """Spool, baseline and the sweep's snapshot are gone; the log has nothing to say."""
    node.begin()
    node.place.snapshot.touch()
    assert not node.run()
    assert node.slurm.calls == []
    assert list(node.place.node.iterdir()) == []
    assert list(node.place.jobs.iterdir()) == []
    assert node.log == []
    assert node.probes == 1


def test_unfit_node_is_drained_and_refused(node: Node) -> None:
    """With the specific reason, seen twice; what is new since the job began is told."""
    node.begin()
    node.verdicts = [SICK]
    assert node.run()
    assert "Reason=slurm-guard: ecc_sram gpu=1 class=reset job=7 id=" in node.slurm.node("n2")
    assert node.probes == 2
    assert ("proof", "s1", USER, "7", "ecc_sram") in node.ledger
    assert ("drain", "s1", USER, "7", "ecc_sram") in node.ledger
    assert "epilog: job 7: since it began: GPU 1: ecc_uncorrected 0 -> 2" in node.log


def test_gpu_lost_without_a_baseline_has_the_serial_number_that_a_sweep_has_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that began before slurm-guard was installed."""
    name_gpus(node.place, READING)
    lost = GpuReading(1, gone=Unreadable("GPU is lost", Trouble.LOST))
    monkeypatch.setitem(globals(), "READING", HealthReading((GPUS[0], lost)))
    node.verdicts = [SICK]
    assert node.run()
    assert ("drain", "s1", USER, "7", "ecc_sram") in node.ledger


def test_a_silent_gpu_is_left_to_the_sweep(node: Node) -> None:
    """It may be only slow: a line, and no second look."""
    node.begin()
    silent = Finding("gpu_hung", 1, Level.SKIPPED, None, "unknown", "", "GPU 1: no answer in 2.8 s")
    node.verdicts = [NodeVerdict(Fitness.UNKNOWN, None, (silent,))]
    assert not node.run()
    assert node.log == ["epilog: job 7: not judged: GPU 1: no answer in 2.8 s"]
    assert node.probes == 1


def test_forged_claim_drains_nothing(node: Node) -> None:
    """The GPU is healthy: the ledger remembers who said otherwise of which."""
    node.begin()
    node.claim()
    assert not node.run()
    assert node.slurm.calls == []
    assert node.ledger == [("claim", "s1", USER, "7", "ecc_sram")]


def test_claim_is_entered_once(node: Node) -> None:
    """A sweep may have been there before, and an epilog may run twice."""
    for _ in range(2):
        node.begin()
        node.claim()
        assert not node.run()
    assert node.ledger == [("claim", "s1", USER, "7", "ecc_sram")]


def test_claim_about_the_gpu_of_another_job_says_nothing_of_it(node: Node) -> None:
    """He cannot have seen it."""
    node.begin()
    node.claim("GPU-0")
    assert not node.run()
    assert node.ledger == [("claim", "", USER, "7", "ecc_sram")]


def test_node_that_cannot_be_judged_is_innocent(node: Node) -> None:
    """A probe that fails proves nothing."""
    node.begin()
    node.claim()
    node.verdicts = [unjudged("broken")]
    assert not node.run()
    assert [entry[0] for entry in node.ledger] == ["claim"]


def test_fault_that_only_one_look_has_seen_is_none(node: Node) -> None:
    """Drivers stumble."""
    node.verdicts = [SICK, HEALTHY]
    assert not node.run()
    assert node.slurm.calls == []


def test_broken_probe_is_a_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the epilog has its turn all the same."""

    def fail(*given: object) -> None:
        raise RuntimeError("a fault of ours")

    node.begin()
    monkeypatch.setattr(epilog, "judge_here", fail)
    assert not node.run()
    assert node.log == ["epilog: job 7: a part of it failed: RuntimeError: a fault of ours"]
    assert list(node.place.jobs.iterdir()) == []


def test_silent_slurm_refuses_all_the_same(node: Node) -> None:
    """With proof Slurm drains the node by the exit code, though without our reason."""
    node.verdicts = [SICK]
    node.slurm.silence()
    assert node.run()
    assert node.log[-1] == "epilog: job 7: whether the node is drained is unknown"


def test_slow_slurm_does_not_lengthen_it(node: Node) -> None:
    """The question is given up at its share of the time."""
    node.configure("[epilog]\nepilog_s = 5\n")
    node.verdicts = [SICK]
    node.slurm.slow(60)
    started_s = time.monotonic()
    assert node.run()
    assert time.monotonic() - started_s < 30
    assert len(node.slurm.calls) == 1


def test_absent_scontrol_refuses_all_the_same(node: Node) -> None:
    """A broken path is as good as a silent controller."""
    node.verdicts = [SICK]
    node.slurm.program.unlink()
    assert node.run()


def test_beyond_the_cap_the_node_stays_and_a_person_is_paged(node: Node, tmp_path: Path) -> None:
    """The epilog ends with 0: Slurm must not drain it either."""
    pager = tmp_path / "pager"
    pager.write_text(
        f'#!/bin/sh\necho "$1" >{tmp_path}/paged.new; mv {tmp_path}/paged.new {tmp_path}/paged\n'
    )
    pager.chmod(0o755)
    node.configure(f'[hooks]\npage = "{pager}"\n[breaker]\ndrain_limit = 1\n')
    node.slurm.drain("n1", "slurm-guard: gpu_lost gpu=0 class=reboot id=00ab12cd")
    node.verdicts = [SICK]
    assert not node.run()
    assert "DRAIN" not in node.slurm.node("n2")
    assert [entry[0] for entry in node.ledger] == ["capped", "proof"]
    deadline_s = time.monotonic() + 20
    while not (tmp_path / "paged").exists():
        assert time.monotonic() < deadline_s, node.log
        time.sleep(0.01)
    assert "n2 is unfit, but enough nodes are drained" in (tmp_path / "paged").read_text()


def test_drain_of_a_human_stays_word_for_word(node: Node) -> None:
    """It stands: nothing to refuse."""
    node.verdicts = [SICK]
    node.slurm.drain("n2", "Bob: new cables tomorrow", "bob")
    before = node.slurm.node("n2")
    assert not node.run()
    assert node.slurm.node("n2") == before


def test_second_epilog_of_a_job_is_harmless(node: Node) -> None:
    """The drain of the first stands, with its reason."""
    node.begin()
    node.verdicts = [SICK]
    assert node.run()
    before = node.slurm.node("n2")
    assert not node.run()
    assert node.slurm.node("n2") == before
    assert [entry[0] for entry in node.ledger].count("drain") == 1


def test_two_epilogs_at_once_drain_once(node: Node) -> None:
    """One waits for the other, and finds its work done."""
    node.begin()
    node.claim()
    node.verdicts = [SICK]
    children = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            os._exit(node.run())
        children.append(pid)
    assert sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children) == [0, 1]
    assert sum("state=drain" in call for call in node.slurm.calls) == 1
    assert os.listdir(node.place.node) == ["serials.json"]


def test_epilog_that_cannot_have_its_turn_leaves_the_job_to_the_other(node: Node) -> None:
    """It waits as long as an epilog may take, and no longer."""
    import fcntl

    node.configure("[epilog]\nepilog_s = 5\n")
    node.begin()
    with (node.place.node / "7.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not node.run()
    assert node.probes == 0
    assert node.log == ["epilog: job 7: left to another epilog of it, which is still at work"]


def test_without_a_lock_it_goes_on(node: Node) -> None:
    """What root remembers of the node has no place: there is nobody to wait for."""
    node.place.node.parent.mkdir(parents=True)
    node.place.node.touch()
    node.verdicts = [SICK]
    assert node.run()


def test_without_a_prolog_the_node_is_judged_all_the_same(node: Node) -> None:
    """No spool, no baseline, no directory."""
    node.verdicts = [SICK]
    assert node.run()
    assert "DRAIN" in node.slurm.node("n2")


def test_empty_environment_does_nothing(node: Node) -> None:
    """One line, and no refusal."""
    assert not run({}, node.place)
    assert len(node.log) == 1
    assert node.probes == 0


@pytest.mark.parametrize("text", ["", "{", '{"schema": 99}', '{"schema": 1}'])
def test_broken_settings_do_nothing(node: Node, text: str) -> None:
    """A broken upgrade drains nobody."""
    node.verdicts = [SICK]
    node.place.compiled.write_text(text)
    assert not node.run()
    assert len(node.log) == 1
    assert node.slurm.calls == []


def test_undelivered_scene_is_archived(node: Node, tmp_path: Path) -> None:
    """Under job and attempt."""
    node.begin()
    scene = tmp_path / "slurm-guard-7-i-x"
    scene.mkdir()
    (scene / "processes-n2.json").write_text("[]")
    for path in (scene, scene / "processes-n2.json"):
        os.chown(path, USER, USER)
    node.leave(ScenePointer("7", "n2", "i", time.time(), str(scene)))
    assert not node.run()
    assert (node.place.archive / "7-ab12/i/processes-n2.json").read_text() == "[]"


@pytest.fixture
def leftover() -> Iterator[subprocess.Popen[bytes]]:
    """A process that job 7 has left."""
    marks = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2"}
    process = subprocess.Popen(["/bin/sleep", "600"], env=marks, user=USER, group=USER, extra_groups=[])
    yield process
    process.kill()
    process.wait()


def test_leftover_is_killed(node: Node, leftover: subprocess.Popen[bytes]) -> None:
    """And is no proof of anything."""
    assert not node.run()
    assert leftover.wait() == -9
    assert node.slurm.calls == []


def test_leftover_that_cannot_be_killed_is_proof(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though every GPU is healthy: only a reboot ends it."""
    stuck = Leftover(os.getpid(), 0)
    monkeypatch.setattr(epilog, "kill_leftovers", lambda *given: (stuck,))
    monkeypatch.setattr(epilog, "choose_stuck", lambda left, until_s: tuple(left))
    assert node.run()
    assert "Reason=slurm-guard: unkillable class=reboot job=7" in node.slurm.node("n2")


def test_old_ring_of_a_forgotten_job_goes(node: Node) -> None:
    """The only thing that an epilog of a healthy node asks Slurm about."""
    node.configure("[epilog]\nring_days = 1\n")
    base = node.place.root / "var/tmp/slurm-guard-ann"
    ring = base / "c-4711"
    ring.mkdir(parents=True)
    for path in (base, ring):
        os.chown(path, USER, USER)
    assert not node.run()
    assert node.slurm.calls == []
    real = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + 2 * 86400)
        assert not node.run()
    assert node.slurm.calls == ["show job 4711 -o"]
    assert not ring.exists()


def test_epilog_keeps_nothing_open_and_no_thread(node: Node) -> None:
    """slurmd waits for whoever holds its pipe."""
    node.begin()
    node.claim()
    node.verdicts = [SICK]
    before, threads = sorted(os.listdir("/proc/self/fd")), set(threading.enumerate())
    node.run()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert set(threading.enumerate()) <= threads


def test_lost_gpu_has_the_serial_number_that_it_had() -> None:
    """The ledger is to know it again in another node; without a baseline it stays unknown."""
    lost = GpuReading(1, gone=Unreadable("GPU is lost", Trouble.LOST))
    before = Baseline("a", "b", 0.0, 0.0, (GpuCount(0, serial="s0"), GpuCount(1, serial="s1")))
    reading = HealthReading((GPUS[0], lost))
    assert [gpu.serial for gpu in name_lost(reading, before).gpus] == ["s0", "s1"]
    assert name_lost(reading, None) == reading


def test_only_what_has_changed_is_told() -> None:
    """By UUID: numbers change, and what is unknown now or was unknown then tells nothing."""
    before = (
        GpuCount(0, "GPU-1", "s1", 1, ecc_uncorrected=1, retired_pages=None),
        GpuCount(1, "GPU-0", "s0", 0, ecc_uncorrected=0),
        GpuCount(2, "GPU-9", "s9", 9, ecc_uncorrected=0),
    )
    assert compare(Baseline("a", "b", 0.0, 0.0, before), READING) == ["GPU 1: ecc_uncorrected 1 -> 2"]
    assert compare(None, READING) == []
