"""Ask one function in a child of its own: what hangs there hangs nobody here."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from slurm_guard.adapters.child import ForkedChild, Say
from slurm_guard.errors import CommandFailed, CommandTimedOut, OutsideError


def run(function: str, timeout_s: float, *numbers: float) -> Any:
    """What `module:function`, called with `numbers` in a new interpreter, returned; through JSON.

    The child is killed at the deadline; one that cannot be killed is abandoned.

    Raises:
        CommandTimedOut: no answer in `timeout_s` seconds: a finding in itself.
        OutsideError: the function raised one, or the child died.
    """
    from slurm_guard.adapters import command  # brings subprocess, which a fork does not need

    try:
        answer = command.run([sys.executable, "-I", "-m", __name__, function, *map(str, numbers)], timeout_s)
    except CommandFailed as error:
        raise OutsideError(f"the probe {function} died with code {error.code}: {error}") from None
    try:
        body = json.loads(answer)
    except ValueError:
        raise OutsideError(f"the probe {function} gave no readable answer") from None
    return _open(body)


def fork(function: str, timeout_s: float, *numbers: float) -> Any:
    """The same in a fork of this process, which starts sooner. No other thread may run here.

    Raises:
        CommandTimedOut: no answer in `timeout_s` seconds: a finding in itself.
        OutsideError: the function raised, the child died, or none can be made.
    """
    return ask_fork(lambda: _call(function, *numbers), timeout_s, f"the probe {function}")


def ask_fork(work: Callable[[], Any], timeout_s: float, name: str) -> Any:
    """What `work` returned in a fork of this process, through JSON. No other thread may run here.

    Raises:
        CommandTimedOut: no answer in `timeout_s` seconds; it is killed, or abandoned in D state.
        OutsideError: `work` raised, the child died, or none can be made; `name` says what it was.
    """

    def answer(say: Say) -> None:
        say(_answer(work))

    try:
        child = ForkedChild(answer, alone=True)
    except OSError as error:
        raise OutsideError(f"no process for {name}: {error.strerror}") from None
    heard: list[dict[str, Any]] = []
    until_s = time.monotonic() + timeout_s
    try:
        while not heard and not child.ended:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([child], [], [], left_s)[0]:
                raise CommandTimedOut([name], timeout_s)
            heard += child.read()
    finally:
        child.abandon()
    if not heard:
        raise OutsideError(f"{name} died")
    return _open(heard[0])


def _call(function: str, *numbers: float) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(*numbers)


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": work()}
    except OutsideError as error:
        return {"error": str(error)}


def _open(body: dict[str, Any]) -> Any:
    if "error" in body:
        raise OutsideError(body["error"])
    return body["value"]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(lambda: _call(sys.argv[1], *map(float, sys.argv[2:])))))
