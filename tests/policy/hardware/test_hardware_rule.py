"""Each rule of the hardware red line: what convicts a GPU, and what just does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from slurm_guard.model.breach import Breach, BreachKind, RedLine, SickGpu
from slurm_guard.model.gpu import GpuFault, GpuState
from slurm_guard.model.limits import Settings
from slurm_guard.policy.hardware.rule import HUNG_WARN_S, UNKNOWN_S, limit_replays
from slurm_guard.policy.hardware.watch import HardwareWatch

SETTINGS = Settings(thermal_s=600, probe_hang_s=300)
WELL = GpuState(
    node="n1",
    gpu=3,
    uuid="GPU-3",
    action=0,
    ecc_uncorrected=0,
    ecc_dram=0,
    ecc_sram=0,
    remap_pending=False,
    remap_failed=False,
    replays=7,
    pcie_generation=5,
    pcie_lanes=16,
    links_down=(),
    temperature_c=61,
    slowdown_c=87,
    clock_limits=0,
)
CONSUMER = GpuState("n1", 3, "GPU-3", temperature_c=61, slowdown_c=87, clock_limits=0)
NO_REMAP = replace(WELL, remap_pending=None, remap_failed=None)
NO_PLACES = replace(WELL, ecc_dram=None, ecc_sram=None)
READ_S = 5.0


class Gpu:
    """One GPU of a rank's node, read every 5 s."""

    def __init__(self, first: GpuState = WELL) -> None:
        self.watch = HardwareWatch()
        self.now_s = 1000.0
        self.state = first
        self.working_s = 0.0
        self.watch.seen(first, self.now_s)

    def read(self, for_s: float = READ_S, **changes: Any) -> Breach | None:
        """So it is read from now on, for so long; what that comes to."""
        self.state = replace(self.state, **changes)
        breach = None
        for _ in range(int(for_s / READ_S)):
            self.now_s += READ_S
            self.watch.seen(self.state, self.now_s)
            breach = self.judge()
        return breach

    def judge(self) -> Breach | None:
        return self.watch.judge(SETTINGS, {"n1"}, self.working_s, 42)

    def notes(self) -> str:
        return "; ".join(self.watch.take_notes())


@pytest.mark.parametrize(
    ("first", "changes", "kind", "said"),
    [
        (WELL, {"trouble": "lost"}, BreachKind.GPU_LOST, "it is lost"),
        (CONSUMER, {"trouble": "lost"}, BreachKind.GPU_LOST, "it is lost"),
        (WELL, {"trouble": "reset_required"}, BreachKind.GPU_RESET, "it needs a reset"),
        (WELL, {"action": 1}, BreachKind.GPU_RESET, "the driver asks to reset the GPU"),
        (WELL, {"action": 2}, BreachKind.GPU_RESET, "the driver asks to reboot the node"),
        (WELL, {"action": 5}, BreachKind.GPU_RESET, "the driver asks to recover the IMEX domain"),
        (WELL, {"action": 6}, BreachKind.GPU_RESET, "the driver asks to reset the bus"),
        (WELL, {"action": 7}, BreachKind.GPU_RESET, "the driver asks to reboot the system"),
        (
            WELL,
            {"action": 9},
            BreachKind.GPU_RESET,
            "the driver asks to do something that this version does not know",
        ),
        (WELL, {"action": 2, "trouble": "lost"}, BreachKind.GPU_LOST, "it is lost"),
        (WELL, {"ecc_sram": 1, "ecc_uncorrected": 1}, BreachKind.ECC, "1 uncorrectable memory error in SRAM"),
        (
            NO_REMAP,
            {"ecc_dram": 2},
            BreachKind.ECC,
            "2 uncorrectable memory errors in DRAM: it can remap none",
        ),
        (
            replace(NO_PLACES, remap_failed=None, remap_pending=None),
            {"ecc_uncorrected": 4},
            BreachKind.ECC,
            "4 uncorrectable memory errors",
        ),
        (WELL, {"remap_failed": True}, BreachKind.ROW_REMAP, "a row of memory could not be remapped"),
    ],
)
def test_what_stops_the_job_at_once(
    first: GpuState, changes: dict[str, Any], kind: BreachKind, said: str
) -> None:
    """The breach names the node, the GPU and the sentence, in the first reading that shows it."""
    breach = Gpu(first).read(**changes)
    assert breach is not None
    assert (breach.red_line, breach.kind, breach.node, breach.suspects) == (
        RedLine.HARDWARE,
        kind,
        "n1",
        ("n1",),
    )
    assert breach.evidence == f"GPU 3 (GPU-3) of n1: {said}"
    assert (breach.iteration, breach.rank) == (42, None)


