"""The verdict on a node: that of its worst finding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields

from slurm_guard.model.health import (
    Finding,
    Fitness,
    GpuReading,
    HealthClass,
    HealthReading,
    HostReading,
    Level,
    NodeVerdict,
    Profile,
    Trouble,
    Unreadable,
)
from slurm_guard.policy.health.check import Case, apply_switch, run_check, skip
from slurm_guard.policy.health.gpu import CHECKS
from slurm_guard.policy.health.hang import DRIVER, GPU, Where, explain_doubt, find_doubts, proves_hang
from slurm_guard.policy.health.host import judge_host

GENERIC = "generic"
_GRAVITY = list(HealthClass)
_SICK = {
    Trouble.POWER: (HealthClass.REPLACE, "has too little power: a cable"),
    Trouble.FIRMWARE: (HealthClass.REPLACE, "has a corrupt InfoROM"),
    Trouble.LOST: (HealthClass.REBOOT, "is lost"),
    Trouble.INTERRUPT: (HealthClass.REBOOT, "has an interrupt problem"),
    Trouble.UNKNOWN: (HealthClass.REBOOT, "gives unknown errors again and again"),
    Trouble.RESET_REQUIRED: (HealthClass.RESET, "needs a reset"),
    Trouble.HUNG: (HealthClass.RESET, "hangs"),
}
"""What is wrong with a GPU that answers so, the gravest first."""
_BROKEN = {
    **{trouble: cls for trouble, (cls, _) in _SICK.items()},
    Trouble.HUNG: HealthClass.REBOOT,
    Trouble.MISMATCH: HealthClass.REBOOT,
}
"""What mends a node on which no GPU can be asked at all."""
_ABSENT = (Trouble.NO_DRIVER, Trouble.NO_LIBRARY, Trouble.NO_GPU)


def judge_node(
    reading: HealthReading,
    profiles: Sequence[Profile],
    wanted: str | None = None,
    *,
    host: HostReading | None = None,
    log: Sequence[Finding] = (),
    convicted: Collection[Where] = (),
) -> NodeVerdict:
    """The verdict; each GPU by the profile of its model, or all of them by the one named `wanted`.

    `profiles` holds one named "generic", by which the node itself is judged too. `log` is what was found in
    the kernel log, and what rose too fast; `convicted` are the hangs that the last sweep has found.
    """
    base = _named(profiles, wanted or GENERIC)
    known = {gpu.index for gpu in reading.gpus}
    nameless = [found for found in log if found.gpu not in known]
    whole = [*_judge_whole(reading, convicted), *nameless, *(judge_host(host, base) if host else ())]
    findings = [kept for found in whole if (kept := apply_switch(found, base))]
    gpus = {}
    for gpu in reading.gpus:
        profile = base if wanted else choose_profile(gpu.name, profiles)
        said = [*_judge_gpu(gpu, profile, reading, convicted), *(one for one in log if one.gpu == gpu.index)]
        found = [kept for one in said if (kept := apply_switch(one, profile))]
        gpus[gpu.index] = _fitness(found)
        findings += found
    fitness = _fitness(findings)
    if fitness is not Fitness.UNFIT and reading.failure is not None and not _explained(reading):
        fitness = Fitness.UNKNOWN
    return NodeVerdict(fitness, _gravest(findings), tuple(findings), gpus)


def choose_profile(name: str | Unreadable, profiles: Sequence[Profile]) -> Profile:
    """The profile of a model: the one with the most words that are all in its name, else the generic one."""
    words = name.lower() if isinstance(name, str) else ""
    fitting = [p for p in profiles if p.match and all(word.lower() in words for word in p.match)]
    return max(fitting, key=lambda p: len(p.match), default=_named(profiles, GENERIC))


def _named(profiles: Sequence[Profile], name: str) -> Profile:
    return next(profile for profile in profiles if profile.name == name)


def _judge_whole(reading: HealthReading, convicted: Collection[Where]) -> Iterator[Finding]:
    failure, fail = reading.failure, Level.FAIL
    seen = len(reading.gpus)
    hung = failure is not None and failure.trouble is Trouble.HUNG
    if failure is not None and hung and not proves_hang(reading, DRIVER, None, convicted):
        yield skip(DRIVER, None, explain_doubt(None, failure.reason))
        return
    if failure is not None and failure.trouble in _BROKEN:
        cls = _BROKEN[failure.trouble]
        yield Finding(f"node_{failure.trouble.value}", None, fail, cls, "no answer", "", failure.reason)
        return
    if failure is not None and _explained(reading):
        yield skip("gpu_count", None, f"no GPU is expected here: {failure.reason}")
    elif failure is not None and failure.trouble in _ABSENT:
        name = f"node_{failure.trouble.value}"
        yield Finding(name, None, fail, HealthClass.REBOOT, "no answer", "", failure.reason)
    elif failure is not None:
        yield skip("probe", None, failure.reason)
    elif reading.expected is not None and seen < reading.expected:
        evidence = f"{seen} of {reading.expected} GPUs are seen by the driver"
        yield Finding("gpu_count", None, fail, HealthClass.REBOOT, str(seen), str(reading.expected), evidence)
    elif reading.expected is None and reading.on_bus is not None and seen < reading.on_bus:
        # A cgroup may hide the others from this process.
        evidence = f"{reading.on_bus} GPUs are on the PCI bus, the driver shows {seen}"
        yield Finding(
            "gpu_bus", None, Level.WARN, HealthClass.REBOOT, str(seen), str(reading.on_bus), evidence
        )


def _explained(reading: HealthReading) -> bool:
    """Whether there is no answer because there is nobody to answer."""
    assert reading.failure is not None
    # A site that says 0 means it: a card that only shows a picture needs no driver.
    wanted = reading.on_bus if reading.expected is None else reading.expected
    return reading.failure.trouble in _ABSENT and not wanted


def _judge_gpu(
    gpu: GpuReading, profile: Profile, node: HealthReading, convicted: Collection[Where]
) -> Iterator[Finding]:
    troubles = [value for value in _values(gpu) if isinstance(value, Unreadable)]
    sick = [trouble for trouble in _SICK if any(value.trouble is trouble for value in troubles)]
    if sick[:1] == [Trouble.HUNG] and not proves_hang(node, GPU, gpu.index, convicted):
        reason = next(value.reason for value in troubles if value.trouble is Trouble.HUNG)
        yield skip(GPU, gpu.index, explain_doubt(gpu.index, reason))
    elif sick:
        cls, words = _SICK[sick[0]]
        reason = next(value.reason for value in troubles if value.trouble is sick[0])
        evidence = f"the GPU {words}: {reason}"
        yield Finding(f"gpu_{sick[0].value}", gpu.index, Level.FAIL, cls, sick[0].value, "", evidence)
    failed = [value.reason for value in troubles if value.trouble is Trouble.FAILED]
    if failed:
        evidence = f"{len(failed)} readings failed, as with: {failed[0]}"
        cls = HealthClass.APPLICATION
        yield Finding("gpu_failed", gpu.index, Level.WARN, cls, str(len(failed)), "0", evidence)
    if gpu.gone is None:
        case = Case(gpu, profile, node)
        yield from (found for check in CHECKS if (found := run_check(check, case)))


def _values(gpu: GpuReading) -> Iterator[object]:
    return (getattr(gpu, one.name) for one in fields(gpu))


def _fitness(findings: Sequence[Finding]) -> Fitness:
    levels = {finding.level for finding in findings}
    if Level.FAIL in levels:
        return Fitness.UNFIT
    if find_doubts(findings):
        return Fitness.UNKNOWN
    return Fitness.WARN if Level.WARN in levels else Fitness.HEALTHY


def _gravest(findings: Sequence[Finding]) -> HealthClass | None:
    for level in (Level.FAIL, Level.WARN):
        classes = [found.cls for found in findings if found.level is level and found.cls is not None]
        if classes:
            return max(classes, key=_GRAVITY.index)
    return None
