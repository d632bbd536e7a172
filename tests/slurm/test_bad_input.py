"""Wrong calls inside and outside a real job: one line that helps, exit code 2, nothing started."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm.conftest import RealCluster


@dataclass(frozen=True)
class Case:
    """A command line of guarded-srun, what goes before it, and all that its only line must hold."""

    words: str
    wants: tuple[str, ...]
    before: str = ""


CALLS = [
    Case("--stal-s 5 hostname", ("--stal-s", "did you mean --stall-s?")),
    Case("--gracee-s=5 hostname", ("--gracee-s", "did you mean --grace-s?")),
    Case("--stall-s soon hostname", ("command line: --stall-s", "'soon'")),
    Case("--stall-s 1 hostname", ("command line: --stall-s", "2")),
    Case("--stall-s", ("--stall-s", "requires an argument")),
    Case("--observe=maybe hostname", ("--observe",)),
    Case("--recovery again hostname", ("--recovery", "auto", "restart", "requeue", "stop")),
    Case("--max-restarts -1 hostname", ("--max-restarts", "-1")),
    Case("--nonfinite-limit 2.5 hostname", ("--nonfinite-limit", "2.5")),
    Case("--grace-s nan hostname", ("--grace-s", "nan")),
    Case("--dump-s 30 --grace-s 30 hostname", ("dump", "grace", "60")),
    Case("--stall-s 100 --stall-hard-s 50 hostname", ("stall_hard_s", "stall_s")),
    Case("hostname", ("environment: SLURM_GUARD_STALL_S", "'soon'"), "SLURM_GUARD_STALL_S=soon"),
    Case("--config nowhere.toml hostname", ("nowhere.toml: cannot be read",)),
    Case("--config hidden.toml hostname", ("hidden.toml: cannot be read", "rights")),
    Case("--config . hostname", (".: cannot be read",)),
    Case("--config binary.toml hostname", ("binary.toml: byte 0 is not UTF-8",)),
    Case("--config broken.toml hostname", ("broken.toml: line 2", "no TOML")),
    Case("--config section.toml hostname", ("section.toml: [heartbeats] is no section", "heartbeat")),
    Case("--config key.toml hostname", ("key.toml: heartbeat.stal_s = 5", "heartbeat.stall_s")),
    Case("--config type.toml hostname", ("type.toml: heartbeat.stall_s", "'5'")),
    Case("--config bounds.toml hostname", ("bounds.toml: kill.grace_s", "1000")),
    Case("--config outside.toml hostname", ("outside.toml: stall_s = 5", "[heartbeat]")),
    Case("--config locks.toml hostname", ("locks.toml: locked", "site")),
    Case("", ("no command to run",)),
    Case("-N1 -n1", ("no command to run",)),
    Case("--observe --", ("no command to run",)),
]

FILES = {
    "binary.toml": b"\xff\xfe\x00",
    "broken.toml": b"[heartbeat]\nstall_s = = 5\n",
    "section.toml": b"[heartbeats]\nstall_s = 5\n",
    "key.toml": b"[heartbeat]\nstal_s = 5\n",
    "type.toml": b"[heartbeat]\nstall_s = '5'\n",
    "bounds.toml": b"[kill]\ngrace_s = 1000\n",
    "outside.toml": b"stall_s = 5\n",
    "locks.toml": b"locked = ['kill.grace_s']\n",
}


def test_a_wrong_call_costs_one_line(cluster: RealCluster) -> None:
    """Option, value, file, key and remedy are named; exit code 2; no traceback, no srun, no state."""
    for name, body in FILES.items():
        (cluster.workdir / name).write_bytes(body)
    (cluster.workdir / "hidden.toml").touch(mode=0o000)
    script = "".join(
        f"{case.before} {cluster.guarded_srun} {case.words} > out-{n} 2> err-{n}; echo $? > code-{n}\n"
        for n, case in enumerate(CALLS)
    )
    job_id = cluster.sbatch(script, "-N1")
    cluster.wait_state(job_id, {"COMPLETED", "FAILED"})
    for n, case in enumerate(CALLS):
        said = (cluster.workdir / f"err-{n}").read_text()
        assert said.startswith("guarded-srun: "), (case, said)
        assert said.count("\n") == 1, (case, said)
        assert (cluster.workdir / f"code-{n}").read_text() == "2\n", (case, said)
        assert (cluster.workdir / f"out-{n}").read_text() == "", case
        missing = [part for part in case.wants if part not in said]
        assert not missing, (missing, said)
    assert not (cluster.workdir / "slurm-guard").exists()


def test_outside_an_allocation_the_way_in_is_shown(cluster: RealCluster) -> None:
    """On a login node: one line with sbatch and salloc."""
    done = cluster.run_as_user([cluster.guarded_srun, "-N1", "hostname"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "sbatch" in done.stderr
    assert "salloc" in done.stderr


def test_a_job_file_in_the_work_directory_counts_without_being_named(cluster: RealCluster) -> None:
    """slurm-guard.toml there is read, so that its mistakes are told; --config takes its place."""
    (cluster.workdir / "slurm-guard.toml").write_bytes(FILES["key.toml"])
    (cluster.workdir / "good.toml").write_text("[guard]\nobserve = true\n")
    script = (
        f"{cluster.guarded_srun} -n1 echo first; echo code=$?\n"
        f"{cluster.guarded_srun} --config good.toml -n1 echo second; echo code=$?\n"
    )
    job_id = cluster.sbatch(script, "-N1")
    cluster.wait_state(job_id, {"COMPLETED", "FAILED"})
    lines = cluster.output(job_id).splitlines()
    assert lines[0].startswith("guarded-srun: slurm-guard.toml: heartbeat.stal_s = 5")
    assert lines[1:] == ["code=2", "second", "code=0"]


def test_no_slurm_in_the_path_is_told(cluster: RealCluster) -> None:
    """srun missing: one line, exit code 127."""
    words = [cluster.guarded_srun, "-n1", "hostname"]
    script = f"PATH=/nowhere {shlex.join(words)}; echo code=$?\n"
    job_id = cluster.sbatch(script, "-N1")
    cluster.wait_state(job_id, {"COMPLETED", "FAILED"})
    lines = cluster.output(job_id).splitlines()
    assert len(lines) == 2, lines
    assert lines[0].startswith("guarded-srun: srun is not in PATH")
    assert lines[1] == "code=127"
