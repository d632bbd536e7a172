"""`guarded-srun [guard options] [srun options] COMMAND…`: srun with an emergency brake."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from slurm_guard import __version__
from slurm_guard.config.job import load_job_settings
from slurm_guard.config.load import JOB_FILE, SITE_FILE, find_misspelt
from slurm_guard.config.schema import flag_of
from slurm_guard.errors import SlurmGuardError, UsageError
from slurm_guard.model.limits import Settings
from slurm_guard.policy.srun_argv import SrunCall, is_srun_option, parse_srun_argv

_USAGE = "[guard options] [srun options] COMMAND…"


def own_flags() -> dict[str, bool]:
    """Every option of guarded-srun itself, and whether it takes a value."""
    flags = {"--config": True, "--version": False, "--help": False}
    for setting in Settings.table():
        flags[flag_of(setting)] = setting.type != "bool"
        if setting.type == "bool":
            flags[flag_of(setting).replace("--", "--no-", 1)] = False
    return flags


def split_argv(argv: Sequence[str], own: dict[str, bool]) -> tuple[list[str], list[str]]:
    """The words for guarded-srun and those for srun; `own` says which options take a value.

    From the first word that is no option of ours everything is srun's, look-alikes included.

    Raises:
        UsageError: that word is nearly one of ours, and srun has no such option.

    >>> split_argv(["--stall-s", "5", "--observe", "-n2", "python", "t.py", "--observe"], own_flags())
    (['--stall-s', '5', '--observe'], ['-n2', 'python', 't.py', '--observe'])
    """
    at = 0
    while at < len(argv):
        name, equals, _ = argv[at].partition("=")
        if name not in own:
            break
        at += 2 if own[name] and not equals else 1
    rest = list(argv[at:])
    if rest:
        _refuse_near_miss(rest[0], own)
    return list(argv[:at]), rest


def _refuse_near_miss(word: str, own: Collection[str]) -> None:
    name = word.partition("=")[0]
    if not name.startswith("--") or name == "--" or is_srun_option(name):
        return
    import difflib

    close = difflib.get_close_matches(name.replace("_", "-"), own, n=1, cutoff=0.8)
    if close:
        raise UsageError(f"{name} is no option of guarded-srun or srun: did you mean {close[0]}?")


def parse_own(words: Sequence[str]) -> dict[str, Any] | None:
    """The options that were given, by name, `config` among them; None after --help or --version.

    Raises:
        UsageError: one lacks its value, or has one too many.
    """
    if not words:
        return {}
    # Typer takes longer to import than all the rest of the start: only who gives options pays for it.
    import typer

    # click's UsageError, wherever this typer keeps click.
    wrong_usage: Any = typer.BadParameter.__base__
    given: dict[str, Any] = {}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(options_metavar=_USAGE)(_make_command(given))
    try:
        app(list(words), prog_name="guarded-srun", standalone_mode=False)
    except wrong_usage as error:
        raise UsageError(error.format_message().replace("\n", " ")) from None
    return given if given.pop("parsed", False) else None


def _make_command(given: dict[str, Any]) -> Callable[..., None]:
    """A function whose signature is the table of settings, as typer reads it; it fills `given`."""
    import typer

    from slurm_guard.cli.setting import CONFIG, give_options

    def run(**options: Any) -> None:
        """Run COMMAND with srun and guard it: when a red line is crossed the scene is captured, the
        ranks are stopped, and the training goes on from its newest checkpoint.

        The first word that is no guard option begins what srun gets, untouched.
        """
        if options.pop("version"):
            print(f"guarded-srun {__version__}")
            return
        given.update({name: value for name, value in options.items() if value is not None}, parsed=True)

    version = typer.Option("--version", help="show the version and leave")
    give_options(run, {"config": CONFIG, "version": (bool, version, False)}, Settings.table())
    return run


def main(argv: Sequence[str] | None = None) -> int:
    """Run guarded-srun; the exit code is srun's own, 2 for a wrong call, 127 without srun."""
    try:
        own, rest = split_argv(sys.argv[1:] if argv is None else argv, own_flags())
        given = parse_own(own)
        return 0 if given is None else _run(given, rest)
    except SlurmGuardError as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        # Before srun was started; from then on the front reads the signals.
        return 130


def _run(given: dict[str, Any], rest: list[str]) -> int:
    config = given.pop("config", None)
    settings, explicit, told = load_job_settings(
        site=SITE_FILE,
        job_file=Path(config) if config is not None else JOB_FILE if JOB_FILE.exists() else None,
        environment=os.environ,
        flags=given,
    )
    call = parse_srun_argv(rest)
    if not call.command:
        raise UsageError(f"no command to run: guarded-srun {_USAGE}")
    if "SLURM_JOB_ID" not in os.environ:
        raise UsageError(
            "no Slurm job to run in: put this line into a batch script and `sbatch` it, "
            "or call `salloc -N NODES guarded-srun …`"
        )
    srun = _find_srun()
    if srun is None:
        _say("srun is not in PATH: load Slurm's module, or add its bin directory to PATH")
        return 127
    for line in (*told, *find_misspelt(os.environ)):
        _say(line)
    unguarded = _why_unguarded(call)
    if unguarded:
        _say(f"the job runs unguarded because {unguarded}")
        _exec_srun(srun, rest)
    from slurm_guard.checkpoint.directory import plan_environment
    from slurm_guard.job.front import read_working_directory, run_front

    os.environ.pop("SLURM_GUARD_TRIALS", None)  # of another job, whose rank has submitted this one
    environment = plan_environment(settings, os.environ, read_working_directory())
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        # Training code that knows no slurm_guard is told where it goes on, and the guard's what to avoid.
        from slurm_guard.job.front_resume import read_resume

        resume = read_resume({**os.environ, **environment}, rest)
        environment.update(resume.environment)
        for line in resume.lines:
            _say(line)
    return run_front(rest, settings, explicit, srun=srun, environment=environment)


def _find_srun() -> str | None:
    # Not shutil.which: that module loads three compression libraries.
    for directory in os.get_exec_path():
        path = os.path.join(directory, "srun")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _why_unguarded(call: SrunCall) -> str:
    if call.pty:
        return "--pty gives srun the terminal itself"
    if "SLURM_HET_SIZE" in os.environ:
        return "it is a heterogeneous job"
    return ""


def _exec_srun(srun: str, rest: list[str]) -> NoReturn:
    os.execv(srun, ["srun", *rest])


def _say(text: str) -> None:
    print(f"guarded-srun: {text}", file=sys.stderr, flush=True)
