"""srun's command line is understood as far as its output options and its command."""

from __future__ import annotations

import pytest

from slurm_guard.policy.srun_argv import is_srun_option, parse_srun_argv, plan_restart_argv


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("prog -o x", "prog -o x"),
        ("-n 2 -N2 --mem=3 --mem 3 prog", "prog"),
        ("-lN2 -lN 2 -Kk -K1 -I prog", "prog"),
        ("--overlap --exclusive --exclusive=user --propagate --kill-on-bad-exit=0 prog", "prog"),
        ("-n2 -- -strange --pty", "-strange --pty"),
        ("--ntasks-per-n 4 prog", "prog"),
        ("--new-option prog", "prog"),
        ("-n 2", ""),
        ("-n", ""),
        ("", ""),
        ("-n1 prog : -n2 other", "prog : -n2 other"),
        ("--multi-prog conf", "conf"),
        ("- x", "- x"),
    ],
)
def test_command(line: str, command: str) -> None:
    """The command is the first word that neither is an option nor belongs to one."""
    assert parse_srun_argv(line.split()).command == tuple(command.split())


@pytest.mark.parametrize(
    "line",
    ["-o log.%t prog", "-olog.%t prog", "--output log.%t prog", "--outp=log.%t prog", "-lo log.%t prog"],
)
def test_output(line: str) -> None:
    """Every way of writing --output is the same."""
    assert parse_srun_argv(line.split()).output == "log.%t"


def test_error_and_pty() -> None:
    """-e and --pty count before the command only; the last of several counts."""
    call = parse_srun_argv(["-e", "a", "--error=b", "--pty", "prog", "--pty", "-e", "c"])
    assert (call.error, call.output, call.pty) == ("b", None, True)
    assert not parse_srun_argv(["prog", "--pty"]).pty


@pytest.mark.parametrize(
    ("line", "planned"),
    [
        ("prog", "-x n2,n3 -N 3 prog"),
        ("-N4 -n 8 -- prog -x", "-N4 -n 8 -x n2,n3 -N 3 -- prog -x"),
        ("-x n9 prog", "-x n9 -x n9,n2,n3 -N 3 prog"),
        ("-x ./file prog", "-x ./file -x n2,n3 -N 3 prog"),
    ],
)
def test_restart(line: str, planned: str) -> None:
    """What a restart adds stands where srun obeys it, and the user's own exclusion stays."""
    assert plan_restart_argv(line.split(), ["n2", "n3"], 3) == planned.split()
    assert plan_restart_argv(line.split(), [], None) == line.split()


def test_known_options() -> None:
    """srun's own options, shortened too, are never taken for slips of ours."""
    assert all(is_srun_option(word) for word in ("--output", "--outp=x", "--x11", "--no-kill=off"))
    assert not any(is_srun_option(word) for word in ("--stal-s", "--stall_s", "--observ"))
