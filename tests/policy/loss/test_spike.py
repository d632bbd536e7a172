"""The spike judge: what is a note, what is watched, and what stops a job although every loss is finite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from math import exp

import pytest

from slurm_guard.model.breach import BreachKind, RedLine
from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record
from slurm_guard.policy.loss.limit import choose_limits
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric
from slurm_guard.policy.loss.window import LossWindow
from slurm_guard.policy.verdict import Action, Verdict, VerdictKind

CALM = [2.0] * 100


def judge(losses: Iterable[float], settings: Settings | None = None) -> list[tuple[int, Verdict]]:
    """The verdicts with the number of the record, up to the first stop. Iteration i has the i-th loss."""
    state = NumericState()
    said: list[tuple[int, Verdict]] = []
    for i, loss in enumerate(losses):
        verdict = judge_numeric(state, Record(loss=loss, iteration=i), settings or Settings(), float(i))
        if verdict is not None:
            said.append((i, verdict))
            if verdict.action is Action.STOP:
                break
    return said


def kinds(said: Sequence[tuple[int, Verdict]]) -> list[tuple[VerdictKind, Action]]:
    return [(verdict.kind, verdict.action) for _, verdict in said]


SPIKE = (VerdictKind.SPIKE, Action.NOTE)
RECOVERING = (VerdictKind.RECOVERING, Action.WATCH)
DRIFT = (VerdictKind.DIVERGENCE, Action.WATCH)


def test_single_rise_below_the_factor_is_nothing() -> None:
    """4.5 times the median, once: such batches come in every training."""
    assert judge([*CALM, 9.0, *CALM]) == []


def test_rise_below_the_factor_that_lasts_is_a_note() -> None:
    """The third record in a row makes it one spike, told once."""
    said = judge([*CALM, *[9.0] * 5, *CALM])
    assert [i for i, _ in said] == [102]
    assert kinds(said) == [SPIKE]
    assert "9, 4.5 times the median 2 of the 100 records before, in 3 records" in said[0][1].evidence


def test_single_outlier_is_a_note() -> None:
    """100 after 2.0 is told at once, with its iteration, and the next spike is told again."""
    said = judge([*CALM, 100.0, *CALM, 80.0, *CALM])
    assert [i for i, _ in said] == [100, 201]
    assert kinds(said) == [SPIKE, SPIKE]
    assert "50 times the median 2 of the 100 records before, at iteration 100" in said[0][1].evidence


def test_plateau_stops_at_the_limit() -> None:
    """The tenth outlier in a row that does not fall: the breach has value, iterations and age."""
    i, verdict = judge([*CALM, *[100.0] * 20])[-1]
    breach = verdict.breach
    assert (i, verdict.kind, verdict.action) == (109, VerdictKind.PLATEAU, Action.STOP)
    assert breach is not None
    assert (breach.red_line, breach.kind, breach.value) == (RedLine.NUMERIC, BreachKind.PLATEAU, "100")
    assert "50 times the median 2 of the 100 records before, in 10 records" in breach.evidence
    assert "(iterations 100 to 109)" in breach.evidence
    assert (breach.rank, breach.node, breach.iteration, breach.symptom_ago_s) == (None, None, 109, 9.0)


def test_nine_outliers_stop_nothing() -> None:
    """One record below the limit, and the count begins anew."""
    assert kinds(judge([*CALM, *[100.0] * 9, 2.0, *[100.0] * 9, 2.0])) == [SPIKE, SPIKE]


@pytest.mark.parametrize("growth", [1.03, 1.1, 1.5, 3.0])
def test_growth_without_end_is_a_divergence(growth: float) -> None:
    """A blow-up of 3 % a record takes some 90 records, a threefold one 12."""
    i, verdict = judge([*CALM, *(2.0 * growth**n for n in range(1, 150))])[-1]
    assert (verdict.kind, verdict.action) == (VerdictKind.DIVERGENCE, Action.STOP)
    assert verdict.breach is not None
    assert verdict.breach.kind is BreachKind.DIVERGENCE
    assert "rises" in verdict.evidence
    assert i < 200


def test_spike_that_falls_back_recovers() -> None:
    """Losses far above the limit for 20 records, but always falling: watched, told once, no stop."""
    said = judge([*CALM, *(100.0 * 0.92**n for n in range(40)), *CALM])
    assert kinds(said) == [SPIKE, RECOVERING]
    assert "falls back" in said[1][1].evidence


def test_recovery_has_an_end() -> None:
    """Down to a third of the peak and then no further: after 100 outliers it is a plateau."""
    i, verdict = judge([*CALM, *[300.0] * 6, *[100.0] * 200])[-1]
    assert (i, verdict.kind) == (199, VerdictKind.PLATEAU)


def test_spikes_that_heal_need_more_to_stop() -> None:
    """A run of 8 outliers healed, so 10 are nothing new here, and 16 are."""
    healed = [*CALM, *[100.0] * 8, *CALM]
    assert kinds(judge([*healed, *[100.0] * 15, 2.0])) == [SPIKE, SPIKE]
    assert judge([*healed, *[100.0] * 30])[-1][0] == 223


def test_outliers_are_not_learned() -> None:
    """The measure stays the median from before the spike, however long it lasts."""
    said = judge([*CALM, *[9.0] * 60, *[100.0] * 10])
    assert "the median 2 of" in said[-1][1].evidence


def test_level_that_lasts_a_whole_window_is_learned() -> None:
    """A curriculum that makes the loss six times as high: a note, and a drift is watched. No stop follows."""
    assert kinds(judge([*CALM, *[12.0] * 1000])) == [SPIKE, DRIFT]


@pytest.mark.parametrize("first", [19, 20])
def test_nothing_is_judged_before_twenty_losses(first: int) -> None:
    """With 19 losses the measure is not known yet."""
    assert bool(judge([2.0] * first + [100.0])) is (first == 20)


def test_warm_up_is_no_spike() -> None:
    """11, 7, 5 and down from there."""
    assert judge([11.0, 7.0, 5.0, *(5.0 * 0.99**n for n in range(300))]) == []


def test_what_is_no_worse_than_the_beginning_stops_nothing() -> None:
    """From 2.3 down to 0.01, and up to 0.5 for good: a restart of the learning rate does that."""
    falling = [max(2.3 * 0.97**n, 0.01) for n in range(400)]
    assert Action.STOP not in {action for _, action in kinds(judge([*falling, *[0.5] * 300]))}
    assert judge([*falling, *[5.0] * 300])[-1][1].action is Action.STOP


def test_lower_iteration_begins_anew() -> None:
    """A resumed training has its warm-up again; what came before is no measure for it."""
    state, settings = NumericState(), Settings()
    for i, loss in [*zip(count(5000), CALM), *zip(count(4000), [90.0] * 50)]:
        assert judge_numeric(state, Record(loss=loss, iteration=i), settings, 0.0) is None


def test_lower_iteration_of_a_new_epoch_goes_on() -> None:
    """Iterations that count within their epoch are no restart."""
    state, settings = NumericState(), Settings()
    records = [Record(2.0, i, epoch=epoch) for epoch in (0.0, 1.0, 2.0) for i in range(15)]
    records += [Record(100.0, i, epoch=3.0) for i in range(10)]
    verdicts = [judge_numeric(state, record, settings, 0.0) for record in records]
    assert verdicts[-1] is not None
    assert verdicts[-1].kind is VerdictKind.PLATEAU


def test_one_iteration_is_one_loss() -> None:
    """A bar that repeats its outlier is one outlier, and so are eight ranks that print the same iteration."""
    state, settings = NumericState(), Settings()
    losses = [*CALM, *[100.0] * 9]
    said = [judge_numeric(state, Record(x, i), settings, 0.0) for i, x in enumerate(losses) for _ in range(8)]
    assert [v.kind for v in said if v is not None] == [VerdictKind.SPIKE]


def test_every_rank_has_its_own_measure() -> None:
    """Rank 1 blows up while rank 0 stays calm: the evidence names whose loss it was."""
    state, settings = NumericState(), Settings()
    said = [
        judge_numeric(state, Record(100.0 if rank and i > 50 else 2.0, i, rank=rank), settings, 0.0)
        for i in range(61)
        for rank in (0, 1)
    ]
    assert said[-1] is not None
    assert said[-1].action is Action.STOP
    assert "the loss of rank 1 is 100" in said[-1].evidence


def test_losses_around_zero_convict_only_far_outside() -> None:
    """A policy loss that hops around zero may leave it by much; a blow-up is still one."""
    hopping = [(-1) ** n * 0.05 * (n % 7) for n in range(300)]
    assert judge([*hopping, *[0.9] * 50]) == []
    assert judge([*hopping, *(0.2 * 1.5**n for n in range(40))])[-1][1].kind is VerdictKind.DIVERGENCE


def test_exact_zeros_are_no_measure() -> None:
    """A stage that trains nothing shows 0.0; the next one's losses are no plateau, until they blow up."""
    started = [*[0.0] * 200, *[5.0, 4.9, 5.1] * 50]
    assert judge(started) == []
    assert kinds(judge([*started, *[500.0] * 20]))[-1] == (VerdictKind.PLATEAU, Action.STOP)
    sparse = [0.0, 0.0, 0.0, 3.0] * 50
    assert judge([*sparse, *[25.0] * 30]) == []
    assert kinds(judge([*sparse, *[1000.0] * 20]))[-1] == (VerdictKind.PLATEAU, Action.STOP)


