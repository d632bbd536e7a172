"""Which lines of a chunk are worth reading: those that hold a word of interest, found by their shape.

Output repeats itself but for its digits. A line whose shape (lower case, every digit as 0) was dull
before is dull again, at the cost of one look-up, however many words there are to look for.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, compress, count

_SHAPES = 2048
_SHAPE_LIMIT = 1024
"""Bytes of a shape that is remembered; a longer line is searched each time."""

_WINDOW = 24 * 1024
"""Bytes that are searched at once: the first cache holds them, and bytes.find is at its best below 30,000."""

SHAPE = bytes(range(256)).lower().replace(b"\r", b"\n").translate(bytes.maketrans(b"123456789", b"000000000"))
"""Translates bytes to their shape; every end of a line is a newline."""


_THIN = b"0-_.,;()[]{}<>|=+*#'\"%@&!?$^~`\\"
"""Bytes that are left out where a new line is searched at first: half of most output, and of no word."""


class Sieve:
    """Remembers the shapes of lines that hold one of `words`, and of those that hold none."""

    def __init__(self, words: Iterable[str]) -> None:
        given = dict.fromkeys(word.encode().translate(SHAPE) for word in words)
        # What holds a longer word holds the shorter one in it.
        self._words = tuple(word for word in given if not any(o != word and o in word for o in given))
        self._thin = tuple((word.translate(None, _THIN), word) for word in self._words)
        self._dull: set[bytes] = set()
        self._keen: set[bytes] = set()

    def find(self, shape: bytes, position: int, end: int) -> list[tuple[int, int]]:
        """Start and end of each line of interest between `position` and `end`, both starts of lines."""
        found: list[tuple[int, int]] = []
        while position < end:
            stop = shape.rfind(b"\n", position, position + _WINDOW) + 1 or shape.find(b"\n", position) + 1
            stop = min(stop, end)
            found += self._find(shape[position : stop - 1], position)
            position = stop
        return found

    def _find(self, shape: bytes, position: int) -> list[tuple[int, int]]:
        lines = shape.split(b"\n")
        keen = self._keen_of(set(lines))
        if not keen:
            return []
        places = zip(count(), accumulate(map(len, lines), initial=position), lines)
        chosen = compress(places, map(keen.__contains__, lines))
        return [(start + number, start + number + len(line)) for number, start, line in chosen]

    def is_keen(self, shape: bytes) -> bool:
        """Whether a line of this shape holds a word of interest."""
        return any(word in shape for word in self._words)

    def _keen_of(self, shapes: set[bytes]) -> set[bytes]:
        left = shapes - self._dull
        keen = left & self._keen
        if len(keen) == len(left):
            return keen
        fresh = left - keen
        text = b"\n".join(fresh).translate(None, _THIN)
        words = [word for thin, word in self._thin if thin in text]
        new = {shape for shape in fresh if any(word in shape for word in words)} if words else set()
        self._dull = _remember(self._dull, fresh - new)
        self._keen = _remember(self._keen, new)
        return keen | new


def _remember(known: set[bytes], new: set[bytes]) -> set[bytes]:
    """What is known from now on; a flood of shapes that never come again must not fill the memory."""
    new = {shape for shape in new if len(shape) <= _SHAPE_LIMIT}
    if len(known) + len(new) <= _SHAPES:
        known |= new
        return known
    return new if len(new) <= _SHAPES else set()
