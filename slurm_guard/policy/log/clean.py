"""Bytes of a line to the text that the training wrote: no colours, no prefixes, and whose line it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

CONTROL = re.compile(
    r"\x1b(?:\[[0-9;:?<=>]{0,64}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00\x08]"
)

_PREFIX = re.compile(
    r"\s{0,9}(?:\[default\d{1,6}\]:|\[rank(?P<rank>\d{1,6})\]:|\[\d{1,6},(?P<mpi>\d{1,6})\]<std\w{3}>:"
    r"|(?P<label>\d{1,6}): |\(\w{1,64} pid=\d{1,9}(?:, ip=[\w.:]{1,64})?\) ?"
    r"|\d{4}-\d\d-\d\dt[\d:.]{8,20}z std(?:out|err) [fp] )"
)
_LEAD = re.compile(
    r"[\s>*=#~•–—.-]{1,40}|\|\s?"
    r"|\[(?P<bracketed>[^\[\]]{0,100})\]:?"
    r"|\([\w.:/, =-]{1,80}\)"
    r"|(?:\d{4}[-/.]\d\d[-/.]\d\d[ t_]\s?|\d\d/\d\d(?:/\d{4})? )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?z?:?"
    r"|[a-z]{3} {1,2}\d{1,2} \d\d:\d\d:\d\d [\w.-]{1,64} [\w./-]{1,64}(?:\[\d{1,9}\])?: "
    r"|[a-z][a-z-]{0,30}\d{1,6}(?:\.[\w.-]{1,64})?: "
    r"|(?:info|warning|warn|debug|error|notice|trace)\b(?::[\w.]{1,64}:|:)?"
    r"|[iwefv]\d{3,8} [\d:. ]{8,40}[\w./-]{1,100}:\d{1,6}\]"
    r"|(?:global |local )?rank[ :=#]{0,2}\d{1,6}\b:?"
    r"|:::ml\w{1,9} [\d.]{1,20} "
    r"|[\w./-]{1,64}(?::\d{1,6})?(?= (?:-|\||>>) |\t)"
    r"|(?:\w{1,40}\.){1,6}\w{1,40}(?::\d{1,6})?:(?= )"
    r"|[^\x00-\x7f]{1,8}"
)
_LEADS = 14
_RANK = re.compile(r"\brank[ :=]{0,2}(\d{1,6})\b")
_ODD = str.maketrans({"−": "-", "：": ":", "→": ":", "\xa0": " ", "\ufeff": ""})


def parse_text(line: bytes) -> str:
    """The text of a line as it would stand on a screen, whatever bytes it is made of."""
    text = line.decode("ascii") if line.isascii() else line.decode("utf-8", "replace").translate(_ODD)
    if "\x1b" in text or "\x00" in text or "\x08" in text:
        text = CONTROL.sub("", text)
    return text


def parse_rank(text: str) -> tuple[int | None, int, str]:
    """The rank that a lower-case line names, where it stands, and the line without labels of launchers.

    A rank inside the line counts more than the label in front of it; a local rank is no rank.
    """
    rank, at, cut = None, -1, 0
    if text and text[0] in " [(0123456789":
        for _ in range(4):
            prefix = _PREFIX.match(text, cut)
            if not prefix:
                break
            if group := prefix.lastgroup:
                rank, at = int(prefix[group]), prefix.start(group)
            cut = prefix.end()
    if "rank" in text and (named := _RANK.search(text, cut)):
        rank, at = int(named[1]), named.start(1)
    return rank, at, text[cut:] if cut else text


def find_starts(text: str) -> Iterator[tuple[int, str]]:
    """Where what a lower-case line says may begin: its start, and after each lead (clock, logger, rank,
    bullet); with the words of the brackets that the lead was, if it was some.
    """  # fmt: skip
    at, said = 0, ""
    for _ in range(_LEADS):
        yield at, said
        lead = _LEAD.match(text, at)
        if lead is None:
            return
        at, said = lead.end(), lead["bracketed"] or ""