def test_growth_of_nearly_nothing_is_nothing() -> None:
    """1e-6 to 1e-2: so does a loss that is a distance from the start."""
    assert judge([1e-6 * 1.1**n for n in range(97)]) == []


def test_slow_drift_is_watched_once() -> None:
    """2.0 to 4.0 in 5,000 records, and then on: one word with both medians, and no stop."""
    said = judge(2.0 + 2.0 * n / 5000 for n in range(9000))
    assert kinds(said) == [DRIFT]
    assert said[0][0] < 5000
    assert "times its lowest" in said[0][1].evidence


def test_limits_of_the_settings_hold() -> None:
    """A factor of 4 and 3 records: 9.0 after 2.0 stops at the third."""
    said = judge([*CALM, *[9.0] * 5], Settings(spike_factor=4.0, spike_limit=3))
    assert (said[-1][0], said[-1][1].kind) == (102, VerdictKind.PLATEAU)


def test_many_spikes_do_not_flood() -> None:
    """A spike every 50 records: ten are told, then one in a thousand records."""
    said = judge([*CALM, *([2.0] * 49 + [100.0]) * 100])
    assert len(said) == 10 + 4


def test_two_and_a_half_times_the_median_is_nothing() -> None:
    """However long it lasts below a whole window's time."""
    assert judge([*CALM, *[5.0] * 60, *CALM]) == []


