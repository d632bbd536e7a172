"""`slurm-guard node check`: a page or JSON, and an exit code that a script can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nvml_library import build_nvml

from slurm_guard.adapters.gpu_health import NvmlHealth
from slurm_guard.cli import node
from slurm_guard.cli.app import main
from slurm_guard.errors import OutsideError
from slurm_guard.model.health import HostReading, PlaceReading, Trouble, Unreadable
from slurm_guard.model.xid import KernelExcerpt, KernelRecord


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def state(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a node n1 with two healthy GPUs."""
    path = tmp_path / "state"
    path.write_text("count 2\ndriver 570.86.15\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    # A fork of the test's own process would not see the library.
    monkeypatch.setattr(node, "NvmlHealth", lambda timeout_s, **_: NvmlHealth(timeout_s))
    monkeypatch.setattr(node, "read_host", lambda **_: HostReading())
    monkeypatch.setattr(node, "read_own", lambda: KernelExcerpt(()))
    monkeypatch.setattr(node, "SITE_PROFILES", tmp_path / "gpu-profiles.toml")
    return path


def test_a_healthy_node_is_one_line(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was found; what these GPUs do not have is counted."""
    assert main(["node", "check"]) == 0
    assert capsys.readouterr().out == "n1: healthy, 2 GPUs (5 checks do not apply, --json says why)\n"


def test_the_worst_comes_first(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a finding: level, check, GPU, class and evidence; and what a person does about each class."""
    state.write_text(state.read_text() + "0.remap_pending 1\n1.nvmlDeviceGetHandleByIndex_v2.ret 15\n")
    assert main(["node", "check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "n1: unfit (reboot), 2 GPUs (3 checks do not apply, --json says why)",
        "LEVEL  CHECK          GPU  CLASS   EVIDENCE",
        "fail   gpu_lost       1    reboot  the GPU is lost: GPU is lost (NVML code 15)",
        "warn   remap_pending  0    reset   a row is remapped at the next reset; new work may run until then",
        "GPU 0 is GPU-00000000, 00000000:01:00.0, serial 165000000",
        "reset: let its jobs end, then nvidia-smi --gpu-reset, and check again",
        "reboot: drain the node, boot it (power off where a GPU is lost), and check again",
    ]


def test_a_node_without_gpus_says_so(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is healthy, and what was not judged is told."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert main(["node", "check"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "n1: healthy, 0 GPUs"
    assert any("no GPU is expected here: NVML Shared Library Not Found" in line for line in rest)


def test_a_warning_is_no_failure(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The node may run jobs."""
    state.write_text(state.read_text() + "0.remap_pending 1\n")
    assert main(["node", "check"]) == 0
    assert capsys.readouterr().out.startswith("n1: warn (reset), 2 GPUs")


def test_json_has_every_finding(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Node, boot, verdict, class, GPUs, and the findings with value and limit."""
    state.write_text(state.read_text() + "1.pcie_width 8\n")
    assert main(["node", "check", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert {name: said[name] for name in ("node", "verdict", "class")} == {
        "node": "n1",
        "verdict": "unfit",
        "class": "reboot",
    }
    assert len(said["boot_id"]) == 36
    assert [(gpu["uuid"], gpu["verdict"]) for gpu in said["gpus"]] == [
        ("GPU-00000000", "healthy"),
        ("GPU-00000001", "unfit"),
    ]
    assert [finding for finding in said["findings"] if finding["level"] != "skipped"] == [
        {
            "check": "pcie_width",
            "gpu": 1,
            "level": "fail",
            "value": "x8",
            "limit": "x16",
            "evidence": "PCIe runs on 8 of 16 lanes",
            "class": "reboot",
        }
    ]
    assert {finding["check"] for finding in said["findings"]} >= {"retired_pages", "pcie_width"}


def test_could_not_judge_is_two(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NVML refuses this user: the page says why."""
    state.write_text(state.read_text() + "init.ret 4\n")
    assert main(["node", "check"]) == 2
    out = capsys.readouterr().out
    assert "n1: unknown, 0 GPUs" in out
    assert "Insufficient Permissions" in out


def test_a_driver_that_hangs_costs_the_deadline(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In so little time it may be only slow: unknown, in the words of the hooks; so is a silent GPU."""
    healthy = state.read_text()
    state.write_text(healthy + "init.sleep_s 60\n")
    assert main(["node", "check", "--timeout-s", "0.8"]) == 2
    slow = "s: it may be only slow, a sweep waits for 25 s and decides"
    assert f"no answer of the GPU driver in 0.8 {slow}" in capsys.readouterr().out
    state.write_text(healthy + "0.nvmlDeviceGetTemperature.sleep_s 60\n")
    assert main(["node", "check", "--timeout-s", "2"]) == 2
    assert slow in capsys.readouterr().out


def test_the_site_has_its_own_levels(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that the site turned off says nothing, one that it made fail fails; a profile can be forced."""
    state.write_text(state.read_text() + "0.remap_pending 1\n0.pcie_width 8\n")
    site = (
        '[generic.check]\nremap_pending = "fail"\n[mine.check]\npcie_width = "off"\nremap_pending = "warn"\n'
    )
    (tmp_path / "gpu-profiles.toml").write_text(site)
    assert main(["node", "check"]) == 1
    assert "fail   remap_pending" in capsys.readouterr().out
    assert main(["node", "check", "--profile", "mine"]) == 0
    said = capsys.readouterr().out
    assert "warn   remap_pending" in said
    assert "pcie_width" not in said


def test_a_profile_that_is_not_known(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest one is named."""
    assert main(["node", "check", "--profile", "H10"]) == 2
    assert capsys.readouterr().err == "slurm-guard: --profile H10 is no profile: did you mean H100?\n"


def test_the_node_beside_its_gpus(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs is a warning until the site makes it more, and belongs to no GPU."""
    hung = PlaceReading("/scratch", Unreadable("no answer in 2 s", Trouble.HUNG))
    monkeypatch.setattr(node, "read_host", lambda **_: HostReading(mounts=(hung,), clock_error_s=0.01))
    assert main(["node", "check"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "warn   host_mount  -    reboot  /scratch: no answer in 2 s",
        "reboot: drain the node, boot it (power off where a GPU is lost), and check again",
    ]


def test_a_clock_that_is_off_is_no_matter_of_restarting(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the node is broken."""
    monkeypatch.setattr(node, "read_host", lambda **_: HostReading(clock_error_s=7.0))
    assert main(["node", "check"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "warn   host_clock  -    application  the clock may be off by 7.000 s",
        "application: no hardware; set right or clear up what the line names",
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_the_kernel_log_counts_too(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """By the GPU that a line names; where the driver asks for nothing now, an old line only warns."""
    record = KernelRecord("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 12.0)
    monkeypatch.setattr(node, "read_own", lambda: KernelExcerpt((record,)))
    (state.parent / "gpu-profiles.toml").write_text('[generic.check]\nxid = "fail"\n')
    state.write_text(state.read_text() + ("" if asked else "0.field.230.ret 3\n"))
    assert main(["node", "check"]) == (0 if asked else 1)
    out = capsys.readouterr().out.splitlines()
    assert out[2].split()[:4] == ["warn" if asked else "fail", "xid", "0", "reboot"]


def test_a_kernel_log_that_cannot_be_read_is_skipped(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is no fault, and is told."""

    def refuse() -> KernelExcerpt:
        raise OutsideError("no right")

    monkeypatch.setattr(node, "read_own", refuse)
    assert main(["node", "check"]) == 0
    first, _, row = capsys.readouterr().out.splitlines()
    assert first == "n1: healthy, 2 GPUs (5 checks do not apply, --json says why)"
    assert row.split() == ["skipped", "xid", "-", "-", "no", "right"]
