"""Dead, stopped and ended ranks: what convicts one while others live on, to the second."""

from __future__ import annotations

import pytest

from slurm_guard.model.breach import Breach, BreachKind
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import RankReading, TaskExit
from slurm_guard.policy.silence.rank import DEAD_SETTLE_S, SIGNALLED_SETTLE_S, RankTable, judge_ranks

SETTINGS = Settings(stopped_s=60, exit_wait_s=600)


def reading(rank: int, *, node: str | None = None, state: str = "S", pid: int | None = None) -> RankReading:
    """Two ranks a node unless said otherwise: n0 has 0 and 1, n1 has 2 and 3."""
    node = node or f"n{rank // 2}"
    return RankReading(node, rank, rank % 2, pid or 100 + rank, state, 1.0, 0, "7.0")


def table(ranks: int = 4, at_s: float = 0.0) -> RankTable:
    found = RankTable()
    for rank in range(ranks):
        found.seen(reading(rank), at_s)
    return found


def judge(ranks: RankTable, now_s: float, last_progress_s: float | None = None) -> Breach | None:
    return judge_ranks(ranks, SETTINGS, now_s, last_progress_s)


def dead(how: TaskExit, said_s: float = 10.0, gone_s: float = 11.0) -> RankTable:
    found = table()
    found.exited(how, said_s)
    found.gone("n1", 3, 103, gone_s)
    return found


def test_dead_rank_settles_before_it_convicts() -> None:
    """srun's word and the vanished tree together, 5 s after the later of the two."""
    ranks = dead(TaskExit("n1", (3,), code=3))
    assert judge(ranks, 11 + DEAD_SETTLE_S - 0.01) is None
    breach = judge(ranks, 11 + DEAD_SETTLE_S)
    assert breach is not None
    assert (breach.kind, breach.node, breach.rank, breach.value) == (
        BreachKind.DEAD_RANK,
        "n1",
        3,
        "exit code 3",
    )
    assert breach.symptom_ago_s == 6.0
    assert "3 other ranks" in breach.evidence


@pytest.mark.parametrize("told_s", [9.0, 10.5])
def test_after_a_signal_to_the_whole_job_the_others_have_a_minute(told_s: float) -> None:
    """Ranks that save on SIGUSR1 and leave with a code do so at different times; news may come late."""
    ranks = dead(TaskExit("n1", (3,), code=1))
    ranks.signalled(told_s)
    assert judge(ranks, 11 + SIGNALLED_SETTLE_S - 0.01) is None
    assert judge(ranks, 11 + SIGNALLED_SETTLE_S) is not None


def test_a_signal_of_long_ago_explains_no_death() -> None:
    """A notice to save, given once in a while, is no licence to die."""
    ranks = dead(TaskExit("n1", (3,), code=1), said_s=100.0, gone_s=100.0)
    ranks.signalled(30.0)
    assert judge(ranks, 100 + DEAD_SETTLE_S) is not None


@pytest.mark.parametrize("signal", ["USR1", "USR2", "INT", "HUP"])
def test_death_by_a_signal_that_no_fault_sends_waits_as_long(signal: str) -> None:
    """It was somebody's will, and the other ranks may only be slower."""
    ranks = dead(TaskExit("n1", (3,), signal=signal))
    assert judge(ranks, 11 + SIGNALLED_SETTLE_S - 0.01) is None
    assert judge(ranks, 11 + SIGNALLED_SETTLE_S) is not None


@pytest.mark.parametrize("signal", ["KILL", "SEGV", "BUS"])
def test_signals_of_a_sick_node_make_it_suspect(signal: str) -> None:
    """Killed, segmentation fault and bus error point at the node."""
    breach = judge(dead(TaskExit("n1", (3,), signal=signal)), 20)
    assert breach is not None
    assert breach.suspects == ("n1",)


@pytest.mark.parametrize("how", [{"code": 1}, {"signal": "TERM"}, {"signal": "ABRT"}, {"signal": "OOM"}])
def test_other_deaths_are_the_codes_own(how: dict[str, str]) -> None:
    """An exception, an abort or too much memory does not exclude a node."""
    breach = judge(dead(TaskExit("n1", (3,), **how)), 20)  # type: ignore[arg-type]
    assert breach is not None
    assert breach.suspects == ()


def test_living_tree_is_not_dead() -> None:
    """The task has ended, but its rank's processes still live."""
    ranks = table()
    ranks.exited(TaskExit("n1", (3,), code=1), 10)
    assert judge(ranks, 1000) is None


def test_nobody_left_is_no_breach() -> None:
    """All ranks dead: the step ends by itself."""
    ranks = table()
    ranks.exited(TaskExit("n[0-1]", (0, 1, 2, 3), code=1), 10)
    for rank in range(4):
        ranks.gone(f"n{rank // 2}", rank, 100 + rank, 10)
    assert judge(ranks, 1000) is None


def test_tasks_of_several_nodes_name_the_rank_and_its_own_node() -> None:
    """srun names both nodes in one line; the table knows where the rank ran."""
    breach = judge(dead(TaskExit("n[0-1]", (3,), code=1)), 20)
    assert breach is not None
    assert (breach.rank, breach.node) == (3, "n1")


