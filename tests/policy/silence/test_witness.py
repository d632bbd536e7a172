"""The second witness: what convicts at the learned limit, and what makes it keep silent."""

from __future__ import annotations

from collections.abc import Collection

from slurm_guard.model.reading import LoadReading, RankReading
from slurm_guard.policy.silence.load import LoadTable
from slurm_guard.policy.silence.rank import RankTable
from slurm_guard.policy.silence.witness import judge_witness

SAME = dict.fromkeys(range(4), "wait")
ONE_MOVES = SAME | {2: "elsewhere"}
ALL_MOVE = {rank: f"line {rank}" for rank in range(4)}
SILENCE = 7


def ranks(
    *,
    cores: float = 0.0,
    busy: Collection[int] = (),
    busy_cores: float = 1.0,
    states: dict[int, str] | None = None,
    bytes_s: float | None = None,
    readings: int = 5,
) -> RankTable:
    """Four ranks, read every five seconds in one silence; `cores` of CPU each, `busy_cores` the `busy`."""
    table = RankTable(silence=SILENCE)
    for number in range(readings):
        for rank in range(4):
            state = (states or {}).get(rank, "S")
            io = None if bytes_s is None else int(1e9 + 5 * number * bytes_s)
            cpu_s = 5 * number * (busy_cores if rank in busy else cores)
            reading = RankReading("n1", rank, rank, 50 + rank, state, cpu_s, 0, "7.0", io)
            table.seen(reading, 100.0 + 5 * number)
    return table


def loads(utilisation: int, power_w: float) -> LoadTable:
    """Two GPUs that used 600 W in training."""
    table = LoadTable()
    for gpu in range(2):
        for silence in range(SILENCE):
            for _ in range(3):
                table.seen(LoadReading("n1", gpu, 98, 600.0), silence)
        for _ in range(3):
            table.seen(LoadReading("n1", gpu, utilisation, power_w), SILENCE)
    return table


def judge(
    first: dict[int, str],
    second: dict[int, str],
    table: RankTable,
    gpus: LoadTable | None = None,
    *,
    again: bool = False,
) -> str:
    return judge_witness(first, second, table, gpus or LoadTable(), again=again)


def test_stacks_of_all_ranks_unchanged_convict() -> None:
    """They wait, and little goes on beside that; without enough readings too."""
    for table in (ranks(), ranks(cores=0.05), ranks(cores=1.0, readings=2)):
        said = judge(SAME, SAME, table)
        assert said == "the stacks of all 4 ranks seen did not change between two looks"


def test_ranks_that_all_compute_stand_at_one_line_by_habit() -> None:
    """A healthy loop does that as well: then only the GPUs can convict, or the fixed limit."""
    assert judge(SAME, SAME, ranks(cores=1.0)) == ""
    assert judge(SAME, SAME, ranks(cores=0.15)) == ""
    assert "GPUs are pinned" in judge(SAME, SAME, ranks(cores=1.0), loads(100, 250.0))


def test_few_that_compute_while_the_others_wait_may_work_for_all() -> None:
    """Rank 0 evaluates in one long call, or its child does; where most compute, they spin in a collective."""
    odd = SAME | {0: "svd"}
    for busy in ({0}, {0, 3}):
        assert judge(odd, odd, ranks(busy=busy)) == ""
        assert judge(odd, odd, ranks(busy=busy, busy_cores=0.15), again=True) == ""
        assert judge(odd, odd, ranks(busy=busy, busy_cores=0.05)) != ""
    assert "did not change" in judge(odd, odd, ranks(busy={1, 2, 3}))


def test_most_stacks_unchanged_convict_only_where_nobody_uses_his_cpu() -> None:
    """One rank that moves may be the one that works."""
    assert judge(SAME, ONE_MOVES, ranks(cores=1.0)) == ""
    assert "no rank used its CPU" in judge(SAME, ONE_MOVES, ranks(cores=0.005))
    assert judge(SAME, ONE_MOVES, ranks(cores=0.02)) == ""


