"""`slurm-guard incident list` and `show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.cli.app import main
from slurm_guard.cli.incident import parse_incident
from slurm_guard.model.breach import Breach, BreachKind, RedLine
from slurm_guard.model.incident import Incident


def write(state: Path, name: str = "001-stall", *, job: str = "7", at: float = 1e9, **changes: Any) -> Path:
    """An incident in a state directory, as the guard writes it."""
    breach = Breach(
        RedLine.HEARTBEAT, BreachKind.STALL, value="900 s", evidence="3 of 4 stand still", node="n2", rank=5
    )
    incident = Incident(
        name, job, 0, f"{job}.0", breach, suspects=("n2",), recovery="requeue", verdict="n2 is suspect"
    )
    incident.stages.update({"symptom": at - 900, "breach": at, "dumped": at + 1.5, "killed": at + 2.25})
    folder = state / "faults" / name
    (folder / "stacks").mkdir(parents=True)
    (folder / "stacks" / "n2.txt").write_text("main (train.py:7)")
    (folder / "incident.json").write_text(json.dumps({**incident.as_json(), **changes}))
    return folder


def run(*words: object, code: int = 0) -> None:
    assert main(["incident", *map(str, words)]) == code


def test_list_is_a_short_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All jobs below the directory, by time: what, where, killed after how long, and what followed."""
    write(tmp_path / "8", "001-non_finite", job="8", at=1e9 + 60)
    write(tmp_path / "7")
    run("list", "--state-dir", tmp_path)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "INCIDENT"
    assert [row.split()[:2] for row in rows] == [["001-stall", "7"], ["001-non_finite", "8"]]
    assert "heartbeat: stall  n2 rank 5  2.2 s         requeue   n2 is suspect" in rows[0]


def test_a_broken_gpu_is_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its number and UUID, the check, the limit, and what mends it."""
    gpu = {"check": "ecc_sram", "gpu": 1, "uuid": "GPU-1", "limit": "0", "cls": "reset"}
    write(tmp_path / "7", breach={"red_line": "hardware", "kind": "ecc", "value": "3", "gpu": gpu})
    run("show", "--state-dir", tmp_path)
    page = capsys.readouterr().out
    assert "  red line   hardware: ecc (3)\n" in page
    assert "  gpu        1 GPU-1: ecc_sram, limit 0, class reset\n" in page


def test_an_incident_without_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An all-reduced NaN names no node and no rank: a dash, in list and show."""
    breach = {"red_line": "numeric", "kind": "non_finite", "node": None, "rank": None, "value": "nan"}
    write(tmp_path / "7", breach=breach, suspects=[])
    run("list", "--state-dir", tmp_path)
    assert "numeric: non_finite  -      2.2 s" in capsys.readouterr().out
    run("show", "--state-dir", tmp_path)
    assert "where      -, iteration -\n  evidence   -\n  suspects   none\n" in capsys.readouterr().out


