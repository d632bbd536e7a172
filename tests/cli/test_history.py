"""`slurm-guard node history`: what happened on this node, and who is a lemon."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from slurm_guard.cli import history
from slurm_guard.cli.app import main
from slurm_guard.hooks.ledger import Ledger
from slurm_guard.model.ledger import LedgerEntry, LedgerKind


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose nodes keep their state here; times are of UTC."""
    monkeypatch.setattr(history, "SITE_FILE", tmp_path / "site.toml")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    (tmp_path / "site.toml").write_text(f'[hooks]\nstate = "{tmp_path}"\n')
    return tmp_path / "ledger.jsonl"


def fill(path: Path) -> float:
    """Three proved faults of a GPU and a claim, all of this moment."""
    now_s = float(int(time.time()))
    drains = [
        LedgerEntry(now_s, LedgerKind.DRAIN, "n1", "1654003", None, "", check, "reset")
        for check in ("ecc_dram", "ecc_sram", "xid")
    ]
    Ledger(path).append(*drains, LedgerEntry(now_s, LedgerKind.CLAIM, "n1", "", 4_000_000, "12", "hardware"))
    return now_s


def test_the_table_says_what_happened_and_who_is_a_lemon(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores first, the worst on top; then the events, the newest last."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(fill(site)))
    assert main(["node", "history"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "SCORE  LEMON  NODE  GPU SERIAL  BECAUSE OF",
        "3.50   LEMON  n1    -           3 × proved fault, 1 × claim of 1 user",
        "3.00   LEMON  n1    1654003     3 × proved fault",
        "",
    ]
    assert lines[4] == "4 events:"
    assert lines[5].split() == ["TIME", "NODE", "EVENT", "CHECK", "CLASS", "GPU", "SERIAL", "JOB", "USER"]
    assert lines[6].split() == [*at.split(), "n1", "drain", "ecc_dram", "reset", "1654003", "-", "-"]
    assert lines[9].split() == [*at.split(), "n1", "claim", "hardware", "-", "-", "12", "4000000"]


def test_a_user_is_named_where_he_is_known(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And one event is one."""
    Ledger(site).append(LedgerEntry(time.time(), LedgerKind.CLAIM, "n1", "", 0, "12", "hardware"))
    assert main(["node", "history"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[-3], lines[-1].split()[-1]) == ("1 event:", "root")


def test_only_the_newest_are_shown_and_all_of_them_count(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--last`."""
    fill(site)
    assert main(["node", "history", "--last", "1"]) == 0
    out = capsys.readouterr().out
    assert "the newest 1 of 4 events:" in out
    assert "ecc_dram" not in out
    assert "3 × proved fault" in out


def test_json_holds_all_of_it(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores and events."""
    now_s = fill(site)
    assert main(["node", "history", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["events"][0] == {
        "time_s": now_s, "kind": "drain", "node": "n1", "gpu_serial": "1654003", "user_id": None,
        "job_id": "", "check": "ecc_dram", "cls": "reset",
    }  # fmt: skip
    assert said["scores"][0]["lemon"] is True
    assert said["scores"][0]["node"] == "n1"


def test_a_node_without_a_ledger_says_what_may_be_missing(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the remedy."""
    assert main(["node", "history"]) == 2
    assert capsys.readouterr().err == (
        f"slurm-guard: {site} does not exist: the hooks have not found anything on this node yet, "
        "or are not installed (slurm-guard site install)\n"
    )


def test_who_may_not_read_the_ledger_is_told_how(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names users and jobs."""
    fill(site)
    site.chmod(0)
    monkeypatch.setattr(history, "SITE_FILE", Path("/nowhere/site.toml"))
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        assert main(["node", "history", "--ledger", str(site)]) == 2
    finally:
        os.seteuid(user)
    assert "run this as root" in capsys.readouterr().err


def test_what_is_no_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback."""
    assert main(["node", "history", "--ledger", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"slurm-guard: {tmp_path} cannot be read: Is a directory\n"


def test_words_that_a_terminal_would_obey_are_not_printed(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever wrote them."""
    Ledger(site).append(LedgerEntry(1e9, LedgerKind.DRAIN, "n1\x1b[2J", check="a\x07b"))
    assert main(["node", "history"]) == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
