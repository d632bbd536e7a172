"""What a line of text is about, and the counters that stand in no key: bars, brackets, whole-line forms."""

from __future__ import annotations

import re

from slurm_guard.model.reading import RecordKind
from slurm_guard.policy.log.clean import find_starts
from slurm_guard.policy.log.pattern import (
    COUNT,
    LINE_FORMS,
    NAMED_RANK,
    NO_TRAINING,
    OTHER_BAR,
    SUMMARY_LINE,
    LogPattern,
    Role,
)
from slurm_guard.policy.log.text import (
    Found,
    parse_number,
    read_counts,
    read_epoch,
    read_losses,
    read_norm,
)

_HEAD = 200
_COUNTER_LIMIT = 1000
"""Characters from the start of a line in which a bar or a counter in brackets stands."""

_EVAL_WORD = re.compile(
    r"(?<![\w/.=-])(?:eval|evaluat\w{1,6}|valid|validat\w{1,6}|val|test(?:ing)?|sanity checking)(?![\w/.=-])"
    r"(?!:? ?n/a)|\((?:val|test)\)"
)
_TRAIN_WORD = re.compile(r"(?<![\w/])(?<!\| )train(?:ing|er)?(?![\w./:])|\(train\)|train_inner")
_CLASS_BAR = re.compile(r"\s*class\s+images\s")

_BAR = re.compile(
    rf"(?<![\d.,])({COUNT})/(?:{COUNT}|\?) "
    r"(?:\[[\d=>.]|- \d|[━─╸╺]{1,80} \d{1,6}(?:s|:\d)"
    r"|[\d.]{1,9} ?(?:it/s|s/it))"
    r"|[━╸╺─] (\d{1,18})/\d{1,18} \d{1,3}:\d\d:\d\d"
)
_BRACKETS = (
    re.compile(
        r"(?<!epoch)(?<!epoch:)(?<!epoch )(?<!epoch: )\[\s{0,16}(\d{1,18})/\s{0,16}\d{1,18}\s{0,3}[\](]"
    ),
    re.compile(r"\[\s{0,16}(?:\d{1,9},\s{0,9})?(\d{1,18})\] (?=\w{1,40}[:=])"),
)
_SKIP = re.compile(
    r"skipping (?:step|updat|this|batch|the)|gradient overflow|overflow!"
    r"|number of skipped iterations:\s{0,16}[1-9]"
)


def read_line(text: str, found: Found, pattern: LogPattern) -> RecordKind:
    """What lower-case text (no labels of launchers) says, added to `found`, and what it is about."""
    if is_report(text) or SUMMARY_LINE.match(text) or "train_runtime" in text:
        found.ignored = "a summary, or a tool that reports about the training"
        if "epoch" in text:
            read_epoch(text, found)
        return RecordKind.NOISE if "slurm" in text or "srun" in text else RecordKind.SUMMARY
    for key in pattern.loss_keys:
        read_losses(text, found, pattern, key)
    if "loss" in text:
        read_losses(text, found, pattern)
    read_counts(text, found, pattern)
    if "epoch" in text:
        read_epoch(text, found)
    if "norm" in text:
        read_norm(text, found, pattern)
    kind = _judge_kind(text, found)
    if found.loss is None or found.iteration is None or found.epoch is None:
        kind = _read_form(text, found, kind)
    if found.iteration is None and kind not in _NO_BAR:
        read_bar(text, found)
    return kind


_NO_BAR = frozenset({RecordKind.EVAL, RecordKind.SUMMARY})


def _judge_kind(text: str, found: Found) -> RecordKind:
    if found.loss_rank == NAMED_RANK:
        return RecordKind.TRAIN
    if is_eval_text(text):
        return RecordKind.EVAL
    if found.loss is None and found.has_summary:
        return RecordKind.SUMMARY
    if found.loss is None and found.part is None:
        return _judge_lossless(text, found)
    return RecordKind.TRAIN


def _judge_lossless(text: str, found: Found) -> RecordKind:
    if ("skip" in text or "overflow" in text) and _SKIP.search(text, 0, _COUNTER_LIMIT):
        return RecordKind.SKIP
    # A training bar may show the last evaluation's loss and none of its own.
    return (
        RecordKind.EVAL if found.has_eval and not _BAR.search(text, 0, _COUNTER_LIMIT) else RecordKind.TRAIN
    )


def is_eval_text(text: str) -> bool:
    """Whether the words before the first loss say that the line is of an evaluation."""
    if not ("val" in text or "test" in text or "sanity" in text or "class" in text):
        return False
    at = text.find("loss")
    head = text[: at if 0 <= at < _HEAD else _HEAD]
    if _CLASS_BAR.match(head):
        return True
    word = _EVAL_WORD.search(head)
    if word is None or _TRAIN_WORD.search(head):
        return False
    return not (len(head) == at and not head[word.end() :].strip(" _/"))


def _read_form(text: str, found: Found, kind: RecordKind) -> RecordKind:
    starts: list[int] = []
    for form in LINE_FORMS:
        if form.word not in text:
            continue
        starts = starts or [at for at, _ in find_starts(text)]
        match = next(filter(None, (form.form.match(text, at) for at in starts)), None)
        if match is None:
            continue
        said = match.groupdict()
        if found.loss is None and said.get("loss"):
            found.take(form.word, Role.LOSS, 0, parse_number(said["loss"]), match.start("loss"))
        if found.iteration is None and said.get("iteration"):
            found.take(form.word, Role.ITERATION, 0, float(said["iteration"]), match.start("iteration"))
        if found.epoch is None and said.get("epoch"):
            found.take(form.word, Role.EPOCH, 0, float(said["epoch"]), match.start("epoch"))
        if form.kind is not RecordKind.TRAIN:
            kind = form.kind
    return kind


def is_report(text: str) -> bool:
    """Whether a tool reports about the training: none of its numbers is the training's own."""
    if not ("wandb:" in text or "srun:" in text or "slurmstepd" in text or "*** " in text):
        return False
    return any(NO_TRAINING.match(text, at) for at, _ in find_starts(text))


def read_bar(text: str, found: Found) -> None:
    """The counter of a progress bar, else one in brackets beside a loss or an epoch."""
    bar = _BAR.search(text, 0, _COUNTER_LIMIT)
    if bar:
        if not OTHER_BAR.search(text, 0, bar.start()):
            group = 1 if bar[1] else 2
            found.take("progress bar", Role.ITERATION, 0, parse_number(bar[group]), bar.start(group))
        else:
            found.ignored = "a progress bar of something else"
        return
    if found.loss is not None or found.epoch is not None:
        for pattern in _BRACKETS:
            if counter := pattern.search(text, 0, _COUNTER_LIMIT):
                found.take("counter in brackets", Role.ITERATION, 0, float(counter[1]), counter.start(1))
                return
