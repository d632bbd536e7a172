"""What the words of a training log mean: tables of keys and line forms, and no code of any framework.

A site or a job extends them with `loss_key`, `iteration_key` and `pattern`. A key is judged by the
words that it is made of (`train/loss_step` is train, loss, step), so that one entry covers the
spellings of all frameworks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

from slurm_guard.errors import UsageError
from slurm_guard.model.phase import Phase
from slurm_guard.model.reading import RecordKind
from slurm_guard.policy.log.phrase import PHASE_WORDS


class Role(IntEnum):
    """What a key is to the reader."""

    NOTHING = 0
    LOSS = 1
    PART = 2
    EVAL = 3
    SUMMARY = 4
    ITERATION = 5
    EPOCH = 6
    GRAD_NORM = 7


Meaning = tuple[Role, int]
"""A role, and the rank among several keys of that role on a line: the lowest counts."""

NAMED_RANK = -1
"""The rank of a key that a site or a job named."""

_NOTHING: Meaning = (Role.NOTHING, 0)


def words(text: str, separator: str | None = None) -> list[str]:
    """The words of a table that is written as one text."""
    return [word.strip() for word in text.split(separator)]


EVAL_WORDS = frozenset(words("val valid validation validate eval evaluation evaluate test testing dev"))
SPLIT_KEYS = ("split", "mode", "phase", "stage", "subset", "set")
"""Keys whose value says whether a record is of the training or of an evaluation."""

_LOSS_WORDS = {
    **dict.fromkeys(words("loss train training trn trainer total lm step batch iter iteration"), 0),
    **dict.fromkeys(words("reduced current cur tok token main gpt model all value metrics log"), 0),
    **dict.fromkeys(words("mean avg average running epoch per"), 10),
    **dict.fromkeys(words("actor act policy pg ppo grpo"), 20),
}
"""Words that a total loss may be made of, and how far each puts it behind a plain `loss`."""

_NO_LOSS_WORDS = frozenset(
    words(
        "scale scaler scaling coef coeff weight weights lambda fn func function type name best min max "
        "lowest minimum maximum expected ema smooth smoothed prev previous limit threshold target delta "
        "ratio packet hearing data signal kind mode class impl backend reduction path interval freq"
    )
)
"""One of these in a key with `loss`, and its value is no loss, finite or not."""

_SUMMARY_KEYS = frozenset({"final loss", "train runtime", "training runtime"})

_EXACT_LOSSES = {"train crossentropyloss": 1, "crossentropyloss": 1, "trl": 1, "train ce loss": 3}

_ITERATIONS = {
    **dict.fromkeys(
        words(
            "global step|global steps|global iter|global iteration|trainer global step|training global step"
            "|train global step|valid global step|val global step|eval global step|global step max steps",
            "|",
        ),
        1,
    ),
    **dict.fromkeys(
        words(
            "num updates|valid num updates|train num updates|current steps|current step|cur step"
            "|optimizer step|optimizer steps|opt step|optim step|total timesteps",
            "|",
        ),
        2,
    ),
    **dict.fromkeys(
        words("step|steps|train step|train steps|training step|trainer step|step num|step idx", "|"), 3
    ),
    **dict.fromkeys(
        words(
            "iteration|iterations|iter|iters|iter num|iteration num|n iter|train iter|train iteration"
            "|training iteration|it",
            "|",
        ),
        4,
    ),
    **dict.fromkeys(words("batch|batch idx|update|updates|n updates", "|"), 6),
}
"""The counter that advances: the global step, else the optimizer's, else the one inside the epoch."""

_EPOCHS = frozenset(
    words("epoch|epoch num|epoch idx|train epoch|training epoch|trainer epoch|valid epoch", "|")
)

_GRAD_NORMS = frozenset(
    words(
        "grad norm|gnorm|norm|gradient norm|total grad norm|global grad norm|train grad norm"
        "|actor grad norm|optim total grad norm|train gradient norm|optim grad norm|train norm|train gnorm",
        "|",
    )
)

LINE_WORDS = (
    "loss",
    "step",
    "iter",
    "epoch",
    "batch",
    "it/s",
    "s/it",
    "trl:",
    "tel:",
    "skipp",
    " val ",
    "rain ",
)
"""A line that holds none of these, and is no row of a table, is no record."""

