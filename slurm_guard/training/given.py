"""What training code gives to the guard, looked at before it is used: a mistake is said in its own line."""

from __future__ import annotations

import math
import operator
import signal
from collections.abc import Iterable, MutableMapping
from typing import Any

from slurm_guard.errors import CheckpointError, UsageError
from slurm_guard.model.checkpoint import Stamp
from slurm_guard.training.wording import name_error


def check_count(name: str, given: Any, unit: str, others: str = "or None for never") -> int | None:
    """How many of `unit` lie between two saves; None stays None.

    >>> check_count("milestone_every", 5000, "iterations")
    5000

    Raises:
        CheckpointError: it is no whole number from 1 on; `others` says what else there is.
    """
    if given is None:
        return None
    count = _read_whole(given)
    if count is None or count < 1:
        raise CheckpointError(f"{name}={given!r}: give a number of {unit}, {others}")
    return count


def check_seconds(name: str, given: Any) -> float:
    """Seconds between two saves.

    Raises:
        CheckpointError: it is no number from 1 on.
    """
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 <= given < math.inf:
        raise CheckpointError(f"{name}={given!r}: give seconds from 1 on, or None for never")
    return float(given)


def check_place(call: str, given: Any) -> int:
    """The number of an iteration or epoch as a plain int: one of NumPy, or a tensor, is none in a manifest.

    >>> check_place("iteration", 42)
    42

    Raises:
        CheckpointError: it is no whole number from 0 on.
    """
    number = _read_whole(given)
    if number is None or number < 0:
        raise CheckpointError(f"guard.{call}({given!r}): give its number, 0, 1, 2 and so on")
    return number


def check_state(state: Any, per_rank: Any, taken: str) -> None:
    """See that these are what `Guard.resume` can take; `taken` is a name that is the guard's own.

    Raises:
        CheckpointError: one is no mapping of names, or has that one.
    """
    for what, given in (("the state", state), ("per_rank", per_rank)):
        if not isinstance(given, MutableMapping):
            kind = type(given).__name__
            raise CheckpointError(f'{what} is a {kind}: give names with it, as {{"model": model}}')
        for name in given:
            if not isinstance(name, str):
                raise CheckpointError(f"{what} has {name!r} as a name: give it a text")
    if taken in state:
        raise CheckpointError(f"{taken} is what the guard saves itself: give the state another name")


def check_signals(given: Any) -> tuple[signal.Signals, ...]:
    """The signals of `stop_on`.

    Raises:
        UsageError: they are none.
    """
    try:
        return tuple(signal.Signals(each) for each in _list(given))
    except ValueError as error:
        raise UsageError(f"stop_on={given!r}: give signals, as (signal.SIGUSR1,)") from error


def make_stamp(iteration: int, loss: Any, epoch: Any) -> Stamp:
    """What a checkpoint says of its moment. A loss on a device is waited for.

    Raises:
        CheckpointError: loss or epoch is no number.
    """
    number = None if loss is None else _read_number("loss", loss)
    at = None if epoch is None else _read_number("epoch", epoch)
    return Stamp(iteration, at, number, number is None or math.isfinite(number))


def _list(given: Any) -> Iterable[Any]:
    return given if isinstance(given, Iterable) else (given,)


def _read_number(name: str, given: Any) -> float:
    """A plain float: one of NumPy, or a tensor, is none in a manifest."""
    try:
        return float(given.detach() if hasattr(given, "detach") else given)
    except Exception as error:  # a device that failed raises what torch pleases
        raise CheckpointError(f"its {name} cannot be read as one number: {name_error(error)}") from error


def _read_whole(given: Any) -> int | None:
    try:
        return None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        return None
