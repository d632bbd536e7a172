"""Key/value text: the loss, the counters and the kind of one line, read around a few words.

Only the surroundings of `loss`, `step`, `iter`, `epoch` and the like are looked at, so that a line
costs some microseconds whatever else it holds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from slurm_guard.policy.log.clean import find_starts
from slurm_guard.policy.log.pattern import NUMBER, LogPattern, Role, judge_key, words

_WORST = 1_000_000
_OCCURRENCES = 64


@dataclass(slots=True)
class Found:
    """What a line has given so far.

    `*_rank` is the rank of the key that gave it, `*_key` the key, `*_at` the character of the text where
    the number stands (-1: unknown). `shift` is how many characters of the line are left of that text (but
    `rank_at` counts them too).
    """

    loss: float | None = None
    loss_rank: int = _WORST
    loss_key: str = ""
    part: float | None = None
    part_key: str = ""
    iteration: int | None = None
    iteration_rank: int = _WORST
    iteration_key: str = ""
    epoch: float | None = None
    grad_norm: float | None = None
    grad_rank: int = _WORST
    has_eval: bool = False
    has_summary: bool = False
    ignored: str = ""
    loss_at: int = -1
    iteration_at: int = -1
    epoch_at: int = -1
    grad_at: int = -1
    rank_at: int = -1
    epoch_key: str = ""
    grad_key: str = ""
    shift: int = 0

    def take(self, key: str, role: Role, rank: int, value: float, at: int = -1) -> None:
        """A key with its value. Of equal keys the last counts: it is the newer record of a glued line."""
        if role is Role.LOSS:
            if rank < self.loss_rank or key == self.loss_key:
                self.loss, self.loss_rank, self.loss_key, self.loss_at = value, rank, key, at
        elif role is Role.ITERATION:
            if rank <= self.iteration_rank and value.is_integer():
                self.iteration, self.iteration_rank, self.iteration_key = int(value), rank, key
                self.iteration_at = at
        elif role is Role.EPOCH:
            self.epoch, self.epoch_key, self.epoch_at = value, key, at
        elif role is Role.GRAD_NORM:
            if rank <= self.grad_rank:
                self.grad_norm, self.grad_rank, self.grad_key, self.grad_at = value, rank, key, at
        elif role is Role.PART:
            if not math.isfinite(value) and (self.part is None or not math.isnan(self.part)):
                self.part, self.part_key = value, key
            self.ignored = self.ignored or key
        elif role is Role.EVAL:
            self.has_eval = True
            self.ignored = key
        elif role is Role.SUMMARY:
            self.has_summary = True
            self.ignored = key


_KEY_BEFORE = re.compile(r"([\w/.@-]{0,60})(?:[ \t]([a-z0-9_]{1,24}))?")

_KEY_WORDS = frozenset(
    words(
        "train training lm total average avg mean val valid validation test eval packet best min aux critic "
        "value actor policy ema smoothed entropy kl discriminator generator d g adversarial reconstruction "
        "recon box cls mask unsupervised auxiliary balancing z final weight smooth contrastive perceptual "
        "target lowest previous prev max minimum maximum expected"
    )
)
"""A word before `loss` that belongs to the key; any other is prose."""

_VALUE = re.compile(
    r"(?P<tail>[\w/.@-]{0,40})(?P<of> train| value| val)?['\"]?"
    r"(?: at (?:step|iteration|iter|epoch) \d{1,18}(?=\s?[:=]))?"
    r"\s{0,3}(?:[:=]|is(?= ))?\s{0,16}"
    r"(?P<wrap>(?:np\.float\d{1,3}|(?:torch\.)?tensor|array)?[(\[]{1,2}|['\"]|<[^<>]{0,80}numpy=)?\s{0,8}"
    rf"(?P<value>\d{{1,3}}(?:,\d{{3}}){{1,5}}(?![\d,])(?:\.\d{{1,40}})?|{NUMBER})(?![\w%/#]|\.[\d#])"
)

_COUNT = re.compile(
    r"(?P<tail>[\w/]{0,24})(?:\([a-z]{2,5}\))?['\"]?"
    r"(?:\s?[:=]\s{0,16}['\"]?(?:np\.int\d\d\()?|\s{1,16}|\s?[\[(#]\s{0,16})"
    r"(?P<value>\d{1,3}(?:,\d{3}){1,5}|\d{1,18})(?:\.0{0,9})?(?![\w%]|[.:-]\d)(?P<of>\s?/)?"
)
_PLURAL_AFTER = frozenset(",;|'\"{([-:])")
_NO_PROGRESS = frozenset(
    words(
        "per each every max total warmup accumulation last previous next best good first num save eval test "
        "val valid validation evaluation testing of skipped nan log logging"
    )
)
"""A word before a counter that makes it a setting, a memory or an evaluation's own counter."""

_EPOCH = re.compile(
    r"(?P<tail>_num|_idx)?(?:\((?:train|val|test)\))?['\"]?\s{0,3}[:=]?\s{0,3}[\[(#]?\s{0,3}['\"]?"
    r"(?P<value>\d{1,9}(?:\.\d{1,16})?(?:e[+-]?\d{1,2})?)(?![\w%]|\.\d)"
)
_NO_EPOCH = frozenset(words("max total num ppo per every next best warmup last n"))