@pytest.mark.parametrize(
    ("first", "changes", "said"),
    [
        (WELL, {"action": 3}, "the driver asks to drain peer-to-peer work"),
        (WELL, {"action": 4}, "the driver asks to drain the node and reset the GPU"),
        (WELL, {"ecc_dram": 1, "ecc_uncorrected": 1}, "in DRAM: its rows are remapped"),
        (NO_PLACES, {"ecc_uncorrected": 4}, "4 uncorrectable memory errors"),
        (WELL, {"remap_pending": True}, "a row of memory is remapped at the next reset"),
        (WELL, {"links_down": (4, 7)}, "NVLink 4, 7 went down"),
        (WELL, {"trouble": "power"}, "it says: power"),
        (WELL, {"trouble": "firmware"}, "it says: firmware"),
    ],
)
def test_what_is_told_once_and_stops_nothing(first: GpuState, changes: dict[str, Any], said: str) -> None:
    """The driver lets the work go on, or nobody knows that it is more than a warning."""
    gpu = Gpu(first)
    assert gpu.read(**changes, for_s=60) is None
    notes = gpu.notes()
    assert notes.startswith("GPU 3 (GPU-3) of n1: ")
    assert said in notes
    assert gpu.read(for_s=3600) is None
    assert gpu.notes() == ""


@pytest.mark.parametrize("first", [WELL, NO_REMAP, CONSUMER], ids=["well", "no-remap", "consumer"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature_c": 86},
        {"temperature_c": None, "slowdown_c": None},
        {"ecc_uncorrected": None, "ecc_dram": None, "ecc_sram": None, "remap_failed": None},
        {"action": None, "links_down": None, "replays": None},
    ],
)
def test_what_is_no_evidence(first: GpuState, changes: dict[str, Any]) -> None:
    """A reading as the first, a warm GPU, and readings that are missing: silence, for an hour."""
    gpu = Gpu(first)
    assert gpu.read(for_s=3600, **changes) is None
    assert (gpu.notes(), gpu.watch.amiss) == ("", set())


@pytest.mark.parametrize(
    "bad",
    [
        {"trouble": "lost"},
        {"action": 2},
        {"ecc_sram": 5, "ecc_uncorrected": 5},
        {"remap_failed": True},
        {"links_down": (4,)},
        {"clock_limits": 0x40},
        {"temperature_c": 99},
        {"trouble": "unknown"},
        {"trouble": "hung"},
    ],
)
def test_what_was_so_before_the_training_stops_nothing(bad: dict[str, Any]) -> None:
    """For as long as it lasts; the prolog let the job begin on it."""
    gpu = Gpu(replace(WELL, **bad))
    assert gpu.read(for_s=7200) is None


def test_a_gpu_that_was_ill_before_the_training_is_told() -> None:
    """Once, and that the training goes on."""
    gpu = Gpu(GpuState("n1", 3, "GPU-3", "lost"))
    assert "its state is lost" in gpu.notes()
    assert gpu.read(for_s=600) is None
    assert gpu.notes() == ""


def test_only_a_rise_of_a_counter_counts() -> None:
    """From where it was first; without persistence mode it may fall, and begins anew there."""
    gpu = Gpu(replace(WELL, ecc_sram=7))
    assert gpu.read() is None
    assert gpu.read(ecc_sram=0) is None
    breach = gpu.read(ecc_sram=1)
    assert breach is not None
    assert breach.value == "1"


def test_a_counter_that_was_unreadable_at_first_begins_with_its_first_value() -> None:
    """What it counted before that may be years old."""
    gpu = Gpu(replace(WELL, ecc_sram=None))
    assert gpu.read(ecc_sram=9) is None
    assert gpu.read(ecc_sram=10) is not None


def test_a_recovery_action_that_the_driver_takes_back_and_asks_for_again() -> None:
    """It was so at first, then no longer: from then on it is news."""
    gpu = Gpu(replace(WELL, action=2))
    assert gpu.read() is None
    assert gpu.read(action=0) is None
    assert gpu.read(action=2) is not None


def test_a_hang_is_told_and_convicts_when_it_lasts() -> None:
    """After 30 s and after probe_hang_s, where the training has made no progress in it."""
    gpu = Gpu()
    gpu.working_s = 1000.0
    assert gpu.read(trouble="hung", for_s=HUNG_WARN_S) is None
    assert gpu.notes() == ""
    assert gpu.read() is None
    assert gpu.notes() == "GPU 3 (GPU-3) of n1: its driver has given no answer for 30 s"
    assert gpu.read(for_s=265) is None
    breach = gpu.read()
    assert breach is not None
    assert (breach.kind, breach.value, breach.symptom_ago_s) == (BreachKind.GPU_HUNG, "300 s", 300.0)


