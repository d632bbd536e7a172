"""A real Slurm for the tests: one cluster a session, clean and idle before and after each test."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MINICLUSTER = Path(__file__).parents[2] / "scripts" / "minicluster"
USER = "slurmguard"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a real Slurm."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slurm)


class RealCluster:
    """A minicluster as a test uses it: as root beside it, and as the plain user inside it.

    `workdir` is another directory for each test: mode 0755, owned by the user, shared by all nodes.
    """

    def __init__(self, name: str, *options: str) -> None:
        self.name = name
        self.user = USER
        self.python = sys.executable
        self.guarded_srun = str(Path(sys.executable).with_name("guarded-srun"))
        self.minicluster("up", *options)
        lines = self.minicluster("env").stdout.splitlines()
        exported = dict(line.removeprefix("export ").split("=", 1) for line in lines)
        self.conf = Path(exported["SLURM_CONF"])
        account = pwd.getpwnam(USER)
        self.account = account
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": account.pw_dir,
            "USER": USER,
            "LANG": "C.UTF-8",
            **exported,
        }
        self.nodes = sorted(self.run_as_root(["sinfo", "-h", "-N", "-p", "main", "-o", "%N"]).stdout.split())
        self._base = Path(tempfile.mkdtemp(prefix="slurm-guard-test-"))
        self._base.chmod(0o755)
        self._numbers = itertools.count(1)
        self.workdir = self._base

    # --- commands

    def minicluster(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run scripts/minicluster for this cluster; it must succeed."""
        argv = ["/usr/bin/python3", str(MINICLUSTER), command, "--name", self.name, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, f"minicluster {command}: {done.stderr}"
        return done

    def run_as_root(self, argv: list[str], timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command as the administrator; it must succeed."""
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done

    def popen_as_user(
        self, argv: list[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command as the plain user in `workdir`; `env` adds to the user's environment."""
        return subprocess.Popen(argv, **self._as_user(env, options))

    def run_as_user(
        self, argv: list[str], timeout_s: float = 60, *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command as the plain user in `workdir`; text by default, any exit code."""
        options = {"capture_output": True, "text": True, **options}
        return subprocess.run(argv, timeout=timeout_s, check=False, **self._as_user(env, options))

    def _as_user(self, env: Mapping[str, str] | None, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "cwd": self.workdir,
            "env": {**self.env, **(env or {})},
            "user": self.account.pw_uid,
            "group": self.account.pw_gid,
            "extra_groups": [],
            **({} if "input" in options else {"stdin": subprocess.DEVNULL}),
            **options,
        }

    # --- jobs

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a batch script as the plain user from `workdir`; its text may go without #!. The job id."""
        path = self.workdir / f"job-{next(self._numbers)}.sh"
        path.write_text(script if script.startswith("#!") else "#!/bin/bash\n" + script)
        path.chmod(0o755)
        done = self.run_as_user(["sbatch", "--parsable", *options, str(path)])
        assert done.returncode == 0, f"sbatch: {done.stderr}"
        return str(done.stdout.strip().split(";")[0])

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of `scontrol -o show job`; of the first element if it is an array."""
        text = self.run_as_root(["scontrol", "-o", "show", "job", job_id]).stdout.splitlines()[0]
        return dict(re.findall(r"(\S+?)=(.*?)(?= [A-Z][\w:/]*=|$)", text))

    def state(self, job_id: str) -> str:
        """The job's state, as RUNNING."""
        return self.job(job_id)["JobState"]

    def wait_state(self, job_id: str, states: set[str], timeout_s: float = 60) -> dict[str, str]:
        """The job's fields as soon as its state is one of `states`; fails the test after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (fields := self.job(job_id))["JobState"] not in states:
            where = f"job {job_id} is {fields['JobState']} ({fields['Reason']}), not {states}"
            assert time.monotonic() < deadline, f"{where}, after {timeout_s} s\n{self.output(job_id)[-3000:]}"
            time.sleep(0.1)
        return fields

    def output(self, job_id: str) -> str:
        """What the job wrote to its output file up to now."""
        path = Path(self.job(job_id)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else ""

    # --- faults

    def fail_node(self, node: str) -> None:
        """Lose a node: everything on it dies at once."""
        self.minicluster("fail-node", node)

    def restore_node(self, node: str) -> None:
        """Bring a lost, down or drained node back."""
        self.minicluster("restore-node", node)

    @contextmanager
    def pause_controller(self) -> Iterator[None]:
        """Stop slurmctld while the block runs: it answers nobody."""
        pid = int((self.conf.parent / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    # --- between tests

    def node_states(self) -> dict[str, str]:
        """Node -> state in sinfo's short words."""
        lines = self.run_as_root(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %t"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def new_workdir(self, title: str) -> None:
        """Give the coming test a directory of its own."""
        self.workdir = self._base / f"{next(self._numbers):03}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', title)[:60]}"
        self.workdir.mkdir(mode=0o755)
        os.chown(self.workdir, self.account.pw_uid, self.account.pw_gid)

    def clean(self, timeout_s: float = 45) -> None:
        """End every job and have every node idle again; fails the test when that can't be had."""
        start = time.monotonic()
        while True:
            jobs = self.run_as_root(["squeue", "-h", "-o", "%A"]).stdout.split()
            states = self.node_states()
            if not jobs and set(states.values()) == {"idle"}:
                return
            elapsed_s = time.monotonic() - start
            assert elapsed_s < timeout_s, f"left over after {timeout_s} s: jobs {jobs}, nodes {states}"
            if jobs:
                # Kindly first; who ignores SIGTERM would stay for KillWait. Refused for a job that is ending.
                firmly = ["--full", "--signal=KILL"] if elapsed_s > 2 else []
                subprocess.run(["scancel", "--quiet", *firmly, *jobs], env=self.env, timeout=30, check=False)
            for node, state in states.items():
                if state.rstrip("*") in ("down", "drain", "drng") or (state.endswith("*") and not jobs):
                    self.restore_node(node)
            time.sleep(0.2)

    def close(self, *, keep_files: bool) -> None:
        """Take the cluster down."""
        self.minicluster("down")
        if not keep_files:
            shutil.rmtree(self._base, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """Skip where there can be no real Slurm; fail under scripts/test, which promises one."""
    missing = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name, path="/usr/sbin")]
    if os.geteuid() != 0 or missing:
        why = f"needs {', '.join(missing)}" if missing else "needs root"
        if os.environ.get("SLURM_GUARD_REQUIRE_SLURM"):
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="session")
def cluster(slurm_here: None, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """A real Slurm of 4 nodes with 2 GPUs each, for the whole session."""
    real = RealCluster(f"t{os.getpid()}")
    yield real
    failed = request.session.testsfailed > 0
    if failed:
        print(f"\nfiles of the jobs are kept below {real.workdir.parent}")
    real.close(keep_files=failed)


@pytest.fixture(autouse=True)
def _clean_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around each test that uses the cluster: a new work directory; jobs ended, nodes idle afterwards."""
    if "cluster" not in request.fixturenames:
        yield
        return
    real: RealCluster = request.getfixturevalue("cluster")
    real.new_workdir(request.node.name)
    yield
    real.clean()
