"""The jobs' spools: bounded, each its user's own, and emptied by root without a step off its path."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_guard.hooks import spool
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.spool import prepare_spool, remove_spool

NOBODY = 65534
JOB = HookJob("12", NOBODY, NOBODY, "nobody", "n1")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and gives directories away: only root can")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A node without a spool so far; a user may walk to it."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o755)
    place = Place(tmp_path)
    yield place
    if os.path.ismount(place.jobs):
        subprocess.run(["umount", "--lazy", place.jobs], check=True)


def as_user(code: str, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Python code as the job's user."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, argv)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )


def test_spool_is_a_small_tmpfs_of_its_own(place: Place) -> None:
    """Bounded in space and in files, and nothing in it is a program, a device or another user's right."""
    prepare_spool(place, JOB, 1)
    seen = os.statvfs(place.jobs)
    assert (seen.f_frsize * seen.f_blocks, seen.f_files) == (1 << 20, 128)
    assert (
        seen.f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC) == os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
    )
    assert stat.S_IMODE(place.jobs.stat().st_mode) == 0o755


def test_job_owns_its_directory_and_no_other(place: Place) -> None:
    """Its user writes there; beside it, and into another job's, he cannot."""
    prepare_spool(place, JOB, 1)
    prepare_spool(place, JOB._replace(job_id="13", user_id=0), 1)
    found = place.spool("12").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o700)
    write = "import sys; open(sys.argv[1], 'w').write('x')"
    assert as_user(write, place.spool("12") / "claim").returncode == 0
    for other in (place.jobs / "claim", place.spool("13") / "claim"):
        assert "PermissionError" in as_user(write, other).stderr


def test_spools_share_one_tmpfs(place: Place) -> None:
    """A second mount would hide the claims of the first job."""
    prepare_spool(place, JOB, 1)
    (place.spool("12") / "claim").write_text("kept")
    prepare_spool(place, JOB._replace(job_id="13"), 1)
    assert (place.spool("12") / "claim").read_text() == "kept"
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    assert len([line for line in mounts if f" {place.jobs} " in line]) == 1


def test_two_first_prologs_at_once_make_one_tmpfs(place: Place) -> None:
    """Many jobs of an array may start in the same moment."""
    code = (
        "import sys; from pathlib import Path; from slurm_guard.hooks.context import HookJob\n"
        "from slurm_guard.hooks.place import Place; from slurm_guard.hooks.spool import prepare_spool\n"
        "prepare_spool(Place(Path(sys.argv[1])), HookJob(sys.argv[2], 0, 0, '', 'n1'), 1)"
    )
    argv = [sys.executable, "-I", "-c", code, str(place.root)]
    started = [subprocess.Popen([*argv, str(number)]) for number in range(20, 28)]
    assert [process.wait(60) for process in started] == [0] * 8
    assert sorted(path.name for path in place.jobs.iterdir()) == [str(number) for number in range(20, 28)]


def test_requeued_job_finds_an_empty_spool(place: Place) -> None:
    """What its earlier run left is of that run."""
    prepare_spool(place, JOB, 1)
    (place.spool("12") / "claim").write_text("old")
    prepare_spool(place, JOB, 1)
    assert list(place.spool("12").iterdir()) == []
    assert [path.name for path in place.jobs.iterdir()] == ["12"]