def test_a_hang_in_which_the_training_goes_on_stops_nothing() -> None:
    """A driver that hangs halts the ranks too: here only the question is slow."""
    gpu = Gpu()
    gpu.working_s = 1010.0
    assert gpu.read(trouble="hung", for_s=3600) is None
    gpu.working_s = 1004.0
    assert gpu.judge() is not None


def test_hangs_with_answers_in_between_are_none() -> None:
    """Only one without a break counts."""
    gpu = Gpu()
    for _ in range(20):
        assert gpu.read(trouble="hung", for_s=250) is None
        assert gpu.read(trouble="") is None


def test_a_gpu_that_was_ill_at_first_may_change_its_words() -> None:
    """It was never well: in which words it says so depends on which question met it."""
    gpu = Gpu(GpuState("n1", 3, "GPU-3", "hung"))
    for trouble in ("lost", "unknown", "unknown", "unknown", "reset_required", "hung", "lost"):
        assert gpu.read(trouble=trouble) is None
    assert gpu.read(trouble="") is None
    assert gpu.read(trouble="lost") is not None


def test_unknown_errors_in_which_the_training_goes_on_stop_nothing() -> None:
    """A driver that this process may no longer open says so, while the ranks hold it open."""
    gpu = Gpu()
    gpu.working_s = math.inf
    assert gpu.read(trouble="unknown", for_s=3600) is None
    assert "unknown errors" in gpu.notes()


def test_unknown_errors_again_and_again_are_a_lost_gpu() -> None:
    """One reading of them is told; the third in a row convicts; one in between starts anew."""
    gpu = Gpu()
    assert gpu.read(trouble="unknown", for_s=10) is None
    assert "unknown errors" in gpu.notes()
    assert gpu.read(trouble="") is None
    assert gpu.read(trouble="unknown", for_s=10) is None
    breach = gpu.read()
    assert UNKNOWN_S < 10
    assert breach is not None
    assert (breach.kind, breach.gpu) == (
        BreachKind.GPU_LOST,
        SickGpu("gpu_unknown", 3, "GPU-3", "none", "reboot"),
    )


@pytest.mark.parametrize(
    ("hot", "said"),
    [
        ({"clock_limits": 0x48}, "the hardware holds its clocks down: slow-down, thermal slow-down, at 61 C"),
        ({"clock_limits": 0x80}, "the hardware holds its clocks down: power brake, at 61 C"),
    ],
)
def test_clocks_held_down_convict_after_thermal_s(hot: dict[str, Any], said: str) -> None:
    """Told at the second reading, a breach after ten minutes without a break in a training that stands."""
    gpu = Gpu()
    assert gpu.read(for_s=600, **hot) is None
    assert gpu.notes() == f"GPU 3 (GPU-3) of n1: {said} (limit 87 C), for 5 s"
    breach = gpu.read()
    assert breach is not None
    assert (breach.kind, breach.value, breach.symptom_ago_s) == (BreachKind.THERMAL, "600 s", 600.0)


def test_a_training_that_goes_on_under_held_clocks_is_slow_and_no_more() -> None:
    """A bad day of the data centre: told once, and stopped only when it has come to a halt."""
    gpu = Gpu()
    gpu.working_s = math.inf
    assert gpu.read(for_s=6 * 3600, clock_limits=0x40) is None
    assert gpu.notes().endswith("thermal slow-down, at 61 C (limit 87 C), for 5 s")
    gpu.working_s = 0.0
    assert gpu.judge() is not None


def test_heat_that_the_hardware_does_not_act_on_is_told() -> None:
    """Of newer chips the limit is not the hardware's own: only its word that it holds clocks down counts."""
    gpu = Gpu()
    assert gpu.read(for_s=3600, temperature_c=90) is None
    assert "its clocks go down, at 90 C" in gpu.notes()


@pytest.mark.parametrize("bad", [{"trouble": "hung"}, {"clock_limits": 0x40}, {"trouble": "unknown"}])
def test_what_nobody_read_for_a_while_did_not_last(bad: dict[str, Any]) -> None:
    """A watchdog that was gone in between: the time until it is back proves nothing."""
    gpu = Gpu()
    assert gpu.read(**bad) is None
    gpu.now_s += 3600
    assert gpu.read(**bad) is None


def test_another_gpu_under_the_same_number_has_counts_of_its_own() -> None:
    """After a GPU was lost, whoever asks the driver anew gets other numbers."""
    gpu = Gpu()
    assert gpu.read(uuid="GPU-4", ecc_sram=7, remap_failed=True, action=2) is None
    assert gpu.read(ecc_sram=8) is not None


