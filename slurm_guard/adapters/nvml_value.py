"""One value out of NVML: what it is, or why it cannot be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from slurm_guard.model.health import Trouble, Unreadable

_TROUBLES = {
    3: Trouble.UNSUPPORTED,
    4: Trouble.DENIED,
    8: Trouble.POWER,
    9: Trouble.NO_DRIVER,
    11: Trouble.INTERRUPT,
    12: Trouble.NO_LIBRARY,
    13: Trouble.UNSUPPORTED,
    14: Trouble.FIRMWARE,
    15: Trouble.LOST,
    16: Trouble.RESET_REQUIRED,
    18: Trouble.MISMATCH,
    25: Trouble.UNSUPPORTED,
    26: Trouble.UNSUPPORTED,
    28: Trouble.NO_GPU,
    999: Trouble.UNKNOWN,
}
"""By NVML's return code; every other code says nothing of the GPU."""

_AGAIN = (17, 19, 27, 999)
_TRIES = 3
_PAUSE_S = 0.05
_LAST_STABLE_FIELD = 250
"""Fields above it were renumbered between releases."""

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field's value by its valueType."""


def ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or Unreadable; codes that may pass are asked again."""
    for left in reversed(range(_TRIES)):
        try:
            return question(*arguments)
        except nvml.NVMLError as error:
            if error.value not in _AGAIN or not left:
                return refuse(nvml, error.value)
            time.sleep(_PAUSE_S)
        except Exception as error:
            # No NVMLError: a name that this release lacks, a binding newer than the driver.
            foreign = isinstance(error, (AttributeError, getattr(nvml, "NVMLLibraryMismatchError", ())))
            trouble = Trouble.UNSUPPORTED if foreign else Trouble.FAILED
            return Unreadable(f"{type(error).__name__}: {error}", trouble)
    raise AssertionError


def refuse(nvml: Any, code: int) -> Unreadable:
    """What a return code means."""
    try:
        words = str(nvml.NVMLError(code))
    except Exception:
        words = "no words for it"
    return Unreadable(f"{words} (NVML code {code})", _TROUBLES.get(code, Trouble.FAILED))


def read_fields(nvml: Any, gpu: Any, wanted: Sequence[tuple[str, int]]) -> list[Any]:
    """The values of fields, by name and scope, in one call; each has a return code of its own."""
    ids = [getattr(nvml, name, None) for name, _ in wanted]
    known = [(number, scope) for number, (_, scope) in zip(ids, wanted, strict=True) if _stable(number)]
    entries = ask(nvml, nvml.nvmlDeviceGetFieldValues, gpu, known) if known else ()
    if isinstance(entries, Unreadable):
        return [entries] * len(wanted)
    answers = iter(entries)
    return [
        _decode(nvml, next(answers)) if _stable(number) else Unreadable("not in this release of the binding")
        for number in ids
    ]


def _stable(number: int | None) -> bool:
    return number is not None and number <= _LAST_STABLE_FIELD


def _decode(nvml: Any, entry: Any) -> Any:
    if entry.nvmlReturn:
        return refuse(nvml, entry.nvmlReturn)
    if entry.valueType >= len(_MEMBERS):
        return Unreadable(f"field {entry.fieldId} has the unknown type {entry.valueType}")
    return getattr(entry.value, _MEMBERS[entry.valueType])
