"""Bytes of a line to the text that the training wrote: no colours, no prefixes, and whose line it is."""

from __future__ import annotations

import re

CONTROL = re.compile(
    r"\x1b(?:\[[0-9;:?<=>]{0,64}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00\x08]"
)

_PREFIX = re.compile(
    r"\s{0,9}(?:\[default\d{1,6}\]:|\[rank(?P<rank>\d{1,6})\]:|\[\d{1,6},(?P<mpi>\d{1,6})\]<std\w{3}>:"
    r"|(?P<label>\d{1,6}): |\(\w{1,64} pid=\d{1,9}(?:, ip=[\w.:]{1,64})?\) ?"
    r"|\d{4}-\d\d-\d\dt[\d:.]{8,20}z std(?:out|err) [fp] )"
)
_CLOCK = re.compile(
    r"\s{0,9}(?:\[?\d{4}[-/]\d\d[-/]\d\d[ t]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?z?\]?:?"
    r"|\[?\d\d/\d\d \d\d:\d\d:\d\d\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?"
    r"|[iwe]\d{4} [\d:. ]{15,40}[\w./]{1,64}:\d{1,6}\]"
    r"|\[\w{1,16}\.py:\d{1,6}\]"
    r"|\[\s{0,9}(?:info|warning|debug|error)\s{0,4}\]"
    r"|(?:info|warning):(?:[\w.]{1,64}:)?"
    r")\s{0,4}(?:[-|] )?"
)
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


def parse_body(text: str) -> str:
    """The line without the clock and the logger in front of it."""
    for _ in range(3):
        clock = _CLOCK.match(text)
        if not clock or not clock.end():
            break
        text = text[clock.end() :]
    return text