NUMBER = r"[+-]?(?:nan(?:\.0?)?|inf(?:inity)?(?:\.0?)?|(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:e[+-]?\d{1,3})?)"
"""A number of lower-case text. Every repetition is bounded: no line may cost more than its length."""

COUNT = r"(?:\d{1,3}(?:,\d{3}){1,5}|\d{1,18})"
"""A counter, with or without commas between its thousands."""

_N = r"(?P<loss>" + NUMBER + ")"


@dataclass(frozen=True, slots=True)
class LineForm:
    """A whole line (without prefixes, in lower case) that says nothing by keys; `word` is always in it."""

    word: str
    form: re.Pattern[str]
    kind: RecordKind = RecordKind.TRAIN


def _form(word: str, form: str, kind: RecordKind = RecordKind.TRAIN) -> LineForm:
    return LineForm(word, re.compile(form), kind)


_LOSS_AT = (
    r"(?:train(?:ing)? )?loss (?:\(for one batch\) )?(?:at|after) (?:global )?(?:step|iter(?:ation)?) "
    rf"(?P<iteration>\d{{1,18}})(?: ?[:=]| is|,) ?{_N}(?!\w|\.\d)"
)

LINE_FORMS = (
    _form("trl:", rf"s:(?P<iteration>\d{{1,18}}) trl:{_N}"),
    _form("tel:", r"s:(?P<iteration>\d{1,18}) tel:", RecordKind.EVAL),
    _form(" train ", rf"\s{{0,9}}(?P<iteration>\d{{1,18}}) train {_N}\s*$"),
    _form(" val ", r"\s{0,9}(?P<iteration>\d{1,18}) val \S{1,40}\s*$", RecordKind.EVAL),
    _form("perplexity", rf"step at (?P<iteration>\d{{1,18}}) with perplexity: {_N}\s*$"),
    _form("loss a", _LOSS_AT),
    _form("loss (for one batch) at", _LOSS_AT),
    _form("logging_writer", r".{0,200}?logging_writer\.py:\d{1,6}\] \[(?P<iteration>\d{1,18})\] "),
    _form("epoch:train", r".{0,200}?\b(?P<epoch>\d{1,9})epoch:train:\d{1,18}-(?P<iteration>\d{1,18})batch"),
    _form("epoch:valid", r".{0,200}?\b(?P<epoch>\d{1,9})epoch:valid", RecordKind.EVAL),
    _form("|loss", r"(?P<epoch>\d{1,9})\|(?P<iteration>\d{1,18})\|loss:"),
    _form("] loss", r"\[(?P<epoch>\d{1,9}),\s{1,16}(?P<iteration>\d{1,18})\] loss"),
    _form("| loss", r"\s{0,9}(?P<iteration>\d{1,18}) \| loss"),
    _form("train", r"train:? (?P<epoch>\d{1,9}) \[\s{0,16}(?P<iteration>\d{1,18})/"),
    _form("train", r"train \[(?P<epoch>\d{1,9})\]\[\s{0,16}(?P<iteration>\d{1,18})/"),
    _form("batch [", r".{0,200}?batch \[\d{1,18}-(?P<iteration>\d{1,18})\]"),
    _form("][", r"\[(?P<epoch>\d{1,9})/\d{1,9}\]\[(?P<iteration>\d{1,18})/\d{1,18}\]"),
    _form("[ep ", r".{0,200}?\[ep (?P<epoch>\d{1,9})[/\]]"),
)
"""What they find counts where no key on the line says otherwise."""

NO_TRAINING = re.compile(
    r"\s*(?:wandb:|(?:guarded-)?srun:|slurmstepd(?:-\S{1,255})?:|(?:error: )?\*\*\* (?:step|job) \d)"
)
SUMMARY_LINE = re.compile(r"\s*(?:run )?summary\b|\s{2,9}train_\w{1,40}\s{2,40}= ")
OTHER_BAR = re.compile(
    r"\b(?:load|download|upload|fetch|map|tokeniz|filter|generat|extract|resolv|shards?|sampling|epochs?:\s+\d+%"
    r"|scanning|caching|saving|writing|convert|preprocess|process|pack|compil|captur|warm|\d{1,4} images)"
)
"""A bar whose description says one of these counts something else than training."""


