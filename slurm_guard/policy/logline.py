"""Reads the training log: bytes in, records out.

This is the seam for everything that is known about log formats: whoever feeds it knows none of
them. It stands beside the job and shares its cores, so a chunk that holds no word of interest
costs a few memory scans and nothing else.
"""

from __future__ import annotations

import re

from slurm_guard.model.reading import Record, RecordKind

LINE_LIMIT = 64 * 1024
"""Bytes of a line; of a longer one only the first and last `EDGE` bytes are read."""

EDGE = 4 * 1024

FLOOD_LINES = 32
"""Lines with a word of interest that are looked at in one chunk: the newest ones. Reading a flood of
them all would cost the job a core."""

_WORDS = (b"loss", b"iter", b"step", b"it/s", b"s/it")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-z]|\x00")
_PREFIX = re.compile(
    r"\s{0,9}(?:\[default\d+\]:|\[rank(?P<rank>\d+)\]:|\[\d+,(?P<mpi>\d+)\]<std\w{3}>:|(?P<label>\d{1,6}): )"
)
_RANK = re.compile(r"\brank[ :=]{0,2}(\d{1,6})\b")
_NOT_TRAINING = re.compile(r"\s*(?:wandb:|srun:|slurmstepd:)")
_SUMMARY = "train_runtime"

_EVAL_WORD = r"(?:eval(?:uat\w*)?|valid(?:ation|ating)?|val|test(?:ing)?|dev|sanity checking)"
_EVAL_LINE = re.compile(rf"\W*(?:\w+ )?{_EVAL_WORD}\b(?!.*\btrain)")
_EVAL_KEY = re.compile(rf"(?:^|[_/ ]){_EVAL_WORD}(?:$|[_/ ])")

# A key is read backwards from "loss": its own characters, then perhaps a word that qualifies it.
_KEY_BEFORE = re.compile(r"([\w/]*)(?![.@-])(?: (\w+))?")
_QUALIFIER = re.compile(r"train|training|lm|total|average|avg|mean|val|valid|validation|test|eval|packet")
_TOTAL = re.compile(
    r"(?:(?:train(?:ing)?|total|mean|average|avg|lm)[_/ ])?loss|train[_/](?:total_)?loss(?:_step)?"
    r"|(?:reduced_train|step|gpt|actor/pg)_loss|(?:train )?loss/train/total"
)
_KEYS_LIMIT = 64
# Every repetition is bounded: a line of 64 KiB, whatever it holds, must not cost more than its length.
_NUMBER = r"[+-]?(?:nan(?:\.0?)?|inf(?:inity)?(?:\.0?)?|(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:e[+-]?\d{1,3})?)"
_VALUE = re.compile(
    r"(?P<tail>[\w/]{0,32})(?P<of> train| value)?['\"]?\s{0,3}[:=：→]?\s{0,16}"
    rf"(?:(?:np\.float\d+|tensor|array)?[(\[]|['\"]|<[^<>]{{0,80}}numpy=)?\s{{0,8}}(?P<value>{_NUMBER})(?![\w%/]|\.\d)"
)
_NAMED_VALUE = re.compile(rf'", "value": "?(?P<value>{_NUMBER})')

_ITERATION_KEYS = (
    "global_step",
    "current_steps",
    "num_updates",
    "step",
    "iteration",
    "iters",
    "iter",
    "it",
    "batch",
)
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz_")
_COUNT = re.compile(
    r"['\"]?(?:\s?[:=]\s{0,16}['\"]?|\s{1,16}|\s?\[\s{0,16})(\d{1,3}(?:,\d{3}){1,5}|\d{1,18})(?:\.0{1,9})?(?![\w.]|:\d)"
)
_BAR = re.compile(
    r"(?:(?<![\d.])(\d{1,18})/(?:\d+|\?) (?:\[[\d=>]|- \d|[\d.]+ ?(?:it/s|s/it)))"
    r"|[━╸╺─] (\d{1,18})/\d+ \d+:\d\d:\d\d"
)
_BRACKETS = (
    re.compile(r"\[\s*(\d{1,18})/\d+\s*[\](]"),
    re.compile(r"\[\s*(?:\d+,\s*)?(\d{1,18})\] (?=\w+[:=])"),
)
_OTHER_BAR = re.compile(
    r"\b(?:load|download|upload|fetch|map|tokeniz|filter|generat|extract|resolv|shards?|sampling|epochs?:\s+\d+%)"
)
_EPOCH = re.compile(
    r"(?:\((?:train|val)\))?['\"]?\s{0,3}[:=]?\s{0,3}\[?\s{0,3}(\d{1,9}(?:\.\d{1,16})?)(?![\w.])"
)


