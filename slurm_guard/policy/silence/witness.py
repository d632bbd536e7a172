"""The second witness: what else speaks against ranks that are silent for longer than their rhythm allows.

Where a witness is missing, or another one contradicts it, nothing is said and the fixed limit decides:
a training that is killed for nothing costs more than a hang that is noticed later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_guard.policy.silence.load import LoadTable
from slurm_guard.policy.silence.rank import RankTable, Stillness
from slurm_guard.policy.silence.stall import Looks, judge_looks

READINGS = 3
"""Readings of a rank in one silence before they say anything."""

FLAT_CORES = 0.01
"""CPU time of a rank, in cores, below which it only waits."""

ACTIVE_CORES = 0.1
"""CPU time of a rank, in cores, from which on it computes: a full node may leave it no more."""

MOVED_BYTES = 1 << 20
"""Bytes that a rank reads and writes in a silence from which on it is at work."""


def judge_witness(
    first: Mapping[int, str],
    second: Mapping[int, str],
    ranks: RankTable,
    loads: LoadTable,
    *,
    again: bool = False,
) -> str:
    """What speaks against the ranks, in a few words; "" when nothing does, or something contradicts.

    `first` and `second` are the signatures of two looks at the stacks (rank to signature), none of
    which shows a phase. `again` is whether this is not the first pair of looks of the silence.
    """
    still = ranks.stillness()
    living = ranks.living()
    looks = judge_looks(first, second, living)
    unseen = [rank for rank in living if rank not in first]
    if looks is Looks.CHANGING or _held(still) or _moved(still) or loads.working(ranks.silence):
        return ""
    if not again and _waits_for_disk(still):
        return ""
    halted = _name_halted(first, second, ranks, still)
    if halted:
        return halted
    if looks is Looks.UNCHANGED and first == second and not _at_work(still, living) and _rest(still, unseen):
        return f"the stacks of all {len(first)} ranks seen did not change between two looks"
    if looks is Looks.UNCHANGED and living and _rest(still, living):
        return "the stacks of most ranks did not change between two looks, and no rank used its CPU"
    pinned = f"all {len(loads.gpus)} GPUs are pinned at far less than their power in training"
    return pinned if loads.pinned(ranks.silence) else ""


def _held(still: Mapping[int, Stillness]) -> bool:
    """Whether a debugger holds a rank, or somebody has stopped all of them."""
    newest = [one.states[-1:] for one in still.values()]
    return "t" in newest or (bool(newest) and set(newest) == {"T"})


def _waits_for_disk(still: Mapping[int, Stillness]) -> bool:
    """Whether a rank mostly is in uninterruptible sleep: a file server may only be slow for once."""
    return any(2 * one.states.count("D") > len(one.states) for one in still.values())


def _moved(still: Mapping[int, Stillness]) -> bool:
    """Whether a rank reads or writes: a slow checkpoint, or a data set that is being loaded."""
    for one in still.values():
        before, now = one.first.io_bytes, one.newest.io_bytes if one.newest else None
        if before is not None and now is not None and now - before >= MOVED_BYTES:
            return True
    return False


def _rest(still: Mapping[int, Stillness], ranks: Collection[int]) -> bool:
    """Whether all these ranks used next to no CPU time in this silence, by enough readings of each.

    One whose stack nobody saw may be the one that works: what runs fast cannot always be read.
    """
    return all(rank in still and _rests(still[rank]) for rank in ranks)


def _at_work(still: Mapping[int, Stillness], ranks: Collection[int]) -> bool:
    """Whether ranks compute: all of them, or a few for whom the others wait, such as rank 0 that evaluates.

    Two looks may find a loop at one line, and a long call always. Where most compute and a few rest, they
    spin in a collective. Where all spin in one, their GPUs are pinned at low power, and that is seen.
    """
    active = sum((_cores(still[rank]) or 0.0) >= ACTIVE_CORES for rank in ranks if rank in still)
    return active == len(ranks) or 0 < 2 * active <= len(ranks)


def _rests(one: Stillness) -> bool:
    cores = _cores(one)
    return cores is not None and cores < FLAT_CORES


def _cores(one: Stillness) -> float | None:
    """The CPU time of a rank in this silence, in cores; None while there are too few readings."""
    seconds = one.ended_s - one.began_s
    if one.newest is None or len(one.states) < READINGS or seconds <= 0:
        return None
    return (one.newest.cpu_s - one.first.cpu_s) / seconds


def _name_halted(
    first: Mapping[int, str], second: Mapping[int, str], ranks: RankTable, still: Mapping[int, Stillness]
) -> str:
    """A rank that was dead, stopped or in uninterruptible sleep all the time, while all others waited."""
    halted = [
        rank
        for rank, one in still.items()
        if len(one.states) >= READINGS and any(set(one.states) == {state} for state in "ZXTD")
    ]
    others = [rank for rank in ranks.living() if rank not in halted]
    waiting = all(rank in first and first[rank] == second.get(rank) for rank in others)
    if not halted or not others or not waiting or not _rest(still, others):
        return ""
    state = still[halted[0]].states[-1]
    return f"rank {halted[0]} was in state {state} all the time while the others waited"
