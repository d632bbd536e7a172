"""Checks of a GPU's memory. Raw counters fail a GPU only where its driver gives no verdict of its own."""

from __future__ import annotations

from slurm_guard.model.health import HealthClass, Level, Trouble, Unreadable
from slurm_guard.policy.health.check import Case, Check, Said


def _counter_level(case: Case) -> Level:
    # A driver that knows recovery actions has weighed these errors already.
    return Level.FAIL if isinstance(case.gpu.recovery_action, Unreadable) else Level.WARN


def _sram(case: Case, count: int) -> Said | None:
    if not count:
        return None
    evidence = f"{count} uncorrectable errors in SRAM since the driver took the GPU"
    return Said(_counter_level(case), HealthClass.RESET, str(count), "0", evidence)


def _dram(_: Case, count: int) -> Said | None:
    if not count:
        return None
    evidence = f"{count} uncorrectable errors in DRAM: the rows are remapped, what used them was lost"
    return Said(Level.WARN, HealthClass.RESTART, str(count), "0", evidence)


def _uncorrected(case: Case, count: int) -> Said | None:
    gpu = case.gpu
    told_by_place = not isinstance(gpu.ecc_sram, Unreadable) and not isinstance(gpu.ecc_dram, Unreadable)
    if not count or told_by_place:
        return None
    remaps = not (
        isinstance(gpu.remap_failed, Unreadable) and gpu.remap_failed.trouble is Trouble.UNSUPPORTED
    )
    level = Level.WARN if remaps else _counter_level(case)
    return Said(level, HealthClass.RESET, str(count), "0", f"{count} uncorrectable memory errors")


def _corrected(case: Case, count: int) -> Said | None:
    profile = case.profile
    if count <= profile.ecc_corrected_warn:
        return None
    level = Level.FAIL if count > profile.ecc_corrected_fail else Level.WARN
    limit = profile.ecc_corrected_fail if level is Level.FAIL else profile.ecc_corrected_warn
    return Said(level, HealthClass.RESET, str(count), str(limit), f"{count} corrected memory errors")


def _ecc(case: Case, on: bool, pending: bool) -> Said | None:
    if case.profile.ecc and not on:
        return Said(Level.FAIL, HealthClass.REBOOT, "off", "on", "ECC is off; this model should have it on")
    if on != pending:
        evidence = f"ECC will be {'on' if pending else 'off'} after the next boot"
        return Said(Level.WARN, HealthClass.REBOOT, "changes", "settled", evidence)
    return None


def _flag(name: str, cls: HealthClass, value: str, evidence: str) -> Check:
    """A check of a value of the same name that is bad when it is true."""

    def judge(_: Case, bad: bool) -> Said | None:
        return Said(Level.FAIL, cls, value, "", evidence) if bad else None

    return Check(name, (name,), judge)


def _exhausted(_: Case, banks: int) -> Said | None:
    if not banks:
        return None
    evidence = f"{banks} memory banks have no spare row left"
    return Said(Level.WARN, HealthClass.REPLACE, str(banks), "0", evidence)


def _retired(case: Case, pages: int) -> Said | None:
    limit = case.profile.retired_pages
    if pages < limit:
        return None
    return Said(Level.FAIL, HealthClass.REPLACE, str(pages), str(limit), f"{pages} memory pages are retired")


CHECKS = (
    Check("ecc_sram", ("ecc_sram",), _sram),
    Check("ecc_dram", ("ecc_dram",), _dram),
    Check("ecc_uncorrected", ("ecc_uncorrected",), _uncorrected),
    Check("ecc_corrected", ("ecc_corrected",), _corrected),
    Check("ecc_mode", ("ecc", "ecc_pending"), _ecc),
    _flag(
        "sram_threshold", HealthClass.REPLACE, "crossed", "the driver says that SRAM errors crossed its limit"
    ),
    _flag("unrepairable", HealthClass.REPLACE, "yes", "the driver says that memory cannot be repaired"),
    _flag("remap_failed", HealthClass.REPLACE, "failed", "a row of memory could not be remapped"),
    _flag(
        "remap_pending",
        HealthClass.RESET,
        "pending",
        "a row is remapped at the next reset; new work may run until then",
    ),
    Check("remap_exhausted", ("remap_exhausted",), _exhausted),
    Check("retired_pages", ("retired_pages",), _retired),
    _flag("retire_pending", HealthClass.RESET, "pending", "a page is retired at the next reset"),
)
