"""The table of settings: what is written in it must hold for every one of them."""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError
from typing import Any

import pytest

from slurm_guard.model.limits import HARD_LIMIT_S, SCENE_RESERVE_S, Settings

TABLE = Settings.table()
NUMBERS = [row for row in TABLE if row.type in {"int", "float"}]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.name))
def test_every_setting_is_described(row: Field[Any]) -> None:
    """A section, a text that is no sentence, and a default of its own type."""
    assert set(row.metadata) >= {"section", "text", "low", "high", "choices"}
    assert row.metadata["section"]
    assert row.metadata["text"]
    assert not row.metadata["text"].endswith(".")
    assert type(row.default).__name__ == row.type


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: str(row.name))
def test_every_number_has_bounds_around_its_default(row: Field[Any]) -> None:
    """And a duration says its unit in its name."""
    assert row.metadata["low"] <= row.default <= row.metadata["high"]
    assert row.type == "int" or row.name.endswith(("_s", "_hours")) or "factor" in row.name


def test_choices_hold_their_default() -> None:
    """A default that could not be chosen would be a trap."""
    chosen = [row for row in TABLE if row.metadata["choices"]]
    assert [row.name for row in chosen] == ["resume_proof", "recovery"]
    assert all(row.default in row.metadata["choices"] for row in chosen)


def test_promised_defaults() -> None:
    """The figures of the design."""
    settings = Settings()
    assert (settings.nonfinite_limit, settings.stall_s, settings.stall_hard_s) == (3, 900.0, 3600.0)
    assert (settings.startup_s, settings.stack_interval_s, settings.stopped_s) == (3600.0, 30.0, 60.0)
    assert (settings.exit_wait_s, settings.dump_s, settings.grace_s) == (600.0, 10.0, 10.0)
    assert (settings.max_restarts, settings.exit_code, settings.log_lines) == (3, 86, 500)
    assert settings.dump_s + settings.grace_s + SCENE_RESERVE_S <= HARD_LIMIT_S == 60.0


def test_settings_do_not_change() -> None:
    """What was decided with them stays explainable."""
    with pytest.raises(FrozenInstanceError):
        Settings().stall_s = 1.0  # type: ignore[misc]
