"""`slurm-guard node xid`: a kernel log in, the meaning of its codes out."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_guard.adapters.kernel_log import KmsgLog
from slurm_guard.cli import xid as command
from slurm_guard.cli.app import main
from slurm_guard.errors import OutsideError
from slurm_guard.model.xid import KernelExcerpt, KernelRecord

LOG = """\
[    0.000000] Linux version 5.14
[  900.000000] NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper Error: (0x1) - no row is left
[    0.000000] Linux version 5.14
[ 8123.004512] NVRM: GPU at PCI:0000:3b:00: GPU-0a1b2c3d-1111-2222-3333-444455556666
[ 8123.004517] NVRM: Xid (PCI:0000:3b:00): 31, pid=70123, name=python3, Ch 0000000a, intr 00000000. MMU Fault
[ 8124.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 8125.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=\x1b[2J, GPU has fallen off the bus.
[ 8126.000000] nvidia-nvswitch2: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress (First)
[ 8127.000000] NVRM: Xid (PCI:0000:3b:00): 4
[ 8128.000000] NVRM: Xid (PCI:0000:3b:00): ...
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two boots."""
    path = tmp_path / "kern.log"
    path.write_text(LOG)
    return path


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_each_code_is_told_with_class_and_advice(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each device and code, what to do about each, and what they mean together."""
    assert main(["node", "xid", str(log), "--since-boot"]) == 0
    out = _lines(capsys)
    assert "0000:3b:00 Xid 31 1 8123.005 application MMU page fault: a program used an illegal address" in out
    assert "0000:3b:00 Xid 79 2 8125.000 reboot GPU fell off the PCIe bus" in out
    assert "0000:c5:00 SXid 12028 1 8126.000 information NVSwitch error, not fatal" in out
    assert "0000:3b:00 Xid 4 1 8127.000 information not known here" in out
    assert "0000:3b:00 Xid ? 1 8128.000 information cut before the end of its code" in out
    assert any(line.startswith("Xid 79: Drain the node and power-cycle it (cold).") for line in out)
    together = out[out.index("Together:") + 1 :]
    assert [line.split()[:2] for line in together] == [["fail", "reboot"]]
    assert not any("Xid 64" in line for line in out)


def test_a_reset_is_seen_by_the_load_of_the_driver(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands before it is left out, and all else stays."""
    lines = LOG.splitlines(keepends=True)
    lines.insert(-3, "[ 8125.500000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03\n")
    log.write_text("".join(lines))
    assert main(["node", "xid", str(log), "--since-reset", "--json"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert [(event["kind"], event["code"]) for event in events] == [
        ("sxid", 12028),
        ("xid", 4),
        ("xid", None),
    ]


def test_json_has_every_event_and_finding(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: all that a line says, its class and advice."""
    assert main(["node", "xid", str(log), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(event["code"], event["boot"]) for event in said["events"]] == [
        (64, 0), (31, 1), (79, 1), (79, 1), (12028, 1), (4, 1), (None, 1),
    ]  # fmt: skip
    fault = said["events"][1]
    assert fault["uuid"] == "GPU-0a1b2c3d-1111-2222-3333-444455556666"
    assert (fault["pid"], fault["process"], fault["channel"]) == (70123, "python3", "0000000a")
    assert (fault["class"], fault["level"], fault["time_s"]) == ("application", None, 8123.004517)
    assert {(f["check"], f["level"], f["class"]) for f in said["findings"]} == {
        ("xid", "fail", "replace"), ("xid", "fail", "reboot"),
    }  # fmt: skip


def test_a_time_is_one_of_the_newest_boot(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As dmesg shows it; the older boot had such times too."""
    assert main(["node", "xid", str(log), "--since", "8127.5", "--json"]) == 0
    assert [event["code"] for event in json.loads(capsys.readouterr().out)["events"]] == [None]
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:3b:00): 48, x\n")
    assert main(["node", "xid", str(log), "--since", "9000"]) == 0
    out = _lines(capsys)
    assert out[0] == "note: lines without the kernel's time are not left out: 1"
    assert out[2].startswith("0000:3b:00 Xid 48 1 - reset")
    with log.open("a") as file:
        file.write("[    0.000000] Linux version 5.14\n[    9.000000] usb 1-1: new device\n")
    assert main(["node", "xid", str(log), "--since-boot"]) == 0
    assert _lines(capsys) == ["no Xid or SXid lines"]


def test_a_paste_comes_on_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of it moves the terminal that it is shown on."""
    pasted = SimpleNamespace(buffer=io.BytesIO(b"\xff\n" + LOG.encode()))
    monkeypatch.setattr(sys, "stdin", pasted)
    assert main(["node", "xid", "-"]) == 0
    out = capsys.readouterr().out
    assert "Xid 79" in out
    assert "\x1b" not in out


def test_what_is_harmless_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's bug speaks against no node."""
    log = tmp_path / "log"
    log.write_text("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=python3, Graphics Exception\n")
    assert main(["node", "xid", str(log)]) == 0
    assert _lines(capsys)[-1] == "Together: nothing here speaks against the node."


def test_a_sites_table_counts(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its advice is shown; a wrong one is a wrong call."""
    table = tmp_path / "xid.toml"
    table.write_text('[[xid]]\ncode = 79\ndo = "Call the operator."\n')
    assert main(["node", "xid", str(log), "--table", str(table)]) == 0
    assert "Xid 79: Call the operator." in _lines(capsys)
    table.write_text("[[xid]]\ncode = 79\nclass = 'drain'\n")
    assert main(["node", "xid", str(log), "--table", str(table)]) == 2
    assert f"{table}: xid 79: class = 'drain' is none" in capsys.readouterr().err


def test_this_nodes_log_is_kmsg_else_the_journal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where neither may be read, both reasons are said, and nothing looks healthy."""

    def refuse(*_: object, **__: object) -> KernelExcerpt:
        raise OutsideError("may not be read")

    def journal() -> KernelExcerpt:
        return KernelExcerpt((KernelRecord("NVRM: Xid (PCI:0000:3b:00): 48, x", 5.0),), missing="half of it")

    monkeypatch.setattr(KmsgLog, "read_since", refuse)
    monkeypatch.setattr(command, "read_journal", journal)
    assert main(["node", "xid"]) == 0
    out = _lines(capsys)
    assert out[0] == "note: half of it"
    assert "0000:3b:00 Xid 48 1 5.000 reset uncorrectable (double-bit) ECC error" in out
    monkeypatch.setattr(command, "read_journal", refuse)
    assert main(["node", "xid"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "slurm-guard: may not be read; may not be read: run this as root, or give a log file\n"


def test_a_log_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing or a directory."""
    assert main(["node", "xid", str(tmp_path / "none")]) == 1
    assert main(["node", "xid", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
