"""Silence is a fault only where there was time enough for an answer."""

from __future__ import annotations

import pytest

from slurm_guard.config.profile import load_profiles
from slurm_guard.model.health import Fitness, GpuReading, HealthReading, Level, Trouble, Unreadable
from slurm_guard.policy.admission import decide_admission
from slurm_guard.policy.health.hang import HANG_S, find_doubts, find_hangs
from slurm_guard.policy.health.node import judge_node
from slurm_guard.policy.proof import choose_lasting

SILENT = Unreadable("no answer in 2.8 s", Trouble.HUNG)
LOST = GpuReading(3, gone=Unreadable("GPU is lost", Trouble.LOST))


def driver(asked_s: float) -> HealthReading:
    return HealthReading(failure=SILENT, asked_s=asked_s)


def gpu(asked_s: float, starting_s: float = 0.0, *others: GpuReading) -> HealthReading:
    return HealthReading((GpuReading(1, gone=SILENT), *others), asked_s=asked_s, starting_s=starting_s)


@pytest.mark.parametrize(
    ("reading", "fitness"),
    [
        (driver(HANG_S - 0.1), Fitness.UNKNOWN),
        (driver(HANG_S), Fitness.UNFIT),
        (gpu(HANG_S - 0.1), Fitness.UNKNOWN),
        (gpu(HANG_S), Fitness.UNFIT),
        (gpu(HANG_S, 17.0), Fitness.UNFIT),
        (gpu(HANG_S, 17.1), Fitness.UNKNOWN),
    ],
)
def test_25_s_make_a_hang(reading: HealthReading, fitness: Fitness) -> None:
    """Of a GPU at least 8 of them have to be its own, after the driver has started."""
    assert judge_node(reading, load_profiles()).fitness is fitness


def test_what_the_last_sweep_convicted_hangs_at_once() -> None:
    """The same hang; another GPU's is none."""
    for where, fitness in (("gpu_hung", 1), Fitness.UNFIT), (("gpu_hung", 2), Fitness.UNKNOWN):
        assert judge_node(gpu(2.8), load_profiles(), convicted={where}).fitness is fitness


def test_other_faults_count_beside_a_silent_gpu() -> None:
    """The silent one is unknown, the node unfit for the lost one."""
    verdict = judge_node(gpu(2.8, 0.0, LOST), load_profiles())
    assert (verdict.fitness, verdict.gpus) == (Fitness.UNFIT, {1: Fitness.UNKNOWN, 3: Fitness.UNFIT})
    admission = decide_admission(verdict, (), refuse_unjudged=False)
    assert admission.why == "GPU 3: gpu_lost (reboot): the GPU is lost: GPU is lost"


@pytest.mark.parametrize("refuse", [False, True])
def test_silence_that_proves_nothing_leaves_the_node_unjudged(refuse: bool) -> None:
    """Also beside what other jobs do on their GPUs; the words say what, how long, and who decides."""
    busy = GpuReading(2, processes=(7,))
    for reading, where in ((gpu(2.8, 0.0, busy), "GPU 1: "), (driver(2.8), "")):
        admission = decide_admission(judge_node(reading, load_profiles()), (), refuse_unjudged=refuse)
        assert (admission.admitted, admission.verdict.cls) == (not refuse, None)
        said = "no answer in 2.8 s: it may be only slow, a sweep waits for 25 s and decides"
        assert admission.why == f"not judged: {where}{said}"


def test_a_short_silence_and_a_long_one_are_two_looks() -> None:
    """What the first look was too short for is proved by the second; that it alone has seen is not."""
    short, long = judge_node(gpu(2.8), load_profiles()), judge_node(gpu(26.0), load_profiles())
    well = judge_node(HealthReading((GpuReading(1),)), load_profiles())
    assert len(find_doubts(short.findings)) == 1
    assert find_hangs(choose_lasting(short, long)) == {("gpu_hung", 1)}
    for first, again in ((short, short), (well, long), (short, well)):
        assert not any(f.level is Level.FAIL for f in choose_lasting(first, again).findings)