def test_the_state_directory_comes_from_option_environment_or_cwd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--state-dir before SLURM_GUARD_STATE_DIR before slurm-guard/*/; a state directory will do too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_GUARD_STATE_DIR", raising=False)
    write(tmp_path / "slurm-guard" / "7", "001-here")
    write(tmp_path / "set", "001-set")
    write(tmp_path / "given", "001-given")
    run("list")
    monkeypatch.setenv("SLURM_GUARD_STATE_DIR", str(tmp_path / "set"))
    run("list")
    run("list", "--state-dir", "given")
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("001")]
    assert names == ["001-here", "001-set", "001-given"]


def test_nothing_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No incidents is no failure of `list`; `show` has nothing to show."""
    run("list", "--state-dir", tmp_path / "none")
    assert capsys.readouterr().err == f"no incidents in {tmp_path / 'none'}\n"
    run("show", "--state-dir", tmp_path / "none", code=1)
    assert "name the state directory with --state-dir" in capsys.readouterr().err


def test_broken_files_are_named_and_the_others_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A half-written file costs one line, not the table."""
    write(tmp_path / "7")
    half = write(tmp_path / "8") / "incident.json"
    half.write_text(half.read_text()[:100])
    run("list", "--state-dir", tmp_path)
    said = capsys.readouterr()
    assert said.err == f"slurm-guard: {half}: no JSON (half-written?)\n"
    assert len(said.out.splitlines()) == 2
    run("list", "--state-dir", tmp_path, "--json")
    body = json.loads(capsys.readouterr().out)
    assert [one["job_id"] for one in body["incidents"]] == ["7"]
    assert body["unreadable"] == [{"file": str(half), "reason": "no JSON (half-written?)"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no schema"),
        ('{"schema": true}', "no schema"),
        ('{"schema": 99}', "newer"),
        ('{"schema": 1}', "incident is missing"),
        ('{"schema": 1, "incident": "a", "job_id": "7", "breach": {}, "stages": {"killed": "x"}}', "stages"),
        ('{"schema": 1, "incident": "a", "job_id": "7", "breach": {}, "stages": {"killed": NaN}}', "stages"),
        ('{"schema": 1, "incident": "a", "job_id": "7", "breach": {}, "stages": {"killed": 1e99}}', "stages"),
        (
            '{"schema": 1, "incident": "a", "job_id": "7", "breach": {}, "stages": {}, "suspects": 1}',
            "suspects",
        ),
    ],
)
def test_what_is_no_incident_says_why(text: str, why: str) -> None:
    """Every wrong document is a ValueError of one line, never another error later on."""
    with pytest.raises(ValueError, match=why) as caught:
        parse_incident(text)
    assert "\n" not in str(caught.value)


def test_show_has_stages_evidence_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage with its seconds since the breach, also before it; what did not happen is a dash."""
    folder = write(tmp_path / "7")
    run("show", "001", "--state-dir", tmp_path)
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[-2:] for line in text.splitlines() if line and line[0] != " "}
    assert rows["symptom"] == ["-900.0", "s"]
    assert rows["dumped"] == ["1.5", "s"]
    assert rows["requeued"] == ["-", "-"]
    assert "evidence   3 of 4 stand still" in text
    assert "suspects   n2" in text
    assert f"FILES in {folder}\n  incident.json\n  stacks/n2.txt\n" in text
    run("show", "--state-dir", tmp_path, "--json")
    body = json.loads(capsys.readouterr().out)
    assert (body["stages"]["killed"], body["folder"]) == (1e9 + 2.25, str(folder))


def test_show_chooses_by_name_or_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest without a name; what fits several or none is refused with the names there are."""
    write(tmp_path / "7", at=1e9)
    write(tmp_path / "8", job="8", at=2e9)
    run("show", "--state-dir", tmp_path)
    assert capsys.readouterr().out.startswith("001-stall of job 8,")
    run("show", "7/001", "--state-dir", tmp_path)
    assert capsys.readouterr().out.startswith("001-stall of job 7,")
    run("show", "001", "--state-dir", tmp_path, code=2)
    assert "more than one incident: choose one of 7/001-stall, 8/001-stall" in capsys.readouterr().err
    run("show", "9", "--state-dir", tmp_path, code=2)
    assert "'9' is no incident" in capsys.readouterr().err


def test_evidence_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evidence comes from logs; control characters in it are shown as a mark."""
    write(tmp_path / "7", verdict="\x1b[31mred\nline")
    run("list", "--state-dir", tmp_path)
    run("show", "--state-dir", tmp_path)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "�[31mred�line" in text


def test_a_job_of_several_incidents_shows_its_newest_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr names those that are not shown; job 71 is none of job 7's."""
    write(tmp_path / "7", "001-stall", at=1e9)
    write(tmp_path / "7", "002-stall", at=2e9)
    write(tmp_path / "71", "003-stall", job="71", at=3e9)
    run("show", "7", "--state-dir", tmp_path)
    shown = capsys.readouterr()
    assert shown.out.startswith("002-stall of job 7,")
    assert shown.err == "slurm-guard: the newest of 2 of job 7: 7/002-stall; there are 7/001-stall too\n"
    run("show", "71", "--state-dir", tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (
            {"outcome": "recovered", "after_s": 12.5, "how": "progress came again"},
            "outcome    recovered after 12.5 s: progress came again\n",
        ),
        (None, "outcome    open: not known yet, or nobody saw it\n"),
        ("nonsense", "outcome    open"),
        ({}, "outcome    -: -\n"),
    ],
)
def test_show_tells_what_became_of_an_observed_breach(
    outcome: object, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recovered or not, after how long and by which sign; open where nobody knows."""
    write(tmp_path / "7", observe=True, outcome=outcome)
    run("show", "--state-dir", tmp_path)
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rescue", "line"),
    [
        ({"bytes": 3 * 10**9, "copied": 3 * 10**9, "reason": ""}, "iteration 1200, 3.0 GB in 4.2 s\n"),
        (
            {"bytes": 3 * 10**9, "copied": 10**9, "reason": "n2: no space left on device"},
            "iteration 1200, 1.0 GB of 3.0 GB in 4.2 s, not whole: n2: no space left on device\n",
        ),
        ({"bytes": "many"}, ""),
    ],
)
def test_show_tells_what_was_rescued(
    rescue: dict[str, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How much of which iteration, how long it took, and why it is not whole."""
    write(tmp_path / "7", rescue={"iteration": 1200, "seconds": 4.2, **rescue})
    run("show", "--state-dir", tmp_path)
    shown = capsys.readouterr().out
    assert f"  rescue     {line}" in shown if line else "rescue" not in shown


def test_a_real_stop_has_no_outcome_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was stopped cannot tell what it would have done."""
    write(tmp_path / "7")
    run("show", "--state-dir", tmp_path)
    assert "outcome" not in capsys.readouterr().out
