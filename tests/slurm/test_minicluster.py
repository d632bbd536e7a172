"""scripts/minicluster: what it promises to the tests and to people who try things on it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nvml_library import build_nvml

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

SCRIPTS = Path(__file__).parents[2] / "scripts"
HOME = Path("/var/lib/slurm-guard-minicluster")
OWN = ("etc/slurm-guard", "run/slurm-guard", "var/lib/slurm-guard", "var/log/slurm-guard")
# What a real installation on this machine made is not ours to miss.
MOUNT_POINTS = [Path("/") / name for name in OWN if not any(Path("/").glob(f"{name}/*"))]


def run(*arguments: str, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run scripts/minicluster as root."""
    argv = [*wrapper, "/usr/bin/python3", str(SCRIPTS / "minicluster"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def name(slurm_here: None) -> Iterator[str]:
    """A cluster name of the test's own; whatever it leaves is taken down."""
    name = f"m{os.getpid()}"
    yield name
    run("down", "--name", name)
    for logs in HOME.glob(f"{name}.failed-*"):
        shutil.rmtree(logs)


def traces(name: str) -> list[str]:
    """What is left of a cluster: processes, mounts, cgroups, files."""
    found = [str(HOME / name)] if (HOME / name).exists() else []
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if f"/{name}/" in line]
    found += [str(point) for point in MOUNT_POINTS if point.exists() and not any(HOME.glob("*/cluster.json"))]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/*{name}-n*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        # A question that a killed `up` was asking ends by itself.
        if f"{HOME}/{name}/".encode() in text and not text.startswith(b"sinfo\0"):
            found.append(f"process {process.name}: {text[:80]!r}")
    return found


def test_up_is_quick_and_a_second_up_changes_nothing(name: str) -> None:
    """`up` gives idle nodes within seconds; again it says so and leaves the controller alone."""
    start = time.monotonic()
    assert run("up", "--name", name, "--nodes", "2").returncode == 0
    assert time.monotonic() - start < 15
    pid = (HOME / name / "slurmctld.pid").read_text()
    again = run("up", "--name", name, "--nodes", "2")
    assert (again.returncode, again.stderr) == (0, f"minicluster: {name} is already up\n")
    assert (HOME / name / "slurmctld.pid").read_text() == pid
    status = run("status", "--name", name).stdout.splitlines()
    assert [line.split() for line in status[1:3]] == [[f"{name}-n{i}", "idle", "2", "-"] for i in (1, 2)]


def test_env_can_be_evaluated(name: str) -> None:
    """`eval "$(minicluster env)"` is all that a shell needs."""
    run("up", "--name", name, "--nodes", "1", "--gpus", "0")
    script = f'eval "$(/usr/bin/python3 {SCRIPTS}/minicluster env --name {name})"; srun -D / hostname; '
    shell = subprocess.run(
        ["bash", "-c", script + "echo $SLURM_GUARD_RING_DIR"], capture_output=True, text=True, check=False
    )
    assert shell.stdout.splitlines() == [os.uname().nodename, f"{HOME}/{name}/node-local"]


def test_every_node_has_directories_and_gpus_of_its_own(name: str, tmp_path: Path) -> None:
    """What is put below node/NODE only that node has in /etc and so on; its GPUs are what its state says."""
    run("up", "--name", name, "--nodes", "2", "--nvml", str(build_nvml(tmp_path)))
    first, second = f"{name}-n1", f"{name}-n2"
    for own in OWN:
        (HOME / name / "node" / first / own / "mine").touch()
    (HOME / name / "nvml" / second / "state").write_text("count 7\n")
    look = "import pynvml as n, os; n.nvmlInit(); print(os.environ['SLURMD_NODENAME'], "
    look += f"n.nvmlDeviceGetCount(), *[own for own in {OWN} if os.path.exists(f'/{{own}}/mine')])"
    env = {**os.environ, "SLURM_CONF": f"{HOME}/{name}/slurm.conf", "LD_LIBRARY_PATH": ""}
    argv = ["srun", "-N2", "-D/", sys.executable, "-I", "-c", look]
    seen = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    mine = " ".join(OWN)
    assert sorted(seen) == [f"{first} 2 {mine}", f"{second} 7"]
    run("fail-node", "--name", name, first)
    run("restore-node", "--name", name, first)
    left = [(HOME / name / "node" / first / own / "mine").exists() for own in OWN]
    assert left == [True, False, True, True], "only /run is lost with the node"
    assert run("down", "--name", name).returncode == 0
    assert traces(name) == []


def test_down_leaves_nothing(name: str) -> None:
    """`down` ends daemons and whatever jobs left: deaf processes and orphans in sessions of their own too."""
    run("up", "--name", name, "--nodes", "2")
    deaf = "trap '' TERM HUP; setsid sleep 1000 & sleep 1000"
    env = {**os.environ, "SLURM_CONF": f"{HOME}/{name}/slurm.conf"}
    with subprocess.Popen(
        ["srun", "-N2", "-D/", "bash", "-c", deaf], env=env, stderr=subprocess.DEVNULL
    ) as srun:
        wait_for(lambda: sum("sleep" in trace for trace in traces(name)) >= 4)
        srun.kill()
    assert run("down", "--name", name).returncode == 0
    assert traces(name) == []
    assert run("down", "--name", name).returncode == 0


def wait_for(condition: object, timeout_s: float = 15) -> None:
    """Wait until the condition holds."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_down_after_an_up_that_was_killed(name: str) -> None:
    """An `up` killed half-way leaves daemons behind; `down` finds them."""
    argv = ["/usr/bin/python3", str(SCRIPTS / "minicluster"), "up", "--name", name]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as half:
        wait_for(lambda: any("slurmd" in trace for trace in traces(name)))
        half.kill()
    assert traces(name) != []
    assert run("down", "--name", name).returncode == 0
    assert traces(name) == []


def test_bad_configuration_leaves_nothing(name: str) -> None:
    """A slurm.conf that Slurm refuses: its own words, and nothing stays."""
    refused = run("up", "--name", name, "--conf", "NoSuchKey=1")
    assert refused.returncode == 1
    assert "NoSuchKey" in refused.stderr
    assert traces(name) == []


def test_without_namespaces_it_says_so_and_works(name: str) -> None:
    """--no-isolation: loud, and still a cluster whose nodes can be lost and whose end is complete."""
    up = run("up", "--name", name, "--nodes", "2", "--no-isolation")
    assert "WARNING: nodes share PIDs, /dev/shm, the node-local disk" in up.stderr
    env = {**os.environ, "SLURM_CONF": f"{HOME}/{name}/slurm.conf"}
    with subprocess.Popen(
        ["srun", "-N2", "-D/", "sleep", "1000"], env=env, stderr=subprocess.DEVNULL
    ) as srun:
        wait_for(lambda: sum("bin/sleep" in trace for trace in traces(name)) == 2)
        run("fail-node", "--name", name, f"{name}-n1")
        assert sum("bin/sleep" in trace for trace in traces(name)) == 1
        srun.kill()
    assert run("restore-node", "--name", name, f"{name}-n1").returncode == 0
    run("down", "--name", name)
    assert traces(name) == []


def test_settings_reach_slurm(name: str) -> None:
    """--conf replaces a line of slurm.conf, and --cred-expire its credential time."""
    run("up", "--name", name, "--nodes", "1", "--conf", "KillWait=7", "--cred-expire", "9")
    env = {**os.environ, "SLURM_CONF": f"{HOME}/{name}/slurm.conf"}
    config = subprocess.run(
        ["scontrol", "show", "config"], env=env, capture_output=True, text=True, check=True
    )
    words = config.stdout.split()
    assert words[words.index("KillWait") + 2] == "7"
    assert "cred_expire=9" in config.stdout


def test_two_clusters_side_by_side(cluster: RealCluster, name: str) -> None:
    """Each has its own controller, ports and node names, and the end of one is not the other's."""
    run("up", "--name", name, "--nodes", "2")
    env = {"SLURM_CONF": f"{HOME}/{name}/slurm.conf"}
    assert sorted(user_lines(cluster, "srun", "-N2", "printenv", "SLURMD_NODENAME", env=env)) == [
        f"{name}-n1",
        f"{name}-n2",
    ]
    job = cluster.sbatch("sleep 1000")
    cluster.wait_state(job, {"RUNNING"})
    run("down", "--name", name)
    assert cluster.state(job) == "RUNNING"


def user_lines(cluster: RealCluster, *argv: str, env: dict[str, str] | None = None) -> list[str]:
    """The output lines of a command of the plain user that succeeds."""
    done = cluster.run_as_user(list(argv), env=env)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).splitlines()


def test_nodes_are_isolated(cluster: RealCluster) -> None:
    """A node sees its own processes, /dev/shm and local disk only; /tmp is everybody's."""
    mine = "isolated-$SLURMD_NODENAME"
    look = f'touch /dev/shm/{mine} "$SLURM_GUARD_RING_DIR/{mine}"; sleep 1;'
    look += ' echo $(cd /dev/shm && ls -d isolated-*) $(cd "$SLURM_GUARD_RING_DIR" && ls -d isolated-*)'
    look += " $(pgrep -cx slurmd) $(test -O . && echo mine)"
    nodes = cluster.nodes
    try:
        lines = user_lines(cluster, "srun", f"-N{len(nodes)}", "bash", "-c", look)
    finally:
        tidy = 'rm /dev/shm/isolated-* "$SLURM_GUARD_RING_DIR"/isolated-*'
        user_lines(cluster, "srun", f"-N{len(nodes)}", "bash", "-c", tidy)
    assert sorted(lines) == [f"isolated-{node} isolated-{node} 1 mine" for node in nodes]
    assert list(Path(cluster.env["SLURM_GUARD_RING_DIR"]).iterdir()) == []


def test_gpus_are_given(cluster: RealCluster) -> None:
    """A job gets the GPUs that it asks for, and no others by the device cgroup."""
    job = cluster.sbatch("echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS", "--gpus-per-node=2")
    cluster.wait_state(job, {"COMPLETED"})
    assert cluster.output(job) == "0,1 0,1\n"
    assert user_lines(cluster, "srun", "bash", "-c", "echo none $CUDA_VISIBLE_DEVICES") == ["none"]
    refused = 'cat "$0" 2>&1 | grep -o "not permitted"'
    device = str(cluster.conf.parent / "dev/gpu1")
    if "cgroup" not in Path(cluster.conf).read_text():
        pytest.skip("this machine has no cgroups")
    assert user_lines(cluster, "srun", "--gpus-per-node=1", "bash", "-c", refused, device) == [
        "not permitted"
    ]


def test_a_job_is_held_to_its_memory(cluster: RealCluster) -> None:
    """ConstrainRAMSpace: a task that takes more than its job asked for is killed."""
    if "cgroup" not in Path(cluster.conf).read_text():
        pytest.skip("this machine has no cgroups")
    greedy = cluster.run_as_user(["srun", "--mem=50M", cluster.python, "-Ic", "bytearray(400 << 20)"])
    assert greedy.returncode != 0
    assert "oom" in greedy.stderr.lower()


def test_a_lost_node_takes_all_with_it_and_comes_back(cluster: RealCluster) -> None:
    """fail-node kills what runs there and nothing elsewhere; restore-node makes the node usable at once."""
    first, second = cluster.nodes[:2]
    beat = 'while :; do touch "$0/$SLURMD_NODENAME"; sleep 0.1; done'
    job = cluster.sbatch(
        f"srun --no-kill bash -c '{beat}' {cluster.workdir}", "-N2", "--no-kill", "--no-requeue"
    )
    wait_for(lambda: all((cluster.workdir / node).exists() for node in (first, second)))
    cluster.fail_node(second)
    lost_s = time.time()
    wait_for(lambda: (cluster.workdir / first).stat().st_mtime > lost_s + 0.5)
    assert (cluster.workdir / second).stat().st_mtime <= lost_s
    assert cluster.state(job) == "RUNNING"
    cluster.restore_node(second)
    assert cluster.node_states()[second] in ("idle", "mix")
    assert user_lines(cluster, "srun", "-w", second, "printenv", "SLURMD_NODENAME") == [second]


def test_a_drained_node_is_restored(cluster: RealCluster) -> None:
    """restore-node also clears what an administrator or a guard has set."""
    node = cluster.nodes[0]
    cluster.run_as_root(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"])
    cluster.restore_node(node)
    assert cluster.node_states()[node] == "idle"


def test_a_requeued_job_starts_again_within_seconds(cluster: RealCluster) -> None:
    """The short credential time: not two minutes after a requeue but six seconds."""
    job = cluster.sbatch("echo attempt $SLURM_RESTART_COUNT; sleep 1000", "--requeue", "--open-mode=append")
    wait_for(lambda: "attempt" in cluster.output(job))
    start = time.monotonic()
    user_lines(cluster, "scontrol", "requeue", job)
    wait_for(lambda: "attempt 1" in cluster.output(job), timeout_s=25)
    assert time.monotonic() - start < 20


def test_a_suspended_job_stops_and_goes_on(cluster: RealCluster) -> None:
    """`scontrol suspend` works, as an administrator would use it."""
    job = cluster.sbatch("sleep 1000")
    cluster.wait_state(job, {"RUNNING"})
    cluster.run_as_root(["scontrol", "suspend", job])
    cluster.wait_state(job, {"SUSPENDED"})
    cluster.run_as_root(["scontrol", "resume", job])
    cluster.wait_state(job, {"RUNNING"})


def test_a_paused_controller_answers_nobody(cluster: RealCluster) -> None:
    """While the block runs squeue waits, afterwards it answers."""
    with cluster.pause_controller(), pytest.raises(subprocess.TimeoutExpired):
        cluster.run_as_user(["squeue"], timeout_s=1)
    assert cluster.run_as_user(["squeue"]).returncode == 0


def test_not_root(cluster: RealCluster) -> None:
    """A plain user gets one line that says what to do, and exit code 2."""
    # A copy, since the clone may lie where that user can't read.
    for part in ("minicluster", "minicluster_parts"):
        source = SCRIPTS / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, cluster.workdir / part)
    done = cluster.run_as_user(["/usr/bin/python3", "minicluster", "up"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "minicluster: slurmd needs root: run it as root (sudo scripts/minicluster …)\n"


def test_without_slurm(slurm_here: None) -> None:
    """Slurm missing: one line with the apt-get command, and exit code 2."""
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /usr/sbin && exec "$@"', "hide")
    done = run("up", wrapper=hide)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "slurmctld" in done.stderr
    assert "apt-get install -y slurm-wlm" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("up", "--name", "Bad Name"), "a name is"),
        (("up", "--cred-expire", "2"), "at least 5"),
        (("up", "--conf", "nonsense"), "Key=Value"),
        (("status", "--name", "nobody"), "not up"),
        (("fail-node", "--name", "nobody", "n1"), "not up"),
    ],
)
def test_bad_arguments_are_named(slurm_here: None, arguments: tuple[str, ...], word: str) -> None:
    """What can't be done is said, before anything is started."""
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert word in done.stderr


def test_an_unknown_node_is_named(cluster: RealCluster) -> None:
    """fail-node of a node that isn't there changes nothing and lists those that are."""
    done = run("fail-node", "--name", cluster.name, "n99")
    assert done.returncode == 1
    assert cluster.nodes[0] in done.stderr


def test_jobs_run_as_a_user_who_can_read_the_environment(cluster: RealCluster) -> None:
    """The installed package, not root's clone, is what a job imports."""
    where = "import os, slurm_guard; print(os.getuid(), os.access(slurm_guard.__file__, os.R_OK))"
    uid = pwd.getpwnam(cluster.user).pw_uid
    assert user_lines(cluster, "srun", cluster.python, "-Ic", where) == [f"{uid} True"]
