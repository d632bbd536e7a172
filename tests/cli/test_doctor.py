"""`slurm-guard doctor` with a Slurm of shell scripts: exit codes, and what it says where it cannot look."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from slurm_config import shown

from slurm_guard.adapters import installation
from slurm_guard.adapters.installed_kit import Rehearsal
from slurm_guard.cli import doctor
from slurm_guard.cli.app import main
from slurm_guard.policy.doctor.hook import HookPattern, judge_hooks
from slurm_guard.policy.doctor.site_kit import InstalledKit

CONF = "ClusterName=a\nKillWait=9\nUnkillableStepTimeout=180\nJobFileAppend=1\n"
TEXT = "exec cat $SLURM_CONF.shown"
CALLS = {
    "Prolog": "/etc/slurm-guard/prolog.d/*",
    "Epilog": "/etc/slurm-guard/epilog.d/*",
    "HealthCheckProgram": "/etc/slurm-guard/health-check",
}
GOOD = {"PrologFlags": "Alloc,DeferBatch", "PrologEpilogTimeout": "60", "HealthCheckInterval": "300 sec"}
SILENT = "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good machine: Slurm's commands, no limit of ptrace, no site file, no spool."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", f"{tmp_path}/slurm.conf")
    monkeypatch.setattr(installation, "PTRACE_SCOPE", tmp_path / "none")
    monkeypatch.setattr(installation, "SPOOL", tmp_path / "none")
    monkeypatch.setattr(installation, "ETC", tmp_path / "none")
    monkeypatch.setattr(doctor, "read_kit", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    (tmp_path / "bin").mkdir()
    controller(tmp_path, TEXT)


def controller(folder: Path, script: str) -> None:
    """Make `scontrol show config` this script; every command gives its version."""
    for name in ("srun", "scontrol", "scancel", "sbatch"):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec echo slurm 22.05.8\n{script}\n')
        program.chmod(0o755)


def answer(folder: Path, text: str) -> None:
    """What the controller says of its configuration."""
    (folder / "slurm.conf.shown").write_text(text)


def test_a_good_one_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And exit code 0."""
    answer(tmp_path, shown())
    assert main(["doctor"]) == 0
    said = capsys.readouterr()
    whole = "Nothing to change in the configuration of the controller and this installation of slurm-guard.\n"
    assert (said.out, said.err) == (whole, "")


