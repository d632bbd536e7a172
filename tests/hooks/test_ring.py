"""Old rings go when Slurm has forgotten their job, and never before; no link leads the removal elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_guard.adapters import probe
from slurm_guard.errors import CommandFailed
from slurm_guard.hooks import ring
from slurm_guard.hooks.ring import find_bases, remove_expired
from slurm_guard.model.reading import JobReading
from slurm_guard.testing.slurm import FakeSlurm

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the epilog has it")

USER = 12345
DAYS = 7.0
OLD_S = 8 * 86400.0


class Node:
    """The ring base of a user, and a Slurm that knows job 1."""

    def __init__(self, root: Path) -> None:
        self.base = root / "slurm-guard-ann"
        self.base.mkdir()
        os.chown(self.base, USER, USER)
        self.slurm = FakeSlurm(["n1"])
        self.slurm.submit()
        self.asked: list[float] = []
        self.lines: list[str] = []

    def make(self, name: str, owner: int = USER) -> Path:
        """A ring with a checkpoint in it."""
        path = self.base / name
        (path / "iteration-5").mkdir(parents=True)
        (path / "iteration-5" / "weights").write_bytes(b"x" * 100)
        for one in (path, path / "iteration-5", path / "iteration-5" / "weights"):
            os.chown(one, owner, owner)
        return path

    def open(self, timeout_s: float) -> FakeSlurm:
        """Slurm, when it is needed."""
        self.asked.append(timeout_s)
        return self.slurm

    def remove(self, later_s: float = OLD_S, left_s: float = 20.0, cluster: str = "c") -> None:
        """What an epilog does `later_s` after the rings were made."""
        remove_expired(
            [self.base],
            cluster,
            self.open,
            days=DAYS,
            wall_s=time.time() + later_s,
            until_s=time.monotonic() + left_s,
            say=self.lines.append,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One."""
    return Node(tmp_path)


def test_old_ring_of_a_forgotten_job_is_removed(node: Node) -> None:
    """With all that is in it; a line says so."""
    path = node.make("c-4711")
    node.remove()
    assert not path.exists()
    assert node.base.exists()
    assert node.lines == [f"removed the ring {path}: its job is long over"]


def test_ring_of_a_job_that_slurm_has_stays(node: Node) -> None:
    """However old: it may be pending, and will want its checkpoint."""
    path = node.make("c-1")
    node.remove()
    assert path.exists()
    assert node.lines == []


def test_young_ring_stays_and_slurm_is_not_asked(node: Node) -> None:
    """The usual epilog asks Slurm nothing."""
    path = node.make("c-4711")
    node.remove(later_s=6 * 86400.0)
    assert path.exists()
    assert node.asked == []


def test_ring_with_a_young_checkpoint_is_young(node: Node) -> None:
    """The newest stamp in it counts."""
    path = node.make("c-4711")
    os.utime(path, (0, 0))
    soon = time.time() + OLD_S
    os.utime(path / "iteration-5", (soon, soon))
    node.remove()
    assert path.exists()


def test_without_an_answer_nothing_is_removed(node: Node) -> None:
    """A silent Slurm has not forgotten; one line, and no second question."""
    paths = [node.make(f"c-471{n}") for n in range(3)]
    node.slurm.available = False
    node.remove()
    assert all(path.exists() for path in paths)
    assert len(node.asked) == len(node.lines) == 1


def test_any_other_refusal_is_no_word_that_the_job_is_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the one that says so."""

    def refuse(self: FakeSlurm, job_id: str) -> JobReading:
        raise CommandFailed(["scontrol", "show", "job"], 1, "Access/permission denied")

    path = node.make("c-4711")
    monkeypatch.setattr(FakeSlurm, "read_job", refuse)
    node.remove()
    assert path.exists()


@pytest.mark.parametrize("name", ["other-4711", "c-local", "c-", "c-4711-x", "c-٤", "cc-4711", "results"])
def test_other_directories_stay(node: Node, name: str) -> None:
    """Only CLUSTER-JOB of this cluster is a ring."""
    path = node.make(name)
    node.remove()
    assert path.exists()


def test_without_a_cluster_nothing_is_a_ring(node: Node) -> None:
    """An empty environment removes nothing."""
    path = node.make("-4711")
    node.remove(cluster="")
    assert path.exists()


def test_cluster_name_is_no_pattern(node: Node) -> None:
    """A dot is a dot."""
    path = node.make("xyz-4711")
    node.remove(cluster="x.z")
    assert path.exists()


@pytest.mark.parametrize("kind", ["ring", "base"])
def test_link_in_place_of_a_directory_is_not_followed(node: Node, kind: str, tmp_path: Path) -> None:
    """Neither for the ring nor for its base."""
    path = node.make("c-4711")
    if kind == "ring":
        moved = path.rename(tmp_path / "precious")
        path.symlink_to(moved)
    else:
        moved = node.base.rename(tmp_path / "precious")
        node.base.symlink_to(moved)
        moved /= "c-4711"
    node.remove()
    assert (moved / "iteration-5" / "weights").exists()


def test_link_in_a_ring_takes_nothing_with_it(node: Node, tmp_path: Path) -> None:
    """The link goes, what it leads to stays."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    path = node.make("c-4711")
    (path / "iteration-5" / "out").symlink_to(precious)
    (path / "out").symlink_to(precious)
    node.remove()
    assert not path.exists()
    assert (precious / "file").exists()


@pytest.mark.parametrize("owner", [0, USER + 1])
def test_ring_of_another_in_a_users_base_stays(node: Node, owner: int) -> None:
    """He may have moved it there."""
    path = node.make("c-4711", owner)
    node.remove()
    assert path.exists()


def test_short_of_time_nothing_is_begun(node: Node) -> None:
    """The epilog has a bound."""
    path = node.make("c-4711")
    node.remove(left_s=0.5)
    assert path.exists()
    assert "no time left" in node.lines[0]


def test_few_jobs_are_asked_about_at_once(node: Node) -> None:
    """The others have their turn in later epilogs."""
    for number in range(10):
        node.make(f"c-47{number}")
    node.remove()
    assert len(node.asked) == 3
    assert len(list(node.base.iterdir())) == 7


def test_base_that_hangs_costs_a_second_and_a_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's own directory may be anywhere."""
    node.make("c-4711")
    monkeypatch.setattr(ring, "find_expired", lambda *given: time.sleep(60))
    monkeypatch.setattr(ring, "_LOOK_S", 0.1)
    node.remove()
    assert node.lines == ["an old ring stays: the look at old rings gave no answer in 0.1 s"]
    assert probe.ask_fork(lambda: 1, 5.0, "this process") == 1


def test_bases_are_the_users_and_the_sites(tmp_path: Path) -> None:
    """Those in /var/tmp by name, and the one that the site has set."""
    for name in ("slurm-guard-ann", "slurm-guard-bob", "other"):
        (tmp_path / name).mkdir()
    mine = {tmp_path / "slurm-guard-ann", tmp_path / "slurm-guard-bob"}
    assert set(find_bases(shared=tmp_path)) == mine
    assert set(find_bases("/scratch/rings", tmp_path)) == mine | {Path("/scratch/rings")}
    assert find_bases("rings", tmp_path / "missing") == []