def test_lines_that_come_late_are_no_restart() -> None:
    """Two ranks write one series without a label, one of them an iteration behind."""
    state, settings = NumericState(), Settings()
    records = [Record(100.0 if n > 50 else 2.0, n - behind) for n in range(1, 62) for behind in (0, 1)]
    said = [judge_numeric(state, record, settings, 0.0) for record in records]
    assert Action.STOP in {verdict.action for verdict in said if verdict is not None}


def test_noise_raises_the_limits() -> None:
    """Where single losses leave the median by a factor of e every other record, 12 times is usual."""
    window = LossWindow(100)
    for n in range(100):
        window.learn(exp((1.5, -0.5, 0.5, -1.5)[n % 4]))
    limits = choose_limits(window, 0.0, 10.0, is_signed=False)
    assert limits.note > 10 * limits.median
    calm = LossWindow(100)
    for n in range(100):
        calm.learn(2.0 + 0.01 * (n % 3))
    assert choose_limits(calm, 0.0, 10.0, is_signed=False).note == pytest.approx(6.0, rel=0.01)


def test_negative_losses_are_measured_by_their_size_and_their_noise() -> None:
    """From -100 to 50 is not far for such a series, 300 is; with noise of 20 even 100 is not."""
    assert judge([*[-100.0] * 100, *[50.0] * 50]) == []
    assert judge([*[-100.0] * 100, *[300.0] * 50])[-1][1].kind is VerdictKind.PLATEAU
    noisy = [(-1) ** n * 5.0 * (n % 7) for n in range(100)]
    assert judge([*noisy, *[100.0] * 50]) == []
    assert judge([*noisy, *[900.0] * 50])[-1][1].kind is VerdictKind.PLATEAU
