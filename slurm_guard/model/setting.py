"""How a table of settings is written down: a field for each, with section, meaning and bounds."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any,
    section: str,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field whose `metadata` says all that the loaders, the flags and the documentation want to know."""
    return field(
        default=default,
        metadata={"section": section, "text": text, "low": low, "high": high, "choices": choices},
    )
