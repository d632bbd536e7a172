"""`slurm-guard template`: what it renders is fixed, and no value can become something else than a value."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_guard.cli.app import main
from slurm_guard.cli.template import parse_settings, read_templates, render_script

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CASES = {
    "srun-per-rank": {"command": "python train.py --lr 1e-3"},
    "srun-per-rank-spares": {
        "command": "python train.py",
        "nodes": "3",
        "spares": "1",
        "ranks_per_node": "2",
        "gpus_per_node": "2",
        "cpus_per_rank": "2",
        "mem": "2G",
        "time": "10:00",
        "job_name": "two words",
        "partition": "main",
        "output": "logs/%x-%j.out",
        "guard_options": "--stall-s 300",
    },
    "torchrun-per-node": {"command": "train.py --lr 1e-3", "nodes": "2", "ranks_per_node": "2"},
    "torchrun-per-node-notice": {"command": "train.py", "notice": "120"},
    "torchrun-per-node-spares": {"command": "train.py", "nodes": "2", "spares": "2", "cpus_per_node": "4"},
    "array": {"command": "python sweep.py", "array": "0-3%2"},
}


def template_of(case: str) -> str:
    return case.removesuffix("-spares").removesuffix("-notice")


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    """The script is to the letter that of tests/data/golden, and bash can read it."""
    script = render_script(read_templates()[template_of(case)], CASES[case])
    assert script == (GOLDEN / f"{case}.sbatch").read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("name", ["srun-per-rank", "torchrun-per-node", "array"])
def test_every_declared_key_is_used_and_every_used_key_declared(name: str) -> None:
    """Setting any key changes the script: none does nothing, none is forgotten in the header."""
    template = read_templates()[name]
    given = {"command": "python t.py", "array": "0-1"}
    values = {key.name: given[key.name] for key in template.keys if key.default is None}
    plain = render_script(template, values)
    for key in template.keys:
        assert render_script(template, {**values, key.name: "7"}) != plain, key.name


def test_list_shows_names_keys_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """All that has to be known to render one."""
    assert main(["template", "list"]) == 0
    text = capsys.readouterr().out
    assert "srun-per-rank\n    One task a rank" in text
    assert "command         the training command, as words: nothing in it is expanded (required)" in text
    assert "time            time limit (default 24:00:00)" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "choose one of array, srun-per-rank, torchrun-per-node"),
        (
            ["array", "--set", "comand=x"],
            "keys unknown: comand; missing: command, array. It knows command, array,",
        ),
        (["array", "--set", "command=", "--set", "array=1"], "missing: command"),
        (["srun-per-rank", "--set", "command"], "'command' is not KEY=VALUE"),
        (["srun-per-rank", "--set", "command=a\nb"], "one line without control characters"),
        (
            ["srun-per-rank", "--set", "command=a", "--set", "nodes=two"],
            "nodes = 'two' is no whole number from 1",
        ),
        (["srun-per-rank", "--set", "command=a 'b"], "a quote is not closed"),
        (
            ["srun-per-rank", "--set", "command=a", "--set", "nodes=0"],
            "nodes = '0' is no whole number from 1",
        ),
        (["srun-per-rank", "--set", "command=a", "--set", "spares=-1"], "'-1' is no whole number from 0"),
        (
            ["srun-per-rank", "--set", "command=a", "--set", "time=abc"],
            "time = 'abc' is not as 90 (minutes),",
        ),
        (["srun-per-rank", "--set", "command=a", "--set", "time=1:2:3:4"], "time = '1:2:3:4' is not as"),
        (["srun-per-rank", "--set", "command=a", "--set", "mem=lots"], "mem = 'lots' is not as 64G"),
        (
            ["array", "--set", "command=a", "--set", "array=0-"],
            "array = '0-' is not as 0-15, 1,3,7 or 0-15%4",
        ),
    ],
)
def test_wrong_settings_are_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that says what is wrong and what would be right; nothing on stdout."""
    assert main(["template", "render", *words]) == 2
    out = capsys.readouterr()
    assert said in out.err
    assert (out.out, out.err.count("\n")) == ("", 1)


