"""From journal entries to counts: one test a rule of counting."""

from __future__ import annotations

from typing import Any

from slurm_guard.policy.scorecard import Score, WrongStop, compose_scorecard


def breach(
    name: str, kind: str = "stall", *, observe: bool = True, red_line: str = "heartbeat"
) -> dict[str, Any]:
    told = {"red_line": red_line, "kind": kind, "evidence": f"evidence of {name}"}
    return {"what": "breach", "incident": name, "observe": observe, "breach": told}


def outcome(name: str, said: str, after_s: object = 12.5) -> dict[str, Any]:
    return {
        "what": "outcome",
        "incident": name,
        "outcome": said,
        "after_s": after_s,
        "how": "progress came again",
    }


def test_every_would_be_stop_is_right_wrong_or_open() -> None:
    """Ended is right, recovered is wrong, no outcome and one that nobody saw are open."""
    entries = [
        *(breach(name) for name in "abcd"),
        outcome("a", "ended"),
        outcome("b", "recovered"),
        outcome("c", "open"),
    ]
    card = compose_scorecard([("7", entries)])
    assert card.scores == [Score("heartbeat", "stall", right=1, wrong=1, open=2)]
    assert card.scores[0].observed == 4
    assert card.wrong == [
        WrongStop("7/b", "heartbeat", "stall", "evidence of b", 12.5, "progress came again")
    ]


def test_stops_that_were_made_count_apart() -> None:
    """They are neither right nor wrong; resumed where the journal says so, whatever outcome stands there."""
    entries = [
        breach("a", observe=False),
        {"what": "resumed", "incident": "a"},
        breach("b", observe=False),
        outcome("b", "recovered"),
    ]
    card = compose_scorecard([("7", entries)])
    assert card.scores == [Score("heartbeat", "stall", stopped=2, resumed=1)]
    assert card.wrong == []


def test_jobs_do_not_mix_and_kinds_are_in_order() -> None:
    """The same incident name in two journals is two incidents; rows go by red line, then kind."""
    first = [breach("a", "stall"), breach("n", "non_finite", red_line="numeric"), outcome("a", "recovered")]
    second = [breach("a", "dead_rank"), outcome("a", "ended")]
    card = compose_scorecard([("7", first), ("8", second)])
    assert [(score.kind, score.right, score.wrong, score.open) for score in card.scores] == [
        ("dead_rank", 1, 0, 0),
        ("stall", 0, 1, 0),
        ("non_finite", 0, 0, 1),
    ]
    assert card.total("wrong") == 1


def test_what_is_not_in_our_words_is_left_out() -> None:
    """No breach body, no name, other types: not counted, never an error."""
    entries: list[dict[str, Any]] = [
        {"what": "breach", "incident": "a", "breach": "nonsense"},
        {"what": "breach", "incident": 7, "breach": {}},
        {"what": "breach"},
        {"incident": "a"},
        {"what": ["breach"], "incident": "a"},
        outcome("nobody", "recovered"),
        breach("b"),
        outcome("b", "recovered", after_s="long"),
    ]
    card = compose_scorecard([("7", entries)])
    assert [(score.observed, score.wrong) for score in card.scores] == [(1, 1)]
    assert card.wrong[0].after_s is None