def read_losses(text: str, found: Found, pattern: LogPattern, anchor: str = "loss") -> None:
    """The numbers at keys that hold `anchor`, each as its key says."""
    at = text.find(anchor)
    for _ in range(_OCCURRENCES):
        if at < 0:
            return
        end = at + len(anchor)
        if value := _VALUE.match(text, end):
            key = _key(text, at, end, value, _KEY_WORDS)
            role, rank = pattern.meaning(key)
            if role is not Role.NOTHING and _is_single(text, value):
                found.take(key, role, rank, parse_number(value["value"]), value.start("value"))
        at = text.find(anchor, end)


def read_norm(text: str, found: Found, pattern: LogPattern) -> None:
    """The gradient norm, which may be the only thing on the line that is not finite."""
    at = text.find("norm")
    for _ in range(_OCCURRENCES):
        if at < 0:
            return
        if value := _VALUE.match(text, at + 4):
            key = _key(text, at, at + 4, value, None)
            role, rank = pattern.meaning(key)
            if role is Role.GRAD_NORM:
                found.take(key, role, rank, parse_number(value["value"]), value.start("value"))
        at = text.find("norm", at + 4)


def read_counts(text: str, found: Found, pattern: LogPattern) -> None:
    """The counter that the line shows advancing."""
    for anchor in pattern.iteration_keys:
        _read_count(text, found, pattern, anchor)
    for anchor in ("step", "update", "iter", "batch", " it "):
        if found.iteration is not None:
            return
        _read_count(text, found, pattern, anchor)


def _read_count(text: str, found: Found, pattern: LogPattern, anchor: str) -> None:
    at = text.find(anchor)
    for _ in range(_OCCURRENCES):
        if at < 0:
            return
        end = at + len(anchor.rstrip())
        if value := _COUNT.match(text, end):
            own, word = _before(text, at)
            key = own + text[at : value.end("tail")].strip()
            role, rank = pattern.meaning(key)
            if role is Role.ITERATION and (
                rank < 0 or _advances(text[: at - len(own)], key, word, value, found)
            ):
                found.take(key, role, rank, float(value["value"].replace(",", "")), value.start("value"))
        at = text.find(anchor, end)


def _advances(head: str, key: str, word: str, value: re.Match[str], found: Found) -> bool:
    if word in _NO_PROGRESS:
        return key.startswith("steps") and head.endswith("stage of ")
    if key.startswith("batch"):
        return bool(value["of"]) or "epoch" in value.string
    if key == "it":
        return found.loss is not None
    if key.endswith("s") and "_" not in key:
        before = head.rstrip()
        if not before or before[-1] in _PLURAL_AFTER:
            return True
        return any(at == len(head) for at, _ in find_starts(value.string))
    return True


def read_epoch(text: str, found: Found) -> None:
    """The epoch, as printed."""
    at = text.find("epoch")
    for _ in range(_OCCURRENCES):
        if at < 0:
            return
        if value := _EPOCH.match(text, at + 5):
            own, word = _before(text, at)
            role, _ = judge_key(own + "epoch") if own else (Role.EPOCH, 0)
            if role is Role.EPOCH and word not in _NO_EPOCH:
                found.take("epoch", Role.EPOCH, 0, float(value["value"]), value.start("value"))
        at = text.find("epoch", at + 5)


def parse_number(text: str) -> float:
    """The number of lower-case text; Lightning pads a short one to its width (`nan.0`, `-inf.`)."""
    if "n" in text:
        return float(text.partition(".")[0])
    return float(text.replace(",", ""))


def parse_any_number(text: str) -> float | None:
    """The number that a whole string spells, or None when it spells none."""
    try:
        return parse_number(text.strip().lower().rstrip("%"))
    except (ValueError, OverflowError):
        return None


def _is_single(text: str, value: re.Match[str]) -> bool:
    """Whether the value stands alone: no first of a list, no half of a decimal comma."""
    wrap, end = value["wrap"], value.end()
    if wrap and wrap[-1] in "[(" and wrap[0] in "[(":
        return text[end : end + 1] in {"]", ")", ""}
    return not (text[end : end + 1] == "," and text[end + 1 : end + 2].isdigit() and value["value"].isdigit())


def _key(text: str, at: int, end: int, value: re.Match[str], known: frozenset[str] | None) -> str:
    own, word = _before(text, at)
    key = own + text[at:end] + value["tail"] + (value["of"] or "")
    is_part = known is None or word in known or ("_" in word and judge_key(word)[0] is Role.NOTHING)
    return word + " " + key if word and is_part else key


def _before(text: str, at: int) -> tuple[str, str]:
    """The characters of a key before `at`, and the word before them."""
    if not at:
        return "", ""
    last = text[at - 1]
    if last in "'\":=,|":
        return "", ""
    before = _KEY_BEFORE.match(text[max(0, at - 85) : at][::-1])
    if before is None:
        return "", ""
    own, word = before.groups()
    # Records of two writers may be glued: "2.5step 11".
    return own[::-1].lstrip("0123456789./"), (word or "")[::-1]