@dataclass(slots=True)
class LogPattern:
    """The tables of one log: those above, and what a site or a job named.

    `loss_keys` and `iteration_keys` come before all built-in keys; `pattern` must have a group `loss`
    and may have `iteration`, `epoch` and `grad_norm`; `phase_pattern` has groups named after phases. `seen`
    are the settings of the first three that the log has shown.
    """

    loss_keys: tuple[str, ...] = ()
    iteration_keys: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    phase_pattern: re.Pattern[str] | None = None
    seen: set[str] = field(default_factory=set)
    _known: dict[str, Meaning] = field(default_factory=dict)
    _record_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._record_words = (*LINE_WORDS, *self.loss_keys, *self.iteration_keys)

    def meaning(self, key: str) -> Meaning:
        """What this key (lower case, as it stands in the line) is to the reader."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 4096:  # keys that never repeat must not fill the memory
                self._known.clear()
            known = self._known[key] = self._judge(key)
        return known

    def words(self) -> tuple[str, ...]:
        """A line that holds none of these says nothing, neither a record nor a phase."""
        return (*LINE_WORDS, *PHASE_WORDS, *self.loss_keys, *self.iteration_keys)

    def is_of_interest(self, text: str) -> bool:
        """Whether lower-case text may be a record."""
        return any(word in text for word in self._record_words)

    def unseen(self) -> str:
        """The settings whose key or pattern the log has not shown yet; empty when all were seen."""
        named = {"loss_key": self.loss_keys, "iteration_key": self.iteration_keys, "pattern": self.pattern}
        return " and ".join(name for name, given in named.items() if given and name not in self.seen)

    def _judge(self, key: str) -> Meaning:
        for named, role in ((self.loss_keys, Role.LOSS), (self.iteration_keys, Role.ITERATION)):
            if any(key == name or key.endswith("/" + name) for name in named):
                return role, NAMED_RANK
        return _NOTHING if key.startswith("--") else judge_key(key)  # an option of a command line


def judge_key(key: str) -> Meaning:
    """The built-in meaning of a key.

    >>> judge_key("train/loss")[0].name, judge_key("loss_cls")[0].name, judge_key("val_loss")[0].name
    ('LOSS', 'PART', 'EVAL')
    """
    words = [word for word in _SPLIT.split(key) if word and not word.isdigit()]
    name = " ".join(words)
    if name in _ITERATIONS:
        return Role.ITERATION, _ITERATIONS[name]
    if name in _EPOCHS:
        return Role.EPOCH, 0
    if name in _GRAD_NORMS:
        return Role.GRAD_NORM, len(words)
    if name in _SUMMARY_KEYS:
        return Role.SUMMARY, 0
    if name in _EXACT_LOSSES:
        return Role.LOSS, _EXACT_LOSSES[name]
    return _judge_loss(words)


def _judge_loss(words: list[str]) -> Meaning:
    if "loss" not in words and "losses" not in words:
        return _NOTHING
    if not _NO_LOSS_WORDS.isdisjoint(words):
        return _NOTHING
    if not EVAL_WORDS.isdisjoint(words) or words == ["lm", "loss", "value"]:
        return Role.EVAL, 0
    if words[-2:] == ["value", "loss"]:
        return Role.PART, 0
    if all(word in _LOSS_WORDS for word in words):
        return Role.LOSS, len(words) + sum(_LOSS_WORDS[word] for word in words)
    return Role.PART, 0


_SPLIT = re.compile(r"[^a-z0-9]+")


def parse_patterns(
    loss_key: str, iteration_key: str, pattern: str = "", phase_pattern: str = ""
) -> LogPattern:
    """The tables of one log, from settings: keys separated by commas, and regular expressions.

    Raises:
        UsageError: an expression does not compile, or has none of the groups that it needs.
    """
    own, phases = _compile("pattern", pattern), _compile("phase_pattern", phase_pattern)
    if own is not None and "loss" not in own.groupindex:
        raise UsageError(f"pattern = {pattern!r} has no group named loss: write (?P<loss>…) around the value")
    if phases is not None and not phases.groupindex.keys() & {phase.value for phase in Phase}:
        raise UsageError(
            f"phase_pattern = {phase_pattern!r} has no group named compilation, evaluation, checkpoint, "
            "final or training: write (?P<checkpoint>…) around the words that begin that phase"
        )
    return LogPattern(_keys(loss_key), _keys(iteration_key), own, phases)


def _compile(name: str, pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{name} = {pattern!r} is no regular expression: {error}") from None


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip().lower() for key in text.split(",") if key.strip())