def test_rank_that_was_never_seen_counts_as_gone() -> None:
    """It died before the first look of its watchdog; srun's word stands."""
    ranks = table(3)
    ranks.exited(TaskExit("n1", (3,), signal="SEGV"), 10)
    breach = judge(ranks, 15)
    assert breach is None, "rank 2 lives on the same node and may be the task's own"
    ranks = table(2)
    ranks.exited(TaskExit("n1", (3,), signal="SEGV"), 10)
    breach = judge(ranks, 15)
    assert breach is not None
    assert (breach.node, breach.rank) == ("n1", None)


def test_torchrun_restart_is_its_own() -> None:
    """Workers go and come back with new pids under a living torchrun: srun says nothing, nor do we."""
    ranks = table()
    for rank in range(4):
        ranks.gone(f"n{rank // 2}", rank, 100 + rank, 10)
        ranks.seen(reading(rank, pid=200 + rank), 12)
    assert judge(ranks, 10_000) is None


def test_torchrun_agent_that_dies_takes_the_ranks_of_its_node() -> None:
    """Task 1 is the torchrun of node n1, whose ranks are 2 and 3: dead once both are gone."""
    ranks = table()
    ranks.exited(TaskExit("n1", (1,), code=1), 10)
    ranks.gone("n1", 2, 102, 10)
    assert judge(ranks, 20) is None
    ranks.gone("n1", 3, 103, 20)
    breach = judge(ranks, 25)
    assert breach is not None
    assert (breach.node, breach.rank) == ("n1", None)


def test_new_life_clears_a_death() -> None:
    """The number is back with another pid: the old word of srun no longer counts."""
    ranks = dead(TaskExit("n1", (3,), code=1))
    ranks.seen(reading(3, pid=203), 12)
    ranks.gone("n1", 3, 103, 13)
    assert judge(ranks, 100) is None
    assert ranks.living() == (0, 1, 2, 3)


def stopped(until_s: int, *, state: str = "T", others: str = "S") -> RankTable:
    """Rank 3 stopped from 10 s on; everybody is read every 5 s."""
    ranks = table()
    for now_s in range(10, until_s + 1, 5):
        for rank in range(3):
            ranks.seen(reading(rank, state=others), now_s)
        ranks.seen(reading(3, state=state), now_s)
    return ranks


def test_stopped_rank_convicts_after_its_limit() -> None:
    """State T in every reading for 60 s while others run."""
    assert judge(stopped(65), 1000) is None
    breach = judge(stopped(70), 70)
    assert breach is not None
    assert (breach.kind, breach.node, breach.rank) == (BreachKind.STOPPED_RANK, "n1", 3)
    assert (breach.suspects, breach.symptom_ago_s) == (("n1",), 60.0)


def test_all_ranks_stopped_is_a_suspension() -> None:
    """Nobody is blamed when everybody stands."""
    assert judge(stopped(500, others="T"), 500) is None


def test_debugger_is_not_a_stop() -> None:
    """State t is a person with a debugger."""
    assert judge(stopped(500, state="t"), 500) is None


def test_running_again_clears_a_stop() -> None:
    """One other reading in between, and the time begins anew."""
    ranks = stopped(65)
    ranks.seen(reading(3), 66)
    ranks.seen(reading(3, state="T"), 67)
    ranks.seen(reading(0), 126)
    ranks.seen(reading(3, state="T"), 126)
    assert judge(ranks, 126) is None


def test_silent_watchdog_proves_no_stop() -> None:
    """No reading since the first: time alone says nothing."""
    assert judge(stopped(10), 10_000) is None


def test_exit_zero_starts_a_clock_that_progress_restarts() -> None:
    """srun is silent about code 0; 600 s without progress afterwards convict."""
    ranks = table()
    ranks.gone("n1", 3, 103, 100)
    assert judge(ranks, 699.9) is None
    assert judge(ranks, 1000, last_progress_s=500) is None
    breach = judge(ranks, 1100, last_progress_s=500)
    assert breach is not None
    assert (breach.kind, breach.rank, breach.suspects) == (BreachKind.UNFINISHED_EXIT, 3, ())
    assert breach.symptom_ago_s == 1000.0
    assert judge(ranks, 700) is not None


def test_the_last_rank_that_runs_on_is_one() -> None:
    """Two ranks, of which one has ended."""
    ranks = table(2)
    ranks.gone("n0", 1, 101, 100)
    breach = judge(ranks, 700)
    assert breach is not None
    assert breach.evidence == "rank 1 on n0 ended 600 s ago; 1 other rank runs on without progress"


def test_suspended_time_does_not_count() -> None:
    """After a suspension everything that ran on a clock has as much time left as before."""
    ranks = table()
    ranks.gone("n1", 3, 103, 100)
    ranks.shifted(3600)
    assert judge(ranks, 4299.9) is None
    assert judge(ranks, 4300) is not None


def test_zombie_is_not_living() -> None:
    """A rank in state Z keeps no dead one company."""
    ranks = RankTable()
    ranks.seen(reading(0, state="Z"), 0)
    assert ranks.living() == ()


def test_where_a_rank_runs_is_known() -> None:
    """The table answers for other judgements that only know a number."""
    assert (table().node_of(3), table().node_of(9)) == ("n1", None)