def test_what_why_and_the_line_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line has its number where the file is here; a warning alone leaves the exit code 0."""
    (tmp_path / "slurm.conf").write_text(CONF)
    answer(tmp_path, shown(KillWait="9 sec", SLURM_CONF=f"{tmp_path}/slurm.conf"))
    assert main(["doctor"]) == 0
    what = "warn: KillWait is 9 s"
    why = "a training that saves on SIGTERM is killed in the middle of its checkpoint"
    line = f"    {tmp_path}/slurm.conf:2: KillWait=30, or the time of the longest checkpoint"
    assert capsys.readouterr().out.splitlines() == [f"{what}: {why} [kill-wait]", line]


def test_an_error_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the same findings, and says by what Slurm is asked."""
    answer(tmp_path, shown(RequeueExit="86", JobFileAppend="0"))
    assert main(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [(one["check"], one["level"]) for one in said["findings"]] == [
        ("requeue-exit", "error"),
        ("file-append", "note"),
    ]
    assert (said["source"], said["blind"], said["slurm_by"]) == ("the controller", "", "commands")
    assert (said["slurm_why"], said["pyslurm"]) == ("pyslurm is not installed", "")
    assert (said["version"], said["programs"]["srun"]) == ([22, 5, 8], "slurm 22.05.8")


@pytest.mark.parametrize(
    ("script", "why"),
    [(SILENT, "Unable to contact slurm controller"), ("echo", "it lacks authinfo"), ("exit 3", "code 3")],
)
def test_a_controller_that_says_nothing_is_exit_code_2(
    script: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is judged all the same, and so it is never taken for a good one."""
    (tmp_path / "slurm.conf").write_text(CONF)
    controller(tmp_path, script)
    assert main(["doctor"]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert ("[kill-wait]" in said.out) == (script != "echo")


def test_no_slurm_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so and what to do; an empty list of findings is no praise."""
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert main(["doctor"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "scontrol: not found; nor can" in said.err
    assert said.err.endswith("(No such file or directory): set SLURM_CONF or give --conf FILE\n")


def test_a_file_that_is_named_is_judged_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it is put in force: with what it includes and its cgroup.conf; the controller is not asked."""
    controller(tmp_path, f"touch {tmp_path}/asked")
    conf = tmp_path / "new.conf"
    conf.write_text(CONF.replace("=9", "=60") + "Include more.conf\nGresTypes=gpu\n")
    (tmp_path / "more.conf").write_text("ProctrackType=proctrack/linuxproc\nJobRequeue=0\n")
    (tmp_path / "cgroup.conf").write_text("ConstrainDevices=no\n")
    assert main(["doctor", "--json", "--conf", str(conf)]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["check"] for one in found] == ["proctrack", "job-requeue", "constrain-devices"]
    assert found[2]["where"] == f"{tmp_path}/cgroup.conf:1"
    assert not (tmp_path / "asked").exists()


def test_a_ring_that_a_job_would_take_along_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the file beside slurm.conf, whether the controller is asked or its file is read."""
    answer(tmp_path, shown(JobContainerType="job_container/tmpfs", SLURM_CONF=f"{tmp_path}/slurm.conf"))
    (tmp_path / "slurm.conf").write_text(
        CONF.replace("=9", "=60") + "JobContainerType=job_container/tmpfs\nPrologFlags=Contain\n"
    )
    assert main(["doctor"]) == 0
    (tmp_path / "job_container.conf").write_text("BasePath=/nvme\nDirs=/tmp,/var/tmp\n")
    for options in ([], ["--conf", f"{tmp_path}/slurm.conf"]):
        capsys.readouterr()
        assert main(["doctor", "--json", *options]) == 1
        found = json.loads(capsys.readouterr().out)["findings"]
        assert [one["check"] for one in found] == ["ring-in-container"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "is it a slurm.conf?"), ("#!/bin/sh\nA=1\n", "is it a slurm.conf?"), ("KillWait=soon", "a number")],
)
def test_a_file_that_is_no_slurm_conf(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The defaults of what it doesn't say are not taken for its own."""
    (tmp_path / "new.conf").write_text(text)
    assert main(["doctor", "--conf", str(tmp_path / "new.conf")]) == 2
    assert why in capsys.readouterr().err
    assert main(["doctor", "--conf", str(tmp_path / "none.conf")]) == 2
    assert "none.conf cannot be read: No such file" in capsys.readouterr().err


def test_programs_of_prolog_and_epilog_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern, a relative path and a program that is not there, as slurmd would run them."""
    hooks = tmp_path / "prolog.d"
    hooks.mkdir()
    (hooks / "gpu.sh~").write_text("#!/bin/sh\n")
    lines = "PrologFlags=Alloc,DeferBatch\nPrologEpilogTimeout=60\nProlog=prolog.d/*\nEpilog=gone.sh\n"
    (tmp_path / "new.conf").write_text(CONF.replace("=9", "=60") + lines)
    assert main(["doctor", "--json", "--conf", str(tmp_path / "new.conf")]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    # Whether the folder of this test is root's alone depends on who runs it.
    assert [one["check"] for one in found if one["check"] != "hook-loose"] == ["hook-stray", "hook-missing"]


def test_a_terminal_is_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What Slurm says may hold anything."""
    answer(tmp_path, shown(ProctrackType="\x1b[2Jx"))
    assert main(["doctor"]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_pyslurm_is_looked_for_and_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing it can end the process. One of another release is named, and not used."""
    (tmp_path / "pyslurm.py").write_text("raise SystemExit(9)\n")
    (tmp_path / "pyslurm-25.11.2.dist-info").mkdir()
    (tmp_path / "pyslurm-25.11.2.dist-info" / "METADATA").write_text("Name: pyslurm\nVersion: 25.11.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer(tmp_path, shown())
    why = "pyslurm 25.11.2 does not match this Slurm, which is 22.05"
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["slurm_by"], said["slurm_why"], said["pyslurm"]) == ("commands", why, "25.11.2")
    assert main(["doctor"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"slurm-guard node drained asks Slurm through its own commands: {why}."
    assert "pyslurm" not in sys.modules


@pytest.mark.parametrize(
    ("tried", "code", "said"),
    [
        (Rehearsal(0, "healthy", 0.21), 0, "A job would be admitted after 0.21 s: healthy"),
        (Rehearsal(0, "", 0.01), 0, "A job would be admitted after 0.01 s: slurm-guard is off"),
        (Rehearsal(77, "GPU 1: gpu_lost", 0.3), 1, "A job would be refused after 0.30 s: GPU 1: gpu_lost"),
        (Rehearsal(127, "no such file", 0.1), 2,
         "The prolog is broken (code 127), every job is let in unchecked: no such file"),
        (Rehearsal(75, "not judged: expected-gpus holds 'x'", 0.2), 3,
         "A job would be let in unchecked after 0.20 s: not judged: expected-gpus holds 'x'"),
    ],
)  # fmt: skip
def test_as_prolog_is_the_prologs_own_word(
    tried: Rehearsal,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With an exit code for each; nothing else is judged."""
    monkeypatch.setattr(doctor, "rehearse", lambda environ: tried)
    assert main(["doctor", "--as-prolog"]) == min(code, 2)
    assert capsys.readouterr().out == said + "\n"
    main(["doctor", "--as-prolog", "--json"])
    told = json.loads(capsys.readouterr().out)
    words = ("admitted", "refused", "broken", "unjudged")
    assert (told["verdict"], told["seconds"]) == (words[code], tried.seconds)


@pytest.mark.parametrize("gres", ["gpu:a100:4(S:0-1)", "(null)"])
def test_gpus_that_slurm_counts_should_be_expected(
    gres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the hooks are installed and nobody has written the number down: the command that does."""
    monkeypatch.setattr(doctor, "read_kit", lambda: InstalledKit(expected=None))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    controller(tmp_path, f'[ "$2" = node ] && exec echo "NodeName=$3 Gres={gres} State=IDLE"\n{TEXT}')
    answer(tmp_path, shown(**CALLS, **GOOD))
    main(["doctor"])
    said = capsys.readouterr().out
    assert ("Slurm counts 4 GPUs here" in said) == (gres != "(null)")
    assert ("slurm-guard site install --gpus 4" in said) == (gres != "(null)")


def test_a_machine_without_hooks_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A login node has /etc/slurm-guard for site.toml, and needs none of the programs that nodes run."""
    found = [HookPattern(key, pattern, here=True) for key, pattern in CALLS.items()]
    assert judge_hooks(tuple(found), "/etc/slurm/slurm.conf", installed=False) == []
    assert len(judge_hooks(tuple(found), "/etc/slurm/slurm.conf")) == 3
    answer(tmp_path, shown(**CALLS, **GOOD))
    assert main(["doctor"]) == 0
    assert [line.rpartition("[")[2] for line in capsys.readouterr().out.splitlines()[::2]] == ["kit-missing]"]
