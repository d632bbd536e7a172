"""The hooks as `site install` leaves them, on a real Slurm: what they do, and that no broken one hurts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm.hooked import (
    HOOKS,
    LONGER,
    configure,
    hooked_cluster,
    install_hooks,
    install_on,
    read_drained,
    read_log,
    root_of,
    run_on,
    set_gpus,
    uninstall_hooks,
)

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

PACKAGE = Path(__file__).parents[2]
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
QUICK = "[prolog]\nprobe_s = 0.5\nsnapshot_s = 0\n[epilog]\nepilog_s = 5\n"
"""So that hooks which hang are given up soon. Half a second may be too short for a judgement."""
PATIENT = "[prolog]\nsnapshot_s = 0\n"


class Copy:
    """A copy of the package with an interpreter of its own, to break."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "code/slurm_guard"
        self.python = folder / "bin/python"
        self.paths = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/a.pth"
        self.program = folder / "bin/slurm-guard"
        for name in ("slurm_guard", "templates", "site-config"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PACKAGE / name, folder / "code" / name, ignore=ignore)
        self.paths.parent.mkdir(parents=True)
        self.paths.write_text(f"{folder}/code\n{sysconfig.get_paths()['purelib']}\n")
        self.python.parent.mkdir()
        self.python.symlink_to(Path(sys.executable).resolve())
        (folder / "pyvenv.cfg").write_text(f"home = {self.python.resolve().parent}\n")
        start = "import sys; from slurm_guard.cli.app import main; sys.exit(main())"
        self.program.write_text(f"#!{self.python}\n{start}\n")
        self.program.chmod(0o755)


@pytest.fixture(scope="module")
def real(slurm_here: None) -> Iterator[RealCluster]:
    """Two nodes without hooks."""
    with hooked_cluster(f"k{os.getpid()}", "--nodes", "2") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def copied(real: RealCluster) -> Iterator[Copy]:
    """Hooks on all nodes that run a copy of the package."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-guard-copy-"))
    copy = Copy(folder)
    install_hooks(real, QUICK, program=str(copy.program))
    yield copy
    uninstall_hooks(real)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _clean(real: RealCluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """A directory for the test; healthy GPUs, no jobs and idle nodes after it."""
    real.new_workdir(request.node.name)
    yield
    for node in real.nodes:
        set_gpus(real, node)
    real.clean()


def run_job(cluster: RealCluster, *options: str) -> str:
    """Run a job on both nodes to its end and wait for its epilogs; its state."""
    job_id = cluster.sbatch("srun true", "-N2", *options)
    state = cluster.wait_state(job_id, ENDED, 40)["JobState"]
    cluster.clean()
    return state


def test_a_job_through_the_installed_hooks_and_nothing_left(real: RealCluster) -> None:
    """A healthy node admits, a sick one is drained for its own reason and the job runs on the other.

    `uninstall --purge` takes away everything that was not there before.
    """
    before = [list_files(root_of(real, node)) for node in real.nodes]
    install_hooks(real)
    try:
        assert run_job(real) == "COMPLETED"
        for node in real.nodes:
            assert [line for line in read_log(real, node) if "admitted: healthy" in line], read_log(
                real, node
            )
        sick, well = real.nodes
        set_gpus(real, sick, "1.ret 15")
        job_id = real.sbatch(LONGER, "-N1")
        wait_until(lambda: "held" in real.job(job_id)["Reason"] or real.state(job_id) == "COMPLETED")
        assert read_drained(real).keys() == {sick}
        assert read_drained(real)[sick].startswith("slurm-guard: gpu_lost gpu=1 ")
        real.run_as_root(["scontrol", "release", job_id])
        real.wait_state(job_id, {"COMPLETED"}, 40)
        assert real.output(job_id).endswith(f"on {well}\n")
    finally:
        set_gpus(real, real.nodes[0])
        real.clean()
        uninstall_hooks(real)
    assert [list_files(root_of(real, node)) for node in real.nodes] == before


def list_files(root: Path) -> list[Path]:
    """All that is there but directories of the system, which stay where install had to make them."""
    system = {root / "etc/tmpfiles.d", root / "etc/logrotate.d"}
    return sorted(set(root.rglob("*")) - system)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that Slurm does in its own time."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def rename_interpreter(copy: Copy) -> None:
    """As after an upgrade of Python."""
    copy.python.rename(copy.python.with_name("gone"))


def remove_module(copy: Copy) -> None:
    """As of a package that was copied half."""
    (copy.package / "hooks/prolog.py").unlink()


def remove_package(copy: Copy) -> None:
    """As after pip uninstall."""
    copy.package.rename(copy.package.with_name("gone"))


def break_syntax(copy: Copy) -> None:
    """In a module that every hook loads."""
    append(copy.package / "hooks/place.py", "def (\n")


def break_main(copy: Copy) -> None:
    """In the program itself."""
    append(copy.package / "hooks/__main__.py", "def (\n")


def hang(copy: Copy) -> None:
    """Deaf to SIGTERM."""
    words = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    append(copy.package / "hooks/spool.py", words)


def crash(copy: Copy) -> None:
    """As of a library that is not this Python's."""
    append(copy.package / "hooks/spool.py", "import os\nos.kill(os.getpid(), 11)\n")


