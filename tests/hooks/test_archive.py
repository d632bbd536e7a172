"""Undelivered scenes are brought into safety: by descriptor, with bounds, and only what is the user's own."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_guard.hooks import archive
from slurm_guard.hooks.archive import SceneCopy, collect_scenes, prune_archive
from slurm_guard.hooks.context import HookJob
from slurm_guard.hooks.place import Place
from slurm_guard.model.claim import ScenePointer
from slurm_guard.model.site import SiteSettings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the epilog has it")

USER = 12345
JOB = HookJob("7", USER, USER, "ann", "n2")
SITE = SiteSettings()


class Node:
    """A scene of job 7 in its TMPDIR, and the archive."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root / "root")
        self.tmp = root / "tmp"
        self.scene = self.tmp / "slurm-guard-7-i-abc"
        (self.scene / "stacks").mkdir(parents=True)
        self.put("processes-n2.json", b"[]")
        self.put("stacks/n2.txt", b"rank 3 in backward")
        self.own(self.tmp, self.scene, self.scene / "stacks")
        self.lines: list[str] = []

    def put(self, name: str, data: bytes) -> Path:
        """A file of the user's."""
        path = self.scene / name
        path.write_bytes(data)
        self.own(path)
        return path

    def own(self, *paths: Path) -> None:
        """They are the user's."""
        for path in paths:
            os.chown(path, USER, USER, follow_symlinks=False)

    def collect(self, directory: Path | None = None, site: SiteSettings = SITE) -> list[str]:
        """What the epilog does; the files that the archive has afterwards."""
        pointer = ScenePointer("7", "n2", "i", 1.0, str(directory or self.scene))
        collect_scenes(
            self.place, JOB, (pointer,), attempt="ab12", settings=site, timeout_s=10.0, say=self.lines.append
        )
        return self.archived()

    def archived(self) -> list[str]:
        """The files in the archive."""
        base = self.place.archive
        return sorted(str(path.relative_to(base)) for path in base.rglob("*") if not path.is_dir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One."""
    return Node(tmp_path)


def test_scene_is_copied_for_root_alone(node: Node) -> None:
    """With its folders; the user keeps his own."""
    assert node.collect() == ["7-ab12/i/processes-n2.json", "7-ab12/i/stacks/n2.txt"]
    for path in (node.place.archive, *node.place.archive.rglob("*")):
        found = path.lstat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o700 if path.is_dir() else 0o600)
    assert (node.scene / "stacks/n2.txt").read_bytes() == b"rank 3 in backward"
    assert node.lines == [f"the scene i of job 7 is archived in {node.place.archive}/7-ab12/i"]


def test_scene_is_copied_once(node: Node) -> None:
    """The epilog may run twice."""
    before = node.collect()
    assert node.collect() == before
    assert node.lines[-1] == "the scene i of job 7 is archived already"


def _link(node: Node) -> None:
    (node.scene / "x").symlink_to("/etc/shadow")


def _hard_link(node: Node) -> None:
    os.link(node.put("x", b"x"), node.tmp / "y")


def _foreign(node: Node) -> None:
    os.chown(node.put("x", b"x"), USER + 1, USER + 1)


def _pipe(node: Node) -> None:
    os.mkfifo(node.scene / "x")
    node.own(node.scene / "x")


def _foreign_folder(node: Node) -> None:
    (node.scene / "x").mkdir()
    (node.scene / "x" / "secret").touch()


def _linked_folder(node: Node) -> None:
    (node.scene / "x").symlink_to("/etc")


def _deep(node: Node) -> None:
    path = node.scene
    for _ in range(8):
        path /= "x"
        path.mkdir()
        node.own(path)


@pytest.mark.parametrize("lay", [_link, _hard_link, _foreign, _pipe, _foreign_folder, _linked_folder, _deep])
def test_what_is_no_plain_file_of_the_users_is_left_out(node: Node, lay: Callable[[Node], None]) -> None:
    """The rest of the scene is archived, and the line says that something is missing."""
    lay(node)
    assert node.collect() == ["7-ab12/i/processes-n2.json", "7-ab12/i/stacks/n2.txt"]
    assert node.lines[0].endswith("without 1 of its files")


def _on_a_link(node: Node) -> Path:
    node.tmp.rename(node.tmp.with_name("real"))
    node.tmp.symlink_to(node.tmp.with_name("real"))
    return node.scene


def _is_a_link(node: Node) -> Path:
    link = node.tmp / "slurm-guard-7-i-link"
    link.symlink_to(node.scene)
    return link


def _of_root(node: Node) -> Path:
    os.chown(node.scene, 0, 0)
    return node.scene


def _by_dots(node: Node) -> Path:
    return node.tmp / "x" / ".." / node.scene.name


def _anything(node: Node) -> Path:
    return node.scene.rename(node.tmp / "home-directory")


def _of_another_job(node: Node) -> Path:
    return node.scene.rename(node.tmp / "slurm-guard-77-i-abc")


def _a_file(node: Node) -> Path:
    path = node.tmp / "slurm-guard-7-file"
    path.touch()
    return path


def _gone(node: Node) -> Path:
    return node.tmp / "slurm-guard-7-gone"


@pytest.mark.parametrize(
    "lay", [_on_a_link, _is_a_link, _of_root, _by_dots, _anything, _of_another_job, _a_file, _gone]
)
def test_pointer_to_anything_else_is_one_line(node: Node, lay: Callable[[Node], Path]) -> None:
    """Root follows nobody anywhere."""
    assert node.collect(lay(node)) == []
    assert len(node.lines) == 1
    assert node.lines[0].startswith("the scene i of job 7 is not archived")


def test_job_gets_no_more_than_its_share(node: Node) -> None:
    """A file without end is cut, the rest is left out."""
    with node.put("a-huge", b"").open("r+b") as file:
        file.truncate(1 << 40)
    node.collect(site=replace(SITE, archive_mib=1))
    total = sum(path.stat().st_size for path in node.place.archive.rglob("*") if path.is_file())
    assert (1 << 20) - 100 <= total <= 1 << 20
    assert "without" in node.lines[0]


def test_second_scene_of_a_job_shares_the_room(node: Node) -> None:
    """What the first has taken is taken."""
    node.put("a", b"a" * (1 << 20))
    pointers = [ScenePointer("7", "n2", name, 1.0, str(node.scene)) for name in ("i", "j")]
    site = replace(SITE, archive_mib=1)
    collect_scenes(
        node.place, JOB, pointers, attempt="ab12", settings=site, timeout_s=10, say=node.lines.append
    )
    assert node.lines[1] == "the scene j of job 7 is not archived: there is no more room for this job"


def test_flood_of_files_is_bounded(node: Node) -> None:
    """Their number too."""
    for number in range(600):
        node.put(f"{number}", b"")
    assert len(node.collect()) <= 512


def test_site_may_want_no_archive(node: Node) -> None:
    """`archive_mib = 0`: nothing is made."""
    assert node.collect(site=replace(SITE, archive_mib=0)) == []
    assert not node.place.archive.exists()
    assert node.lines == []


def test_full_disk_is_one_line_and_leaves_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is given up as a whole."""

    def refuse(self: SceneCopy, source: int, goal: Path) -> None:
        (goal / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SceneCopy, "copy", refuse)
    assert node.collect() == []
    assert list(node.place.archive.iterdir()) == []
    assert len(node.lines) == 1
    assert "No space left" in node.lines[0]


def test_directory_that_hangs_costs_its_time_and_one_line(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may have mounted anything."""
    monkeypatch.setattr(archive, "open_scene", lambda pointer, user_id: time.sleep(60))
    pointer = ScenePointer("7", "n2", "i", 1.0, str(node.scene))
    collect_scenes(
        node.place, JOB, (pointer,), attempt="ab12", settings=SITE, timeout_s=0.2, say=node.lines.append
    )
    assert node.lines == ["the archive, at job 7, gave no answer in 0.2 s"]


def test_archive_forgets_the_old_and_then_the_oldest(node: Node) -> None:
    """By days, and by the bound of sixteen times a job's share."""
    base = node.place.archive
    for age_days, name in ((40, "1-a"), (20, "2-a"), (10, "3-a"), (1, "4-a")):
        (base / name / "i").mkdir(parents=True)
        (base / name / "i" / "file").write_bytes(b"x" * (9 << 20))
        os.utime(base / name, (0, 1e9 - age_days * 86400))
    assert prune_archive(base, replace(SITE, archive_mib=1), 1e9) == ["1-a", "2-a", "3-a"]
    assert os.listdir(base) == ["4-a"]


def test_archive_is_pruned_where_nothing_new_comes(node: Node) -> None:
    """Every epilog looks."""
    old = node.place.archive / "1-a"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    collect_scenes(node.place, JOB, (), attempt="ab12", settings=SITE, timeout_s=1, say=node.lines.append)
    assert os.listdir(node.place.archive) == []
    assert node.lines == ["the archive gives up 1-a"]
