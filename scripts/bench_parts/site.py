"""Where the figures are taken: a minicluster of the bench's own, and an allocation on it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

SCRIPTS = Path(__file__).resolve().parents[1]
CLUSTER = "bench"
USER = "slurmguard"
_START_S = 60.0


class BenchError(Exception):
    """The measurement could not be made; the text says why."""


def say(text: str) -> None:
    """Progress, beside the figures."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def run(argv: Sequence[str], **options: Any) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode:
        raise BenchError(f"{' '.join(argv)} ended with code {done.returncode}")
    return str(done.stdout)


class Site:
    """The tools of one run of the bench. `work` is a directory that the plain user may write."""

    def __init__(self, work: Path, venv: Path) -> None:
        self.work = work
        self.python = str(venv / "bin" / "python")
        self.guarded_srun = str(venv / "bin" / "guarded-srun")
        self._account: pwd.struct_passwd | None = None

    def program(self, name: str) -> str:
        """The path of a program that ranks run."""
        return str(self.work / "program" / name)

    @contextmanager
    def allocation(self, *options: str) -> Iterator[Allocation]:
        """An allocation of the plain user, as salloc gives one."""
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "SLURM_CONF": self._conf()}
        told = self.work / "allocation"
        script = f"env -0 >{told}.new; mv {told}.new {told}; cat"
        argv = ["salloc", "-Q", *options, "sh", "-c", script]
        with self.popen(argv, base, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as salloc:
            try:
                wait_for(told.exists, f"an allocation ({' '.join(options)})")
                pairs = (word.partition("=") for word in told.read_text().split("\0") if word)
                yield Allocation(self, {name: value for name, _, value in pairs})
            finally:
                told.unlink(missing_ok=True)
                if salloc.stdin is not None:
                    salloc.stdin.close()

    def popen(self, argv: Sequence[str], env: dict[str, str], **options: Any) -> subprocess.Popen[Any]:
        """Start something as the plain user."""
        account = self._account or pwd.getpwnam(USER)
        self._account = account
        options = {"stdin": subprocess.DEVNULL, "cwd": self.work, **options}
        return subprocess.Popen(
            argv, env=env, user=account.pw_uid, group=account.pw_gid, extra_groups=[], **options
        )

    def _conf(self) -> str:
        lines = minicluster("env").splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith("export SLURM_CONF="))


class Allocation:
    """A job to start steps in; `env` is what its shell would have."""

    def __init__(self, site: Site, env: dict[str, str]) -> None:
        self._site = site
        self.env = env

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command in the job."""
        return self._site.popen(argv, self.env, **options)

    def run(self, argv: Sequence[str], limit_s: float, **options: Any) -> str:
        """The standard output of a command that must succeed; its errors are shown when it does not."""
        log: IO[bytes]
        with tempfile.TemporaryFile() as log:
            process = self.start(argv, **{"stdout": subprocess.PIPE, "stderr": log, "text": True, **options})
            try:
                out, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.communicate()
                raise BenchError(f"{' '.join(argv)} took longer than {limit_s:g} s") from None
            log.seek(0)
            if process.returncode:
                raise BenchError(f"{' '.join(argv)}: {log.read().decode(errors='replace')[-2000:]}")
        return str(out or "")

    def find(self, word: str) -> list[int]:
        """The pids of this job's Python tasks on all nodes with the word in their command line."""
        job = f"SLURM_JOB_ID={self.env['SLURM_JOB_ID']}".encode()
        conf = f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
        found = []
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                    python = os.path.basename(os.readlink(f"/proc/{name}/exe")).startswith("python")
                    task = any(variable.startswith(b"SLURM_PROCID=") for variable in environ)
                    if python and task and job in environ and conf in environ:
                        found.append(int(name))
        return found

    def wait_for(self, word: str, count: int) -> list[int]:
        """The same, once there are as many."""
        found: list[int] = []

        def there() -> bool:
            found[:] = self.find(word)
            return len(found) >= count

        wait_for(there, f"{count} processes of {word}")
        return found


def wait_for(condition: Any, what: str, limit_s: float = _START_S) -> None:
    """Wait until it is so."""
    until_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until_s:
            raise BenchError(f"no {what} in {limit_s:g} s")
        time.sleep(0.05)


def minicluster(command: str, *options: str) -> str:
    """Run scripts/minicluster for the bench's cluster."""
    return run([str(SCRIPTS / "minicluster"), command, "--name", CLUSTER, *options])


@contextmanager
def open_site(venv: str, *, cluster: bool) -> Iterator[Site]:
    """The tools, and a cluster where one is needed; both are gone afterwards."""
    work = Path(tempfile.mkdtemp(prefix="slurm-guard-bench-"))
    try:
        shutil.copytree(Path(__file__).parent / "program", work / "program")
        work.chmod(0o755)
        if cluster:
            say("bringing a cluster of 4 nodes up")
            minicluster("up")
            account = pwd.getpwnam(USER)
            os.chown(work, account.pw_uid, account.pw_gid)
        yield Site(work, Path(venv))
    finally:
        if cluster:
            minicluster("down")
        shutil.rmtree(work, ignore_errors=True)


def describe_machine(python: str) -> str:
    """One line: what the figures were taken on."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in cpus if line.startswith("model name")), "CPU")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    slurm = run(["slurmctld", "-V"]).strip() if shutil.which("slurmctld") else "no Slurm"
    version = run([python, "-c", "import platform; print(platform.python_version())"]).strip()
    kernel = os.uname().release.split("-")[0]
    return f"{os.cpu_count()} cores {cpu}, {memory_gib:.0f} GiB, Linux {kernel}, {slurm}, Python {version}"
