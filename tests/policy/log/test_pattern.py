"""What a key means, and the keys and patterns that a site or a job names."""

from __future__ import annotations

import pytest

from slurm_guard.errors import UsageError
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.log.pattern import Role, judge_key, parse_patterns


def read(text: str, *, loss_key: str = "", iteration_key: str = "", pattern: str = "") -> list[Record]:
    reader = LineReader(parse_patterns(loss_key, iteration_key, pattern))
    return reader.feed(text.encode()) + reader.flush()


@pytest.mark.parametrize(
    ("key", "role"),
    [
        ("loss", Role.LOSS),
        ("train/loss_step", Role.LOSS),
        ("lm loss", Role.LOSS),
        ("loss_cls", Role.PART),
        ("decode.loss_ce", Role.PART),
        ("val/loss", Role.EVAL),
        ("lm loss value", Role.EVAL),
        ("loss_scale", Role.NOTHING),
        ("best_loss", Role.NOTHING),
        ("lossless", Role.NOTHING),
        ("global_step/max_steps", Role.ITERATION),
        ("micro_step", Role.NOTHING),
        ("max_grad_norm", Role.NOTHING),
    ],
)
def test_key_is_judged_by_its_words(key: str, role: Role) -> None:
    """One entry of the table covers the spellings of all frameworks."""
    assert judge_key(key)[0] is role


def test_named_loss_key_is_read() -> None:
    """A loss under a name of its own, in text and in JSON."""
    text = 'Step 50/1000; ppl: 9123.1; xent: 9.1; lr: 0.1;\n{"step": 51, "xent": 9.0}\n'
    assert [(r.loss, r.iteration) for r in read(text)] == [(None, 50), (None, 51)]
    assert [(r.loss, r.iteration) for r in read(text, loss_key="xent")] == [(9.1, 50), (9.0, 51)]


def test_named_key_ends_the_built_in_ones() -> None:
    """Two series are never mixed: from the first named loss on only named ones count."""
    text = "step 1 loss 5\nstep 2 loss 5 MLM-en: 2\nstep 3 loss 5\n" * 2
    assert [r.loss for r in read(text, loss_key="MLM-en")] == [5, 2, None, None, 2, None]


def test_named_iteration_key_comes_first() -> None:
    """A counter that is named counts, the others on the line don't."""
    text = "step 7 tokens_seen 4096 loss 2.5\n"
    assert [r.iteration for r in read(text, iteration_key="tokens_seen")] == [4096]


def test_pattern_reads_lines_without_keys() -> None:
    """Values that only their place explains; what the pattern leaves out is read as always."""
    (record,) = read("[r3] 400 :: 2.75 @ epoch 2\n", pattern=r"\] (?P<iteration>\d+) :: (?P<loss>\S+)")
    assert record == Record(2.75, 400, 2.0, None, None, RecordKind.TRAIN)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("loss=(", "is no regular expression"),
        ("loss=(.*)", "has no group named loss"),
        ("(?P<los>.)", "no group named loss"),
    ],
)
def test_bad_pattern_is_one_clear_line(pattern: str, what: str) -> None:
    """A pattern that cannot work is refused before anything is read."""
    with pytest.raises(UsageError, match=what) as error:
        parse_patterns("", "", pattern)
    assert "\n" not in str(error.value)


def test_pattern_that_matches_no_number_gives_no_loss() -> None:
    """A group that holds a word is no loss, and breaks nothing."""
    assert read("loss is fine\n", pattern="loss is (?P<loss>.*)") == []


def test_key_that_never_appears_is_known() -> None:
    """Whoever named a key can be told that the log has none of it."""
    patterns = parse_patterns("xent", "", "")
    reader = LineReader(patterns)
    reader.feed(b"step 1 loss 2\n")
    assert patterns.unseen() == "loss_key"
    reader.feed(b"step 1 xent 2\n")
    assert patterns.unseen() == ""