def test_flat_cpu_needs_enough_readings_of_every_rank() -> None:
    """A missing sample is not evidence."""
    assert judge(SAME, ONE_MOVES, ranks(readings=2)) == ""


def test_readings_of_another_silence_do_not_count() -> None:
    """There was progress since: who rested then may work now."""
    table = ranks(cores=0.0)
    table.silence = SILENCE + 1
    assert judge(SAME, ONE_MOVES, table) == ""
    table.seen(RankReading("n1", 0, 0, 50, "S", 0.0, 0, "7.0"), 130.0)
    assert table.stillness()[0].began_s == 130.0


def test_rank_that_was_seen_only_once_is_not_unchanged() -> None:
    """All that were seen, in both looks."""
    seen = dict.fromkeys(range(3), "wait")
    assert judge(SAME, seen, ranks(cores=1.0)) == ""
    assert judge(seen, seen, ranks()) != ""
    few = {0: "wait", 1: "wait"}
    assert judge(few, few, ranks(cores=1.0)) == ""


def test_rank_that_nobody_saw_may_be_the_one_that_works() -> None:
    """A stack that moves fast cannot always be read; only one that is known to rest is left out."""
    seen = dict.fromkeys(range(3), "wait")
    assert judge(seen, seen, ranks(busy={3}, busy_cores=0.05)) == ""
    assert judge(seen, seen, ranks(readings=2)) == ""
    assert judge(seen, seen, ranks()) != ""


def test_changing_stacks_contradict_every_other_witness() -> None:
    """GPUs that look like a hang do not convict ranks that move."""
    assert judge(SAME, ALL_MOVE, ranks(), loads(100, 250.0)) == ""


def test_pinned_gpus_convict_where_stacks_cannot() -> None:
    """ptrace is refused, or one rank moves in its loop: the GPUs spin without power."""
    assert "GPUs are pinned" in judge({}, {}, ranks(cores=1.0), loads(100, 250.0))
    assert "GPUs are pinned" in judge(SAME, ONE_MOVES, ranks(cores=1.0), loads(100, 250.0))
    assert judge({}, {}, ranks(cores=1.0), loads(0, 80.0)) == ""


def test_gpus_at_work_clear_unchanged_stacks() -> None:
    """The main thread of a healthy loop stands at the same line nearly always."""
    assert judge(SAME, SAME, ranks(cores=0.05), loads(98, 590.0)) == ""


def test_bytes_that_move_clear_unchanged_stacks() -> None:
    """Somebody saves or loads; log lines and heartbeats are no such thing."""
    assert judge(SAME, SAME, ranks(bytes_s=1e6)) == ""
    assert judge(SAME, SAME, ranks(bytes_s=1e3)) != ""


def test_debugger_and_a_job_that_was_stopped_as_a_whole_are_left_alone() -> None:
    """Somebody is at it."""
    assert judge(SAME, SAME, ranks(states={1: "t"})) == ""
    assert judge(SAME, SAME, ranks(states=dict.fromkeys(range(4), "T"))) == ""


def test_one_stopped_or_dead_rank_convicts_when_the_others_wait() -> None:
    """Its stack cannot be read; the others stand still and use no CPU."""
    others = dict.fromkeys(range(3), "wait")
    for state in "TZ":
        said = judge(others, others | {3: "?"}, ranks(states={3: state}))
        assert said == f"rank 3 was in state {state} all the time while the others waited"
        assert judge(SAME, SAME, ranks(states={3: state})) == said  # more than that nothing moved
    busy = ranks(cores=1.0, states={3: "T"})
    assert judge(others, others | {3: "?"}, busy) == ""


def test_uninterruptible_sleep_convicts_only_at_a_later_look() -> None:
    """A file server that is slow for a minute is no hang."""
    others, more = {0: "wait", 1: "wait"}, {0: "wait", 1: "wait", 2: "x"}
    table = ranks(states={2: "D", 3: "D"})
    assert judge(others, more, table) == ""
    assert judge(SAME, SAME, table) == ""
    assert judge(others, more, table, again=True) == (
        "rank 2 was in state D all the time while the others waited"
    )
