"""The settings of a job, whatever the site's file holds: a mistake of the administrators' ends no job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_guard.config.load import load_settings
from slurm_guard.config.site import load_site
from slurm_guard.errors import ConfigError
from slurm_guard.model.limits import Settings


def load_job_settings(
    *,
    site: Path,
    job_file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str | bool],
) -> tuple[Settings, frozenset[str], tuple[str, ...]]:
    """As `load_settings`, and a line for each thing that is wrong with the site's file.

    One that is wrong, or cannot be read, counts as none; a mistake in sections for the hooks is only told.

    Raises:
        ConfigError: the user's own file, environment or flags are wrong.
    """
    fault, of_hooks = find_site_faults(site)
    obeyed = site if _is_there(site) and not fault else None
    settings, explicit = load_settings(site=obeyed, job_file=job_file, environment=environment, flags=flags)
    told = ""
    if fault:
        told = f"WARNING: {_end(fault)} Nothing of this file counts, the job goes by the defaults"
    elif of_hooks:
        told = f"{_end(of_hooks)} This is about the hooks only and changes nothing for the job"
    return settings, explicit, (f"{told} (administrators: slurm-guard doctor)",) if told else ()


def find_site_faults(site: Path) -> tuple[str, str]:
    """What is wrong with the site's file for jobs, and with its sections for hooks; a sentence or "" each.

    Never raises, whatever the file holds.
    """
    if not _is_there(site):
        return "", ""
    of_jobs = _find_fault(lambda: load_settings(site=site, job_file=None, environment={}, flags={}), site)
    return of_jobs, "" if of_jobs else _find_fault(lambda: load_site(site), site)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # whoever reads it says why that cannot be done
    return True


def _find_fault(judge: Callable[[], object], path: Path) -> str:
    try:
        judge()
    except ConfigError as error:
        return str(error)
    except Exception as error:
        return f"{path}: cannot be understood ({type(error).__name__}: {error}): correct it"
    return ""


def _end(sentence: str) -> str:
    return sentence if sentence.endswith("?") else f"{sentence}."
