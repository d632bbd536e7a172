"""The GPUs of a whole job: whose breach it is, what a next training begins with, and time left out."""

from __future__ import annotations

from slurm_guard.model.breach import Breach, BreachKind
from slurm_guard.model.gpu import GpuFault, GpuState
from slurm_guard.model.limits import Settings
from slurm_guard.policy.hardware.watch import HardwareWatch

SETTINGS = Settings(probe_hang_s=300)
NODES = {"n1", "n2"}


def seen(*states: GpuState) -> HardwareWatch:
    """Two well GPUs on each of three nodes, then these."""
    watch = HardwareWatch()
    for node in ("n1", "n2", "n3"):
        for gpu in (0, 1):
            watch.seen(GpuState(node, gpu, f"{node}-{gpu}", ecc_sram=0), 0.0)
    for state in states:
        watch.seen(state, 5.0)
    return watch


def judge(watch: HardwareWatch) -> Breach | None:
    return watch.judge(SETTINGS, NODES, 0.0, None)


def test_nothing_is_amiss_where_all_are_well() -> None:
    """So nobody looks at them."""
    watch = seen()
    assert (judge(watch), watch.amiss, watch.take_notes()) == (None, set(), [])


def test_the_gravest_of_several_names_the_breach() -> None:
    """All their nodes are suspects; the others are counted."""
    breach = judge(seen(GpuState("n1", 0, ecc_sram=2), GpuState("n2", 1, "", "lost")))
    assert breach is not None
    assert (breach.kind, breach.node, breach.suspects) == (BreachKind.GPU_LOST, "n2", ("n1", "n2"))
    assert breach.evidence == "GPU 1 (n2-1) of n2: it is lost; 1 more GPU beside it"


def test_a_node_without_ranks_is_only_told_of() -> None:
    """A spare node of the allocation hurts nobody; when ranks run there, it does."""
    watch = seen(GpuState("n3", 0, trouble="lost"))
    assert judge(watch) is None
    assert watch.take_notes() == ["GPU 0 (n3-0) of n3: it is lost"]
    breach = watch.judge(SETTINGS, {"n3"}, 0.0, None)
    assert breach is not None
    assert breach.node == "n3"


def test_what_passes_is_amiss_no_longer() -> None:
    """A driver that gave unknown errors once."""
    watch = seen(GpuState("n1", 0, trouble="unknown"))
    assert watch.amiss == {("n1", 0)}
    watch.seen(GpuState("n1", 0, ecc_sram=0), 10.0)
    assert (watch.amiss, judge(watch)) == (set(), None)


def test_the_next_training_begins_with_what_is_so_now() -> None:
    """What stopped the last one is held against nobody again; what comes anew is."""
    watch = seen(GpuState("n1", 0, ecc_sram=2), GpuState("n2", 1, trouble="lost"))
    watch.failed(GpuFault("n1", 0, "", "fail", "reset", "Xid 48", "Xid 48"), 5.0)
    later = watch.renewed()
    assert judge(later) is None
    later.seen(GpuState("n2", 1, trouble="lost"), 10.0)
    later.seen(GpuState("n1", 0, ecc_sram=2), 10.0)
    assert judge(later) is None
    later.seen(GpuState("n1", 0, ecc_sram=3), 15.0)
    breach = judge(later)
    assert breach is not None
    assert (breach.node, breach.value) == ("n1", "1")


def test_time_that_is_left_out_is_no_hang() -> None:
    """A job that was suspended for an hour."""
    watch = seen(GpuState("n1", 0, trouble="hung"))
    watch.shifted(3600.0)
    for now_s in range(3610, 3905, 5):
        watch.seen(GpuState("n1", 0, trouble="hung"), now_s)
        assert judge(watch) is None
    watch.seen(GpuState("n1", 0, trouble="hung"), 5.0 + 3600.0 + 300.0)
    assert judge(watch) is not None


def test_time_without_readings_is_no_hang() -> None:
    """A watchdog that is slow has read it all the same; one that was gone says nothing of the time."""
    watch = seen(GpuState("n1", 0, trouble="hung"))
    watch.seen(GpuState("n1", 0, trouble="hung"), 45.0)
    assert watch.gpus["n1", 0].lasts_s("hung") == 40.0
    watch.seen(GpuState("n1", 0, trouble="hung"), 1000.0)
    assert watch.gpus["n1", 0].lasts_s("hung") == 0.0
    assert judge(watch) is None


def test_a_fault_of_a_gpu_that_was_never_read() -> None:
    """Its report came first."""
    watch = HardwareWatch()
    watch.failed(GpuFault("n1", 0, "GPU-0", "fail", "reboot", "Xid 79", "Xid 79"), 0.0)
    breach = judge(watch)
    assert breach is not None
    assert breach.evidence == "GPU 0 (GPU-0) of n1: Xid 79"


def test_certainly_broken_gpus_explain_dead_ranks() -> None:
    """Heat and a hang do not."""
    watch = seen(
        GpuState("n1", 0, trouble="lost"),
        GpuState("n2", 0, clock_limits=0x40),
        GpuState("n3", 0, trouble="hung"),
    )
    watch.seen(GpuState("n2", 0, clock_limits=0x40), 3600.0)
    assert watch.sick() == {"n1": "GPU 0 (n1-0) of n1: it is lost"}