class LineReader:
    """Cuts a stream of output into lines and gives the records they hold.

    Any cutting of the same bytes into chunks gives the same records. It holds at most one line, and
    of an endless line only its two ends. It reads the simple forms of a loss (`loss: 2.31`,
    `train_loss=nan.0`, `'loss': 'nan'`, `lm loss: 1.2E+00`) with the iteration and epoch beside it.
    A srun label (`3: `) gives the record's rank where the line names none itself.
    """

    def __init__(self) -> None:
        self._held = b""
        self._long = False

    def feed(self, chunk: bytes) -> list[Record]:
        """The records of all lines that end in this chunk."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._hold(self._held + chunk)
            return []
        first = chunk.find(b"\n")
        records = []
        if self._held:
            records += _read(self._edges(self._held + chunk[:first]) + b"\n")
            body = chunk[first + 1 : end]
        else:
            body = chunk[:end] if end < len(chunk) else chunk
        self._long = False
        self._held = b""
        self._hold(chunk[end:])
        return records + _read(body)

    def flush(self) -> list[Record]:
        """The records of a last line without newline; the reader is empty afterwards."""
        return self.feed(b"\n")

    def _hold(self, line: bytes) -> None:
        if len(line) > LINE_LIMIT:
            line, self._long = _edges(line), True
        self._held = line

    def _edges(self, line: bytes) -> bytes:
        return _edges(line) if self._long or len(line) > LINE_LIMIT else line


def _edges(line: bytes) -> bytes:
    return line[:EDGE] + b" | " + line[-EDGE:]


def _read(body: bytes) -> list[Record]:
    """Records of whole lines; only lines with a word of interest are looked at."""
    low = body.lower()
    lines: dict[int, int] = {}
    for word in _WORDS:
        end = len(low)
        for _ in range(FLOOD_LINES):
            at = low.rfind(word, 0, end)
            if at < 0:
                break
            end = low.rfind(b"\n", 0, at) + 1
            if end not in lines:
                lines[end] = low.find(b"\n", at)
    found = (parse_line(body[start : lines[start]]) for start in sorted(lines)[-FLOOD_LINES:])
    return [record for record in found if record is not None]


def parse_line(line: bytes) -> Record | None:
    """The record of one line of output, or None when it shows neither loss nor iteration.

    >>> parse_line(b"0: step 12/500 loss: 2.31").loss
    2.31
    """
    if len(line) > LINE_LIMIT:
        line = _edges(line)
    text = line.decode("utf-8", "replace").lower().replace("−", "-")
    if "\x1b" in text or "\x00" in text:
        text = _ANSI.sub("", text)
    rank, text = _parse_rank(text)
    if _NOT_TRAINING.match(text):
        return None
    loss, kind = _parse_loss(text)
    iteration = None if kind is RecordKind.SUMMARY else _parse_iteration(text, kind)
    if loss is None and iteration is None and kind is RecordKind.TRAIN:
        return None
    return Record(loss, iteration, _parse_epoch(text), None, rank, kind)


def _parse_rank(text: str) -> tuple[int | None, str]:
    rank = None
    for _ in range(3):
        prefix = _PREFIX.match(text)
        if not prefix:
            break
        said = prefix["rank"] or prefix["mpi"] or prefix["label"]
        rank = int(said) if said else rank
        text = text[prefix.end() :]
    if "rank" in text and (named := _RANK.search(text)):
        rank = int(named[1])
    return rank, text


def _parse_loss(text: str) -> tuple[float | None, RecordKind]:
    """The training loss of the line and what the line is about; an evaluation's loss is not a loss."""
    if _SUMMARY in text:
        return None, RecordKind.SUMMARY
    if _EVAL_LINE.match(text):
        return None, RecordKind.EVAL
    kind = RecordKind.TRAIN
    at = text.find("loss")
    for _ in range(_KEYS_LIMIT):
        if at < 0:
            break
        found = _NAMED_VALUE.match(text, at + 4) or _VALUE.match(text, at + 4)
        if found:
            key, tail = _key_before(text, at), found.groupdict().get("tail", "")
            of = found.groupdict().get("of")
            if _EVAL_KEY.search(key) or of == " value":
                kind = RecordKind.EVAL
            elif _TOTAL.fullmatch(key + tail):
                return _parse_number(found["value"]), RecordKind.TRAIN
        at = text.find("loss", at + 4)
    return None, kind


def _key_before(text: str, at: int) -> str:
    before = _KEY_BEFORE.match(text[max(0, at - 40) : at][::-1])
    if before is None:
        return ""
    qualifier = (before[2] or "")[::-1]
    return (qualifier + " " if _QUALIFIER.fullmatch(qualifier) else "") + before[1][::-1] + "loss"


def _parse_number(text: str) -> float:
    # Lightning pads a short number to its width: "nan.0", "-inf."
    return float(text.partition(".")[0] if "n" in text else text)


def _parse_iteration(text: str, kind: RecordKind) -> int | None:
    for key in _ITERATION_KEYS:
        at = text.find(key)
        while at >= 0:
            if (not at or text[at - 1] not in _KEY_CHARACTERS) and (
                found := _COUNT.match(text, at + len(key))
            ):
                return int(found[1].replace(",", ""))
            at = text.find(key, at + len(key))
    if kind is RecordKind.EVAL:
        return None
    if (bar := _BAR.search(text)) and not _OTHER_BAR.search(text, 0, bar.start()):
        return int(bar[1] or bar[2])
    if "loss" in text or "epoch" in text:
        for pattern in _BRACKETS:
            if found := pattern.search(text):
                return int(found[1])
    return None


def _parse_epoch(text: str) -> float | None:
    at = text.find("epoch")
    while at >= 0:
        if (not at or not text[at - 1].isalpha()) and (found := _EPOCH.match(text, at + 5)):
            return float(found[1])
        at = text.find("epoch", at + 5)
    return None