def exhaust(copy: Copy) -> None:
    """More memory than there is."""
    limit = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nbytearray(1 << 30)\n"
    )
    append(copy.package / "hooks/spool.py", limit)


def remove_libraries(copy: Copy) -> None:
    """All that is not the package itself: the GPUs cannot be asked."""
    copy.paths.write_text(f"{copy.folder}/code\n")


def append(path: Path, text: str) -> None:
    """Change a module, and leave no byte code that could stand in for it."""
    with path.open("a") as file:
        file.write(text)


DAMAGES = (
    rename_interpreter,
    remove_module,
    break_syntax,
    hang,
    exhaust,
    remove_libraries,
)


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGES,
        *(pytest.param(damage, marks=pytest.mark.long) for damage in (remove_package, break_main, crash)),
    ],
    ids=lambda damage: damage.__name__,
)
def test_broken_code_lets_every_job_in(
    real: RealCluster, copied: Copy, damage: Callable[[Copy], None]
) -> None:
    """The job starts and ends well, no node is drained, and one line of the log says what is wrong."""
    code, paths = copied.folder / "code", copied.paths.read_text()
    kept = copied.folder / "kept"
    shutil.copytree(code, kept)
    before = {node: len(read_log(real, node)) for node in real.nodes}
    damage(copied)
    try:
        assert run_job(real) == "COMPLETED"
        assert read_drained(real) == {}
        for node in real.nodes:
            lines = read_log(real, node)[before[node] :]
            told = [line for line in lines if line[:2] == "20" and "epilog" not in line]
            assert len(told) == 1, lines
    finally:
        shutil.rmtree(code)
        kept.rename(code)
        copied.paths.write_text(paths)
        if not copied.python.exists():
            copied.python.with_name("gone").rename(copied.python)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"schema": 99}',
        None,
        *(pytest.param(t, marks=pytest.mark.long) for t in ("", "[]", "\0" * 4096)),
    ],
)
def test_broken_settings_let_every_job_in(real: RealCluster, copied: Copy, text: str | None) -> None:
    """A site.json that is cut off, empty, of another release or gone: one line with the way to mend it."""
    files = [root_of(real, node) / "etc/slurm-guard/site.json" for node in real.nodes]
    good = files[0].read_bytes()
    before = {node: len(read_log(real, node)) for node in real.nodes}
    for file in files:
        file.unlink() if text is None else file.write_text(text)
    try:
        assert run_job(real) == "COMPLETED"
        assert read_drained(real) == {}
        for node in real.nodes:
            lines = [line for line in read_log(real, node)[before[node] :] if "epilog" not in line]
            assert len(lines) == 1, lines
            assert "run slurm-guard site install" in lines[0]
    finally:
        for file in files:
            file.write_bytes(good)