@pytest.mark.parametrize(
    "cool", [{"clock_limits": 0x4}, {"clock_limits": 0x20 | 0x1}, {"clock_limits": 0x200}]
)
def test_clock_limits_of_the_driver_and_unknown_ones_are_normal(cool: dict[str, Any]) -> None:
    """The power cap at full load, an idle GPU, software's slow-down, bits of a newer driver."""
    gpu = Gpu()
    assert gpu.read(for_s=3600, **cool) is None
    assert gpu.notes() == ""


def test_a_moment_of_cool_begins_the_heat_anew() -> None:
    """Clocks that flash down are usual."""
    gpu = Gpu()
    for _ in range(5):
        assert gpu.read(clock_limits=0x8, for_s=600) is None
        assert gpu.read(clock_limits=0) is None


def test_packets_sent_again_are_told_above_the_rate_of_the_link() -> None:
    """31 a minute for 16 lanes of generation 5, 8 for generation 3; they stop nothing."""
    assert [limit_replays(replace(WELL, pcie_generation=g)) for g in (3, 4, 5)] == [8, 16, 31]
    gpu = Gpu()
    for minute in range(1, 10):
        assert gpu.read(for_s=60, replays=7 + 31 * minute) is None
    assert gpu.notes() == ""
    assert gpu.read(for_s=60, replays=1000) is None
    assert gpu.notes() == "GPU 3 (GPU-3) of n1: PCIe sent 714 packets again in a minute"


def fault(level: str, value: str, cls: str = "reset") -> GpuFault:
    return GpuFault("n1", 3, "GPU-3", level, cls, value, f"{value}: what it means")


def test_a_fault_that_takes_a_gpu_out_stops_the_job() -> None:
    """With the driver's code as the value."""
    gpu = Gpu()
    gpu.watch.failed(fault("fail", "Xid 79", "reboot"), gpu.now_s)
    breach = gpu.judge()
    assert breach is not None
    assert (breach.kind, breach.value, breach.evidence) == (
        BreachKind.XID,
        "Xid 79",
        "GPU 3 (GPU-3) of n1: Xid 79: what it means",
    )
    assert breach.gpu == SickGpu("xid", 3, "GPU-3", "none", "reboot")


@pytest.mark.parametrize("code", [74, 145, 155])
def test_an_error_of_a_link_stops_no_training_that_goes_on(code: int) -> None:
    """It is told; where the training halts after it, it is the cause."""
    gpu = Gpu()
    gpu.working_s = math.inf
    gpu.watch.failed(fault("fail", f"Xid {code}"), gpu.now_s)
    assert gpu.judge() is None
    assert gpu.notes() == f"GPU 3 (GPU-3) of n1: Xid {code}: what it means"
    gpu.working_s = gpu.now_s - 1
    assert gpu.judge() is not None


@pytest.mark.parametrize(
    ("first", "stops"),
    [(WELL, False), (replace(WELL, remap_failed=True), True), (NO_REMAP, True)],
)
def test_the_code_of_a_memory_error_says_no_more_than_its_counter(first: GpuState, stops: bool) -> None:
    """NVML tells of it without the code beside it that says that its row is remapped."""
    gpu = Gpu(first)
    gpu.working_s = math.inf
    gpu.watch.failed(fault("fail", "Xid 48"), gpu.now_s)
    assert (gpu.judge() is not None) == stops
    assert (gpu.read(trouble="hung", remap_failed=None) is not None) == stops
    gpu.working_s = 0.0
    assert gpu.judge() is not None


@pytest.mark.parametrize("asked", ["Drain and Reset", "Drain P2P Required"])
def test_the_driver_lets_the_work_end_in_its_log_too(asked: str) -> None:
    """As where its state says so."""
    gpu = Gpu()
    gpu.watch.failed(fault("fail", f"Xid 154: {asked}"), gpu.now_s)
    assert gpu.judge() is None
    assert "Xid 154" in gpu.notes()


def test_what_the_driver_asked_for_before_is_no_news_beside_a_fault_of_the_program() -> None:
    """Every code brings its old wish up again; one that came since counts."""
    gpu = Gpu(replace(WELL, action=2))
    gpu.watch.failed(fault("fail", "Xid 154: Node Reboot", "reboot"), gpu.now_s)
    for action in (2, None, 0):
        assert gpu.read(action=action) is None
    gpu.watch.failed(fault("fail", "Xid 154: Node Reboot", "reboot"), gpu.now_s)
    assert gpu.judge() is not None


def test_a_fault_that_only_warns_is_told() -> None:
    """Each one once."""
    gpu = Gpu()
    for value in ("Xid 94", "Xid 94", "Xid 109"):
        gpu.watch.failed(fault("warn", value), gpu.now_s)
        assert gpu.judge() is None
    assert (
        gpu.notes()
        == "GPU 3 (GPU-3) of n1: Xid 94: what it means; GPU 3 (GPU-3) of n1: Xid 109: what it means"
    )
