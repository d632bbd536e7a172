"""`slurm-guard doctor` on a real Slurm: its own configuration, broken ones, and a silent controller."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

# What a minicluster does on purpose, so that trying things out is quick and as bare as Slurm's defaults.
OWN = {"unkillable-timeout", "credential-life", "file-append", "requeue-delay"}
BROKEN = [
    ("ProctrackType", "proctrack/linuxproc", "proctrack", 1),
    ("RequeueExit", "80-90", "requeue-exit", 1),
    ("KillWait", "5", "kill-wait", 0),
    ("JobRequeue", "0", "job-requeue", 0),
    ("KillOnBadExit", "1", "kill-on-bad-exit", 0),
    ("PrologSlurmctld", "/bin/true", "prolog-slurmctld", 0),
    ("HealthCheckProgram", "/bin/true", "health-interval", 0),
    ("Epilog", "/bin/true", "hook-timeout", 0),
]


def run_doctor(
    cluster: RealCluster, *options: str, as_root: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run it as the plain user, or as the administrator."""
    argv = [str(Path(cluster.python).with_name("slurm-guard")), "doctor", *options]
    if as_root:
        return subprocess.run(argv, env=cluster.env, capture_output=True, text=True, timeout=60, check=False)
    return cluster.run_as_user(argv)


def read_checks(done: subprocess.CompletedProcess[str]) -> set[str]:
    """What it found of Slurm's configuration (this machine's own rights and limits are another matter)."""
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return {one["check"] for one in found} - {"ptrace", "install-closed", "install-loose"}


def write_conf(cluster: RealCluster, **changes: str) -> str:
    """A copy of the cluster's configuration that is right but for these changes; nobody else sees it."""
    right = {"UnkillableStepTimeout": "180", "JobFileAppend": "1"}
    text = re.sub(r"(,cred_expire|,requeue_delay)=\d+", "", cluster.conf.read_text())
    for key, value in {**right, **changes}.items():
        text = re.sub(rf"^{key}=.*\n", "", text, flags=re.MULTILINE) + f"{key}={value}\n"
    (cluster.workdir / "slurm.conf").write_text(text)
    if (beside := cluster.conf.with_name("cgroup.conf")).exists():
        shutil.copy(beside, cluster.workdir)
    return str(cluster.workdir / "slurm.conf")


@pytest.mark.parametrize("as_root", [True, False], ids=["root", "user"])
def test_the_minicluster_is_right_but_for_what_it_does_on_purpose(
    cluster: RealCluster, as_root: bool
) -> None:
    """Whoever asks; the answer of the real controller is whole, and its file says the same."""
    done = run_doctor(cluster, "--json", as_root=as_root)
    assert json.loads(done.stdout)["blind"] == ""
    if "proctrack/cgroup" not in cluster.conf.read_text():
        pytest.skip("no usable cgroups here: the minicluster follows processes by parentage")
    assert read_checks(done) == OWN
    assert read_checks(run_doctor(cluster, "--json", f"--conf={cluster.conf}", as_root=as_root)) == OWN


def test_a_good_file_and_broken_ones(cluster: RealCluster) -> None:
    """The cluster's file with its four things mended has nothing; each broken one names its finding."""
    if "proctrack/cgroup" not in cluster.conf.read_text():
        pytest.skip("no usable cgroups here: the minicluster follows processes by parentage")
    assert read_checks(run_doctor(cluster, "--json", "--conf", write_conf(cluster))) == set()
    for key, value, check, code in BROKEN:
        done = run_doctor(cluster, "--json", "--conf", write_conf(cluster, **{key: value}))
        assert (read_checks(done), done.returncode) == ({check}, code), key


def test_a_silent_controller(cluster: RealCluster) -> None:
    """Within its deadline it says so, judges the file instead, and leaves with 2."""
    with cluster.pause_controller():
        done = run_doctor(cluster)
    assert done.returncode == 2
    assert done.stderr.startswith("slurm-guard: the controller could not be asked: scontrol show config")
    assert "[unkillable-timeout]" in done.stdout