def test_a_wrong_site_file_changes_nothing(real: RealCluster, copied: Copy) -> None:
    """`site install` refuses it in one line, and the hooks go on with what was compiled before."""
    node = real.nodes[0]
    site = root_of(real, node) / "etc/slurm-guard/site.toml"
    site.write_text("[prolog]\nprobe_s = 'soon'\n")
    try:
        argv = [str(copied.program), "site", "install", "--root", str(root_of(real, node))]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "prolog.probe_s = 'soon'" in done.stderr
        assert run_job(real) == "COMPLETED"
        assert read_drained(real) == {}
    finally:
        site.write_text(QUICK)


def test_off_turns_everything_off(real: RealCluster, copied: Copy) -> None:
    """With a lost GPU and /etc/slurm-guard/off: the job runs, nothing is drained, nothing is written."""
    switches = [root_of(real, node) / "etc/slurm-guard/off" for node in real.nodes]
    logs = {node: read_log(real, node) for node in real.nodes}
    for node, switch in zip(real.nodes, switches, strict=True):
        switch.touch()
        set_gpus(real, node, "0.ret 15")
    try:
        assert run_job(real) == "COMPLETED"
        for node in real.nodes:
            assert run_on(real, node, "/etc/slurm-guard/health-check").returncode == 0
        assert read_drained(real) == {}
        assert {node: read_log(real, node) for node in real.nodes} == logs
    finally:
        for switch in switches:
            switch.unlink()


def test_the_doctor_tries_the_prolog_and_touches_nothing(real: RealCluster, copied: Copy) -> None:
    """Healthy, sick, broken: its word and exit code; no log line, no drain, no file."""
    node = real.nodes[0]
    install_on(real, node, PATIENT, program=str(copied.program))
    before = (read_log(real, node), run_on(real, node, "find", "/run/slurm-guard").stdout)

    def rehearse() -> tuple[int, str]:
        done = run_on(real, node, str(copied.program), "doctor", "--as-prolog")
        return done.returncode, done.stdout

    code, said = rehearse()
    assert (code, said.startswith("A job would be admitted after "), "; 2 GPUs seen" in said) == (
        0,
        True,
        True,
    )
    set_gpus(real, node, "1.ret 15")
    code, said = rehearse()
    assert (code, "A job would be refused after " in said, "GPU 1: gpu_lost" in said) == (1, True, True), said
    settings = root_of(real, node) / "etc/slurm-guard/site.json"
    good = settings.read_bytes()
    settings.write_text("{")
    code, said = rehearse()
    settings.write_bytes(good)
    assert (code, "run slurm-guard site install" in said) == (2, True), said
    assert (read_log(real, node), run_on(real, node, "find", "/run/slurm-guard").stdout) == before
    assert read_drained(real) == {}
    install_on(real, node, QUICK, program=str(copied.program))


def test_uninstall_is_refused_while_slurm_calls_the_hooks(real: RealCluster, copied: Copy) -> None:
    """Without them every node would be drained by its next job."""
    done = run_on(real, real.nodes[0], str(copied.program), "site", "uninstall")
    assert done.returncode == 1
    assert "slurm.conf still names the hooks in Prolog, Epilog, HealthCheckProgram" in done.stderr
    assert run_job(real) == "COMPLETED"
    assert read_drained(real) == {}


def test_an_upgrade_is_installed_under_running_jobs(real: RealCluster, copied: Copy) -> None:
    """Scripts and settings are replaced whole while jobs come and go."""
    array = real.sbatch("srun true", "--array=0-15%4", "-N1", "-c1")
    for _ in range(5):
        for node in real.nodes:
            install_on(real, node, QUICK, program=str(copied.program))
    real.wait_state(array, ENDED, 60)
    real.clean(90)
    assert read_drained(real) == {}
    configure(real, **HOOKS)