def test_output_goes_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--output writes the same as stdout shows; where it can't, one line says why."""
    words = ["template", "render", "array", "--set", "command=a b", "--set", "array=1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--output", str(tmp_path / "job.sh")]) == 0
    assert (tmp_path / "job.sh").read_text() == shown
    assert main([*words, "--output", str(tmp_path / "none" / "job.sh")]) == 1
    assert "none/job.sh cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("srun-per-rank", "time", "90"),
        ("srun-per-rank", "time", "2-12"),
        ("srun-per-rank", "time", "2-12:00:00"),
        ("srun-per-rank", "time", "UNLIMITED"),
        ("srun-per-rank", "mem", "0"),
        ("srun-per-rank", "mem", "1500M"),
        ("srun-per-rank", "spares", "0"),
        ("array", "array", "0-15:4,20%2"),
        ("array", "array", "7"),
    ],
)
def test_what_slurm_takes_is_taken(name: str, key: str, value: str) -> None:
    """Every form of a time, a memory and an array that sbatch knows."""
    values = {"command": "a", **({"array": "1"} if name == "array" else {}), key: value}
    assert value in render_script(read_templates()[name], values)


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody may have edited it: one line and code 2, and --force is obeyed."""
    file = tmp_path / "job.sh"
    file.write_text("mine")
    words = ["template", "render", "array", "--set", "command=a", "--set", "array=1", "--output", str(file)]
    assert main(words) == 2
    told = f"slurm-guard: {file} is there already: give another name, or --force to write over it\n"
    assert capsys.readouterr() == ("", told)
    assert file.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert file.read_text().startswith("#!/bin/bash")


@pytest.mark.parametrize(
    "hostile",
    ["$(touch hurt)", "`touch hurt`", "a; touch hurt", "'; touch hurt; '", '"$(touch hurt)"', "{{ 7 }}"],
)
def test_values_stay_values(hostile: str, tmp_path: Path) -> None:
    """Run with a guarded-srun that prints its words: they arrive as given, and nothing else has run."""
    template = read_templates()["torchrun-per-node"]
    values = {"command": shlex.join(["train.py", hostile]), "torchrun": hostile, "job_name": hostile}
    script = render_script(template, parse_settings([f"{k}={v}" for k, v in values.items()]))
    guarded_srun = tmp_path / "guarded-srun"
    guarded_srun.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    guarded_srun.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    argv = ["bash", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[words.index("launch") + 1] == hostile
    assert words[-1] == hostile
    assert not (tmp_path / "hurt").exists()


AGENT = """
import subprocess, sys
rank = (
    "import signal, sys, time;"
    "signal.signal(signal.{name}, lambda *_: sys.exit(85));"
    "print('up', flush=True); time.sleep(60)"
)
sys.exit(subprocess.call([sys.executable, "-c", rank]) - 80)
"""
"""A torchrun in small: it starts a rank, says nothing to it, and makes another code of the rank's 85."""


def _catches(pid: int, number: int) -> bool:
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_to_the_task_alone_reaches_the_ranks_below_torchrun(name: str, tmp_path: Path) -> None:
    """proctrack/cgroup signals what srun started and nothing below it; the code is torchrun's own."""
    programs = {
        "guarded-srun": '#!/bin/bash\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/bin/sh\necho localhost\n",
        "torchrun": f"#!{sys.executable}\n{AGENT.format(name=name)}",
    }
    for program, text in programs.items():
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    script = render_script(read_templates()["torchrun-per-node"], CASES["torchrun-per-node-notice"])
    step = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1"}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", **step}
    with subprocess.Popen(["bash", "-c", script], env=env, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "up\n"
        deadline_s = time.monotonic() + 30
        while not _catches(task.pid, signal.Signals[name]):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        task.send_signal(signal.Signals[name])
        assert task.wait(timeout=30) == 5
