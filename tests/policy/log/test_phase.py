"""Phases in the text of a log: which lines begin one, which end one, and which only have the words."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_guard.errors import UsageError
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.log.pattern import parse_patterns
from slurm_guard.policy.log.phase import recognise_phase


def read(*lines: str, phase_pattern: str = "") -> list[Record]:
    reader = LineReader(parse_patterns("", "", "", phase_pattern))
    return [record for line in lines for record in reader.feed(line.encode() + b"\n")]


def phases(*lines: str, phase_pattern: str = "") -> list[str | None]:
    return [r.phase and r.phase.value for r in read(*lines, phase_pattern=phase_pattern)]


DATA = Path(__file__).parents[2] / "data" / "log-phases.jsonl"


def labelled(*, has_phase: bool) -> list[tuple[str | None, str]]:
    cases = [json.loads(line) for line in DATA.read_text(encoding="utf-8").split("\n") if line]
    return [(c["phase"], c["line"]) for c in cases if (c["phase"] is not None) is has_phase]


@pytest.mark.parametrize(("phase", "line"), labelled(has_phase=True))
def test_phase_is_recognised(phase: str, line: str) -> None:
    """What frameworks say when they begin something that may take long, or have ended it (TRAINING)."""
    assert phases(line) == [phase]


@pytest.mark.parametrize(("phase", "line"), labelled(has_phase=False))
def test_the_same_words_elsewhere_are_no_phase(phase: None, line: str) -> None:
    """Arguments, prompts, warnings and announcements."""
    assert [said for said in phases(line) if said] == []


@pytest.mark.parametrize(
    "line",
    [
        "step 12/500 | loss 2.5",
        "{'loss': 2.3456, 'grad_norm': 1.0234375, 'learning_rate': 4.9e-05, 'epoch': 0.02}",
        "  2%|▏         | 10/500 [00:05<04:05,  2.00it/s]",
        "Epoch 3: 100%|██████████| 300/300 [00:40<00:00,  5.00it/s, v_num=7, train_loss=2.310]",
        "Epoch: [0][5005/5005]\tTime  0.312 ( 0.540)\tLoss 6.9012e+00 (6.9500e+00)",
        "1|1250|Loss: 1.2345678806304932: 100%|██████████| 1250/1250 [00:41<00:00,  1.65s/it]",
        "Epoch [2/3], Step [500/500], Loss: 2.3456",
        "step 0/0 | loss 2.5",
    ],
)
def test_training_record_tells_no_phase(line: str) -> None:
    """A bar of one epoch that is full is not the end of the training."""
    (record,) = read(line)
    assert (record.kind, record.phase) == (RecordKind.TRAIN, None)


def test_line_with_a_phase_alone_is_no_record_of_the_training() -> None:
    """It is noise with a phase and its rank; with a counter beside it, that is kept."""
    assert read("3: Saving model checkpoint to out/checkpoint-500") == [
        Record(rank=3, kind=RecordKind.NOISE, phase=Phase.CHECKPOINT)
    ]
    (record,) = read("Saving checkpoint at step 500")
    assert (record.iteration, record.phase) == (500, Phase.CHECKPOINT)


def test_full_bar_counts_the_epochs_that_are_to_come() -> None:
    """The header of an epoch says how many there are; a bar that begins anew was that of an epoch."""
    bar = " {0}/500 ━━━━━━━━━━━━━━━━━━━━ 3s 2ms/step - loss: 0.3123"
    lines = [line for epoch in (1, 2) for line in (f"Epoch {epoch}/2", *map(bar.format, (100, 300, 500)))]
    assert phases(*lines) == [None] * 7 + ["final"]
    again = [bar.format(i) for _ in range(3) for i in (100, 300, 500)]
    assert phases(*again) == [None, None, "final"] + [None] * 6


def test_small_bar_that_fills_at_once_is_no_end() -> None:
    """It counts data sets or files; one that was seen to advance, or shows a loss, is the training's."""
    assert phases("  0%|   | 0/3 [00:00<?, ?it/s]", "100%|███| 3/3 [00:00<00:00, 822.36it/s]") == [None, None]
    assert phases("step 2/3 loss 2.5", "step 3/3 loss 2.5") == [None, "final"]
    frames = " 33%|█  | 1/3 [00:09<00:18, 9.2s/it]", "100%|███| 3/3 [00:27<00:00, 9.2s/it]"
    assert phases(*frames) == [None, "final"]


def test_summary_of_an_epoch_is_no_end() -> None:
    """That of the run is."""
    assert phases("Summary: Epoch: 0 Training Loss: 4.5115 Test BLEU: 20.12") == [None]
    assert phases("{'train_runtime': 412.93, 'train_loss': 1.73402, 'epoch': 3.0}") == ["final"]


def test_known_shape_tells_the_same_phase() -> None:
    """A line that comes often is read by its shape: the phase stays, and only the last counter is full."""
    assert phases(*(f"Saving checkpoint to out/step{i}" for i in range(5))) == ["checkpoint"] * 5
    assert phases(*(f"step {i}/105 loss 2.5" for i in range(100, 106))) == [None] * 5 + ["final"]
    epochs = [f"Epoch [{e}/3], Step [{i}/5], Loss: 2.5" for e in (1, 2, 3) for i in (1, 2, 3, 4, 5)]
    assert phases(*epochs) == [*[None] * 14, "final"]


def test_own_pattern_names_phases() -> None:
    """The first group that matches; the built-in phrases still count."""
    own = r"^>> (?:(?P<evaluation>probe)|(?P<training>probed)$|(?P<checkpoint>dump))"
    said = phases(">> dump to disk", ">> probe 12", ">> other", "Saving checkpoint", phase_pattern=own)
    assert said == ["checkpoint", "evaluation", "checkpoint"]
    (record,) = read("step 7 loss 2.5 (probing)", phase_pattern=r"(?P<evaluation>probing)")
    assert (record.loss, record.iteration, record.phase) == (2.5, 7, Phase.EVALUATION)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(?P<evaluation>", "is no regular expression"),
        ("(?P<loss>x)", "has no group named compilation, evaluation"),
    ],
)
def test_bad_phase_pattern_is_one_clear_line(pattern: str, what: str) -> None:
    """It names the setting and the remedy."""
    with pytest.raises(UsageError, match=what) as error:
        parse_patterns("", "", "", pattern)
    assert str(error.value).startswith("phase_pattern = ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "filler", ["the ", "[a] ", "x - ", "x.", "checkpoint ", "is ", "saving ", " ", "a/b | "]
)
def test_hostile_line_costs_no_more_than_a_look(filler: str) -> None:
    """64 KiB after any phrase's first word are looked at in a few milliseconds."""
    for word in ("saving", "evaluation", "loading", "training", "[a]"):
        began = time.process_time()
        recognise_phase(word + " " + filler * (60_000 // len(filler)))
        assert time.process_time() - began < 0.1
