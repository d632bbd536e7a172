"""Ask one function in a child of its own: what hangs there hangs nobody here."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from slurm_guard.adapters import command
from slurm_guard.errors import CommandFailed, OutsideError


def run(function: str, timeout_s: float, *numbers: float) -> Any:
    """What `module:function`, called with `numbers` in a new interpreter, returned; through JSON.

    The child is killed at the deadline; one that cannot be killed is abandoned.

    Raises:
        CommandTimedOut: no answer in `timeout_s` seconds: a finding in itself.
        OutsideError: the function raised one, or the child died.
    """
    try:
        answer = command.run([sys.executable, "-I", "-m", __name__, function, *map(str, numbers)], timeout_s)
    except CommandFailed as error:
        raise OutsideError(f"the probe {function} died with code {error.code}: {error}") from None
    try:
        body = json.loads(answer)
    except ValueError:
        raise OutsideError(f"the probe {function} gave no readable answer") from None
    if "error" in body:
        raise OutsideError(body["error"])
    return body["value"]


def _main(function: str, *numbers: str) -> None:
    module, _, name = function.partition(":")
    try:
        body = {"value": getattr(import_module(module), name)(*map(float, numbers))}
    except OutsideError as error:
        body = {"error": str(error)}
    sys.stdout.write(json.dumps(body))


if __name__ == "__main__":
    _main(*sys.argv[1:])