def test_spool_goes_with_all_that_is_in_it(place: Place, tmp_path: Path) -> None:
    """A deep tree, links to outside, pipes, sockets and files without rights: nothing outside is touched."""
    prepare_spool(place, JOB, 1)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    (outside / "kept").write_text("kept")
    code = (
        "import os, socket, sys; top = sys.argv[1]; os.chdir(top)\n"
        "os.symlink(sys.argv[2], 'link'); os.symlink(sys.argv[2] + '/kept', 'file'); os.mkfifo('pipe')\n"
        "socket.socket(socket.AF_UNIX).bind('socket'); os.mkdir('shut')\n"
        "open('shut/x', 'w'); os.chmod('shut', 0)\n"
        "for _ in range(100): os.mkdir('d'); os.chdir('d')"
    )
    assert as_user(code, place.spool("12"), outside).stderr == ""
    remove_spool(place, "12")
    assert list(place.jobs.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"


def test_spool_that_is_a_link_is_not_followed(place: Place, tmp_path: Path) -> None:
    """Only root could have laid it, but root's next step is not where it leads."""
    prepare_spool(place, JOB, 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    remove_spool(place, "12")
    place.spool("12").symlink_to(outside)
    prepare_spool(place, JOB, 1)
    assert not place.spool("12").is_symlink()
    assert (outside.stat().st_uid, (outside / "kept").read_text()) == (0, "kept")


def test_spool_that_was_never_made_is_gone_already(place: Place) -> None:
    """An epilog may come twice, or to a node whose prolog was off."""
    remove_spool(place, "12")
    prepare_spool(place, JOB, 1)
    remove_spool(place, "13")
    assert place.spool("12").is_dir()


def test_user_who_still_fills_his_spool_holds_nobody_up(place: Place) -> None:
    """He keeps the directory open and writes on: its name is free all the same, and the work ends."""
    prepare_spool(place, JOB, 1)
    code = (
        "import itertools, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); print(flush=True)\n"
        "for n in itertools.count():\n"
        "    try: os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))\n"
        "    except OSError: pass"
    )
    argv = [sys.executable, "-I", "-c", code, str(place.spool("12"))]
    with subprocess.Popen(argv, user=NOBODY, group=NOBODY, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout
            writer.stdout.readline()
            prepare_spool(place, JOB, 1)
            assert list(place.spool("12").iterdir()) == []
        finally:
            writer.kill()


def test_user_who_still_fills_a_directory_in_his_spool_holds_nobody_up(place: Place) -> None:
    """From the first step into it on nobody but root makes anything there, however fast he is."""
    prepare_spool(place, JOB, 4)
    code = (
        "import os, sys; os.chdir(sys.argv[1]); os.mkdir('a'); os.chdir('a')\n"
        "for _ in range(2): os.fork()\n"
        "for n in range(1_000_000):\n"
        "    try: os.mkdir(f'{os.getpid()}-{n}')\n"
        "    except PermissionError: break\n"
        "    except OSError: pass\n"
        "    if n == 20: os.write(1, b'x')\n"
        "else: os.write(1, b'never refused')"
    )
    argv = [sys.executable, "-I", "-c", code, str(place.spool("12"))]
    with subprocess.Popen(argv, user=NOBODY, group=NOBODY, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert len(writer.stdout.read(4)) == 4
        remove_spool(place, "12")
        assert list(place.jobs.iterdir()) == []
        # All four were refused: none found its directory gone before.
        assert writer.stdout.read() == b""
        assert writer.wait(30) == 0


def test_spool_that_takes_too_long_goes_the_next_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is under no job's name, and root's."""
    prepare_spool(place, JOB, 1)
    (place.spool("12") / "claim").touch()
    monkeypatch.setattr(spool, "_MOST_S", -1.0)
    remove_spool(place, "12")
    (left,) = place.jobs.iterdir()
    assert (left.name.startswith(".gone-12-"), left.stat().st_uid) == (True, 0)
    monkeypatch.undo()
    remove_spool(place, "12")
    assert list(place.jobs.iterdir()) == []


def test_full_spool_is_an_error(place: Place) -> None:
    """The prolog says so and lets the job start."""
    prepare_spool(place, JOB, 1)
    with contextlib.suppress(OSError):
        for number in range(200):
            (place.jobs / f"x{number}").mkdir()
    with pytest.raises(OSError, match="No space left"):
        prepare_spool(place, JOB._replace(job_id="13"), 1)


def test_what_could_not_be_removed_goes_the_next_time(place: Place) -> None:
    """Or users who keep their spools busy would fill the room of all."""
    prepare_spool(place, JOB, 1)
    (place.jobs / ".gone-11-0a0b0c0d" / "left").mkdir(parents=True)
    remove_spool(place, "12")
    assert list(place.jobs.iterdir()) == []


def test_spool_that_cannot_be_written_is_an_error(place: Place) -> None:
    """A file system turned read-only."""
    prepare_spool(place, JOB, 1)
    subprocess.run(["mount", "-o", "remount,ro", place.jobs], check=True)
    with pytest.raises(OSError, match="Read-only"):
        prepare_spool(place, JOB._replace(job_id="13"), 1)


def test_without_a_tmpfs_there_is_no_spool(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may fill the node's own /run."""

    def refuse(path: Path, size_mib: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(spool, "_mount_tmpfs", refuse)
    with pytest.raises(PermissionError):
        prepare_spool(place, JOB, 1)
    assert list(place.jobs.iterdir()) == []
