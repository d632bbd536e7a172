"""`slurm-guard replay`: what would have been stopped in a log, said to people and to machines."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training_course import Course, Fault, Spike
from training_log import write_log

from slurm_guard.cli.app import main
from slurm_guard.model.phase import Phase

DIVERGED_AT = 2500
"""The record from which on the loss of the day's training climbs."""


def write_day(path: Path, form: str, *, diverges: bool = True) -> Path:
    """A day of training at 30 s a record: three healthy pauses, two spikes that recover, one divergence."""
    course = Course(2880, 30.0, every=10, noise=0.03)
    course.pauses = {
        700: (Phase.EVALUATION, 2400.0),
        1300: (Phase.CHECKPOINT, 800.0),
        1900: (Phase.COMPILATION, 850.0),
    }
    course.spikes = (Spike(500, 15.0), Spike(1600, 30.0, 0.7))
    course.fault = Fault(DIVERGED_AT) if diverges else None
    path.write_bytes(b"".join(write_log(form, course, random.Random(5))))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["replay", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("hf", ["--interval-s", "30"]),
        ("hf-timed", []),
        ("megatron", []),
        ("tqdm", ["--interval-s", "30"]),
        ("tqdm-timed", []),
    ],
)
def test_of_a_day_only_the_divergence_is_stopped(
    form: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the pauses nor the spikes: one stop, within 20 records of the climb, in each format."""
    log = write_day(tmp_path / "day.log", form)
    (one,) = run(capsys, str(log), *words)["logs"]
    (stop,) = [event for event in one["events"] if event["would"] == "stop"]
    assert stop["what"] in {"divergence", "plateau"}
    assert stop["iteration"] is None or 0 <= stop["iteration"] - DIVERGED_AT * 10 <= 200
    assert (one["losses"], one["stalls_judged"], one["stopped"]) == (2880, True, True)
    assert one["seconds"] == pytest.approx(2880 * 30 + (0 if words else 4050), rel=0.01)
    healthy = write_day(tmp_path / "healthy.log", form, diverges=False)
    assert run(capsys, str(healthy), *words)["logs"][0]["counts"]["stop"] == 0


def test_page_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What, where, when and why, and a last line over all logs. Stopped or not, the code is 0."""
    logs = [
        write_day(tmp_path / f"{name}.log", "megatron", diverges=name == "bad") for name in ("bad", "good")
    ]
    assert main(["replay", *map(str, logs)]) == 0
    said = capsys.readouterr().out
    assert "WOULD  LINE" in said
    assert f"{logs[0]}: 2,888 lines, " in said
    assert " to 2026-01-02 " in said
    assert "median" in said
    assert said.count("would have been stopped after line") == 1
    assert said.count("would not have been stopped") == 1
    assert said.splitlines()[-1] == "2 logs judged, 1 would have been stopped"


def test_limits_are_given_as_toml_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A day at an even pace: an earlier stall_s would have done."""
    log = tmp_path / "log"
    log.write_bytes(b"".join(write_log("key-value", Course(2000, 5.0), random.Random(1))))
    assert main(["replay", str(log)]) == 0
    said = capsys.readouterr().out
    assert "  [heartbeat]\n  stall_s = 70.0  # the longest of " in said


def test_set_is_judged_by_and_counts_as_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stall_s = 600 of one's own convicts alone; the section may stand in front."""
    lines = [f"2026-01-01 00:{i // 60:02}:{i % 60:02} step={i} loss=2.0\n" for i in range(60)]
    lines += [f"2026-01-01 01:00:{i:02} step={60 + i} loss=2.0\n" for i in range(30)]
    log = tmp_path / "log"
    log.write_text("".join(lines))
    assert run(capsys, str(log))["logs"][0]["counts"] == {"stop": 0, "look": 1, "note": 0}
    for key in ("stall_s", "heartbeat.stall_s", "stall-s"):
        (one,) = run(capsys, str(log), "--set", f"{key}=600")["logs"]
        assert [event["would"] for event in one["events"]] == ["stop"], key
        assert one["events"][0]["at_s"] == pytest.approx(1767225600 + 59 + 600, abs=0.1)


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("stall_s=soon", "command line: --stall-s = 'soon' is of the wrong type: give a number from 2 to"),
        ("stall_s=1", "command line: --stall-s = 1.0 is out of bounds: give a number from 2 to"),
        ("stal_s=600", "--set stal_s is nothing that a log is judged by: did you mean stall_s?"),
        ("grace_s=5", "--set grace_s is nothing that a log is judged by"),
        ("stall_s", "--set stall_s has no value: write it as --set stall_s=600"),
    ],
)
def test_wrong_setting_is_one_line_and_2(
    word: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the words of guarded-srun's own flags."""
    (tmp_path / "log").write_text("step=1 loss=2\n")
    assert main(["replay", str(tmp_path / "log"), "--set", word]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert what in said.err


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "1e9", "0.00001", "ten"])
def test_wrong_interval_is_one_line_and_2(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not finite, out of bounds, no number."""
    assert main(["replay", "log", f"--interval-s={seconds}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "missing", "empty", "of other words"])
def test_what_is_no_log_is_one_line_and_1(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO doesn't block. The logs beside it are judged all the same."""
    path, good = tmp_path / "log", tmp_path / "good"
    good.write_text("step=1 loss=2\nstep=2 loss=2\n")
    if kind == "a directory":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "lorem ipsum\n" * 5)
    assert main(["replay", str(path), str(good)]) == 1
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"slurm-guard: {path}: ")
    assert "1 log judged" in said.out
    assert main(["replay", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["logs"], [lost["file"] for lost in document["unreadable"]]) == ([], [str(path)])


def test_standard_input_is_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As from zcat; its lines may be as long as they like."""
    text = b"".join(b"step=%d loss=%s\r" % (i, b"nan" if i > 50 else b"2.0") for i in range(100))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    (one,) = run(capsys, "-")["logs"]
    assert (one["file"], one["losses"], one["counts"]["stop"]) == ("standard input", 100, 1)


def test_memory_stays_flat(tmp_path: Path) -> None:
    """A log of 60 MB, without a newline in its second half, is judged within 40 MiB more than a small one."""
    script = (
        "import resource, sys; from slurm_guard.cli.app import main; main(['replay', sys.argv[1], '--json']);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )

    def memory_kib(log: Path) -> int:
        done = subprocess.run(
            [sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=True
        )
        return int(done.stderr.split()[-1])

    small, large = tmp_path / "small", tmp_path / "large"
    small.write_text("step=1 loss=2.0\nstep=2 loss=2.0\n")
    with large.open("wb") as log:
        for i in range(300):
            log.write(b"step=%d loss=2.0\n" % i + b"nothing of interest in this line, as in most\n" * 2000)
        log.write(b"x" * 30_000_000)
    assert memory_kib(large) - memory_kib(small) < 40 * 1024
