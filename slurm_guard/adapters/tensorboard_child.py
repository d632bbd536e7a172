"""The scalars of TensorBoard's event files as lines of JSON.

`python -I -m slurm_guard.adapters.tensorboard_child`: a program of its own, because TensorBoard's reader
loads numpy and protobuf, and because it can be killed.

stdin, one JSON object a line: `{"path": "/run/events.out.tfevents.1", "skip": 1024}` follows a file from the
byte `skip` on. stdout, likewise: `{"path": …, "values": {"step": 12, "train/loss": 2.5}}`, `{"path": …,
"error": why}`, `{"path": …}` when it can be read again, `{"missing": what}` where there is no TensorBoard,
and `{}` at each turn. It ends with its stdin.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

_TURN_S = 1.0
_REST_PER_S = 9.0
_LONGEST_REST_S = 10.0
_EVENTS = 5000
"""Events of one file in one turn: the others have their turn too."""

_FRAME = 16
"""Bytes around each event in the file: its length and two checksums."""


class EventFile:
    """One event file; `skip` bytes of it are old: the file is not opened before there are more."""

    def __init__(self, path: str, skip: int) -> None:
        self.path = path
        self.error = ""
        self._skip = skip
        self._at = 0
        self._loader: Any = None

    def turn(self) -> Iterator[dict[str, Any]]:
        """The scalars that were appended, those of one iteration together.

        Raises:
            OSError, or what TensorBoard raises: the file cannot be read.
        """
        size = os.stat(self.path).st_size
        if self._at < self._skip and size <= self._skip:
            return
        if self._loader is None:
            from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

            self._loader = RawEventFileLoader(self.path)
        row: dict[str, Any] = {}
        for _, (step, tag, value) in zip(range(_EVENTS), self._scalars(), strict=False):
            if row and (row.get("step", 0) != step or tag in row):
                yield row
                row = {}
            # Who gives no global_step has 0 everywhere: that is no iteration.
            row |= {"step": step, tag: value} if step else {tag: value}
        if row:
            yield row

    def _scalars(self) -> Iterator[tuple[int, str, float]]:
        from tensorboard.compat.proto.event_pb2 import Event

        for record in self._loader.Load():
            self._at += len(record) + _FRAME
            if self._at <= self._skip:
                continue
            event = Event.FromString(record)
            for value in event.summary.value:
                number = _number(value)
                if number is not None and value.tag != "step":
                    yield event.step, value.tag, number


def _number(value: Any) -> float | None:
    """The scalar that a summary's value is: as TensorFlow 1 and PyTorch write it, or as TensorFlow 2 does."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or any(dim.size != 1 for dim in value.tensor.tensor_shape.dim):
        return None
    from tensorboard.util.tensor_util import make_ndarray

    array = make_ndarray(value.tensor)
    return float(array.item()) if array.dtype.kind in "fiu" else None


def main() -> int:
    """Follow files until stdin ends; 3 where TensorBoard is missing."""
    # TensorBoard's own switch: its reader shall not load TensorFlow where there is one.
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    try:
        from tensorboard.backend.event_processing import event_file_loader  # noqa: F401
    except Exception as error:
        _say({"missing": str(error)})
        return 3
    files: list[EventFile] = []
    held = b""
    rest_s = 0.0
    while True:
        while select.select([0], [], [], rest_s)[0]:
            piece = os.read(0, 1 << 16)
            if not piece:
                return 0
            *lines, held = (held + piece).split(b"\n")
            files += [EventFile(body["path"], body["skip"]) for body in map(json.loads, lines)]
            rest_s = 0.0
        began_s = time.monotonic()
        for file in files:
            _turn(file)
        _say({})
        rest_s = min(max(_TURN_S, _REST_PER_S * (time.monotonic() - began_s)), _LONGEST_REST_S)


def _turn(file: EventFile) -> None:
    try:
        for row in file.turn():
            _say({"path": file.path, "values": row})
    except Exception as error:
        gone = isinstance(error, FileNotFoundError)
        what = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        why = "it has vanished" if gone else what
        if why != file.error:
            file.error = why
            _say({"path": file.path, "error": why})
        return
    if file.error:
        file.error = ""
        _say({"path": file.path})


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
