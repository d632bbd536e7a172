"""`slurm-guard checkpoint` on rings of replicas and shards: one line is one moment of the training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slurm_guard.checkpoint.manifest import read_checkpoint, verify_checkpoint
from slurm_guard.checkpoint.milestone import write_milestone
from slurm_guard.checkpoint.rescue import rescue_unit
from slurm_guard.checkpoint.ring import write_unit
from slurm_guard.cli import checkpoint_bytes
from slurm_guard.cli.checkpoint import app
from slurm_guard.model.checkpoint import Checkpoint, Skipped, Stamp

WORLD = 4


def parts(directory: str) -> None:
    Path(directory, "state.pt").write_bytes(b"weights")


def sharded(ring: Path, iteration: int, ranks: Iterable[int], fork: str = "f1") -> list[Checkpoint]:
    """What a node holds of a state that no rank has whole."""
    stamps = [
        Stamp(iteration, loss=0.5, world_size=WORLD, fork=fork, rank=rank, replica=False, shards=WORLD)
        for rank in ranks
    ]
    return [write_unit(str(ring), stamp, parts) for stamp in stamps]


def replicated(ring: Path, iteration: int, ranks: Iterable[int], *, shards: int = 0) -> list[Checkpoint]:
    """What a node holds of a state that all ranks hold alike; `shards` as many as have data of their own."""
    stamps = [
        Stamp(iteration, world_size=WORLD, fork="f1", rank=rank, shards=shards) for rank in (None, *ranks)
    ]
    return [write_unit(str(ring), stamp, parts) for stamp in stamps]


def partners(root: Path, *iterations: int) -> list[str]:
    """Four nodes with a rank each, and a copy of what the one before has."""
    for iteration in iterations:
        for node in range(WORLD):
            sharded(root / f"n{node}" / "ring", iteration, (node, (node - 1) % WORLD))
    return [str(root / f"n{node}" / "ring") for node in range(WORLD)]


def call(*words: str) -> tuple[int, list[str], str]:
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.stdout.splitlines(), result.stderr


def ask(*words: str) -> Any:
    return json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)


def damage(unit: str) -> None:
    Path(unit, "state.pt").write_bytes(b"WEIGHTS")


@pytest.mark.parametrize(
    ("ranks", "state"),
    [
        ((0, 3), "shards 0, 3 of 4 are here"),
        ((0, 1, 2), "shards 0-2 of 4 are here"),
        ((2,), "shard 2 of 4 is here"),
        ((0, 1, 2, 3), "whole"),
    ],
)
def test_a_node_that_has_some_shards_is_not_damaged(
    tmp_path: Path, ranks: tuple[int, ...], state: str
) -> None:
    """One line says how much of it is here, with the size of all; code 0."""
    sharded(tmp_path, 10, ranks)
    code, (_, row), said = call("list", str(tmp_path))
    assert (code, said) == (0, "")
    assert row.split()[:6] == ["10", "-", "0.5000", "ring", str(7 * len(ranks)), "B"]
    assert f"  {state}  {tmp_path}/rank-0000{ranks[0]}/iteration-0000000010" in row
    assert call("verify", str(tmp_path))[0] == 0


def test_a_replica_is_whole_unless_the_ranks_have_data_of_their_own(tmp_path: Path) -> None:
    """Random states are welcome and not needed; places in the data are."""
    replicated(tmp_path / "a", 10, (0,))
    replicated(tmp_path / "b", 20, (0, 1), shards=WORLD)
    replicated(tmp_path / "c", 30, (), shards=WORLD)
    shutil.rmtree(replicated(tmp_path / "d", 40, (1, 2), shards=WORLD)[0].directory)
    shutil.rmtree(replicated(tmp_path / "e", 50, (3,))[0].directory)
    places = [str(tmp_path / name) for name in "abcde"]
    assert [checkpoint["state"] for checkpoint in ask("list", *places)["checkpoints"]] == [
        "shard 3 is here, the replica is not",
        "shards 1-2 of 4 are here, the replica is not",
        "the replica and no shard of 4 are here",
        "the replica and shards 0-1 of 4 are here",
        "whole",
    ]


def test_the_rings_of_several_nodes_are_judged_together(tmp_path: Path) -> None:
    """No node has all of it, all of them together have it twice."""
    rings = partners(tmp_path, 10, 20)
    code, rows, _ = call("list", *rings)
    assert (code, [row.split()[0] for row in rows[1:]]) == (0, ["20", "10"])
    assert all(" whole " in row and " 56 B " in row for row in rows[1:])
    assert call("latest", *rings)[:2] == (0, [f"{rings[0]}/rank-00000/iteration-0000000020"])
    newest = ask("latest", *rings)
    assert (newest["resume_from"], newest["checkpoint"]["whole"]) == ("ring:20", True)
    assert sorted(unit["rank"] for unit in newest["checkpoint"]["units"]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_latest_of_one_node_does_not_pass_a_part_off_as_all(tmp_path: Path) -> None:
    """It asks for the others."""
    rings = partners(tmp_path, 10)
    code, lines, said = call("latest", rings[0])
    assert (code, lines) == (1, [])
    assert "shards 0, 3 of 4 are here; name the rings of all its nodes" in said


def test_a_damaged_copy_is_bad_and_the_other_copy_is_good(tmp_path: Path) -> None:
    """`verify` reads all copies, `latest` needs one of each that is good."""
    rings = partners(tmp_path, 10, 20)
    bad = f"{rings[0]}/rank-00000/iteration-0000000020"
    damage(bad)
    code, lines, _ = call("verify", *rings)
    assert code == 1
    assert lines[0] == f"bad   {bad}: state.pt does not have its checksum: its bytes have changed"
    assert lines[1].startswith("good  ")
    assert ask("verify", *rings)["checkpoints"][0]["bad"][0]["directory"] == bad
    code, lines, said = call("latest", *rings)
    assert (code, lines) == (0, [f"{rings[1]}/rank-00000/iteration-0000000020"])
    assert f"skipped {bad}: state.pt" in said
    damage(f"{rings[1]}/rank-00000/iteration-0000000020")
    assert call("latest", *rings)[1] == [f"{rings[0]}/rank-00000/iteration-0000000010"]


def test_what_a_running_training_drops_meanwhile_is_not_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when it was looked for, and the ring went on."""
    replicated(tmp_path, 10, (0,))

    def drop(checkpoint: Checkpoint, advance: Any = None) -> Skipped | None:
        if checkpoint.rank is None:
            shutil.rmtree(checkpoint.directory)
        return verify_checkpoint(checkpoint)

    monkeypatch.setattr(checkpoint_bytes, "verify_checkpoint", drop)
    code, lines, _ = call("verify", str(tmp_path))
    assert (code, lines) == (0, [f"gone  {tmp_path}/iteration-0000000010: {checkpoint_bytes.GONE}"])


def test_show_lists_the_units_and_their_files(tmp_path: Path) -> None:
    """What it needs, and where each unit is."""
    replica, shard = replicated(tmp_path, 10, (3,), shards=WORLD)
    code, lines, _ = call("show", str(tmp_path))
    assert (code, lines[0]) == (0, replica.directory)
    assert "  needs       the replica and the shards of 4 ranks" in lines
    rows = [line.split() for line in lines if "state.pt" in line]
    assert [(row[0], row[-1]) for row in rows] == [
        ("replica", replica.directory),
        ("shard", shard.directory),
    ]
    alone = ask("show", shard.directory)["checkpoints"][0]
    assert (alone["state"], alone["units"][0]["rank"]) == (
        "shard 3 of 4 is here, the replica is not",
        3,
    )


def test_a_unit_that_is_broken_has_a_line_of_its_own(tmp_path: Path) -> None:
    """And so has one in another rank's directory."""
    first, second = sharded(tmp_path, 10, (0, 1))
    Path(second.directory, "state.pt").write_bytes(b"short")
    strange = tmp_path / "rank-00002" / "iteration-0000000010"
    shutil.copytree(first.directory, strange)
    skipped = {bad["directory"]: bad["reason"] for bad in ask("list", str(tmp_path))["skipped"]}
    assert skipped == {
        second.directory: "state.pt has 5 bytes instead of 7",
        str(strange): "it is no shard of rank 2",
    }
    assert call("verify", str(tmp_path))[0] == 1


def test_directories_of_shards_are_no_checkpoints_of_others(tmp_path: Path) -> None:
    """Whatever the pattern."""
    sharded(tmp_path, 10, (0, 1))
    found = ask("list", str(tmp_path), "--pattern", "*{iteration}")["checkpoints"]
    assert [checkpoint["kind"] for checkpoint in found] == ["ring"]


def test_a_milestone_of_sharded_state_is_a_milestone(tmp_path: Path) -> None:
    """With the files of torch.distributed.checkpoint, and what each rank held: one directory is all of it."""

    def write(directory: str) -> None:
        for name in ("state.pt", "ranks.pt", ".metadata", "__0_0.distcp"):
            Path(directory, name).write_bytes(b"bytes")

    stamp = Stamp(10, world_size=WORLD, fork="f1", replica=False, shards=WORLD)
    made = write_milestone(str(tmp_path), stamp, write)
    old = write_milestone(str(tmp_path), Stamp(5, fork="f1"), parts)
    body = ask("list", str(tmp_path))["checkpoints"]
    assert [(each["kind"], each["state"], each["size"]) for each in body] == [
        ("milestone", "whole", 20),
        ("milestone", "whole", 7),
    ]
    assert call("latest", str(tmp_path))[1] == [made.directory]
    assert call("verify", str(tmp_path))[0] == 0
    assert call("prune", str(tmp_path), "--keep", "1", "--yes")[0] == 0
    assert not Path(old.directory).exists()
    Path(made.directory, "__0_0.distcp").write_bytes(b"BYTES")
    assert call("latest", str(tmp_path))[0] == 1


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job around, with its directories below this one; its ring is `ring/c-7`."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    monkeypatch.setenv("SLURM_GUARD_RING_DIR", str(tmp_path / "ring"))
    monkeypatch.setenv("SLURM_GUARD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def test_in_a_job_a_part_is_enough_and_said_to_be_one(job: Path) -> None:
    """The ranks see the other nodes, this command doesn't."""
    sharded(job / "ring" / "c-7", 10, (0, 3))
    code, lines, said = call("latest")
    assert (code, lines) == (0, [f"{job}/ring/c-7/rank-00000/iteration-0000000010"])
    assert said == "of it shards 0, 3 of 4 are here; the ranks find out whether other nodes have the rest\n"
    assert ask("latest")["resume_from"] == "ring:10"


def test_in_a_job_what_was_rescued_counts(job: Path) -> None:
    """One line for what the ring and the rescue have of a moment."""
    kept = sharded(job / "ring" / "c-7", 10, (0, 3))
    (job / "state").mkdir()
    for unit in [*kept, *sharded(job / "other", 10, (1, 2))]:
        rescue_unit(unit, str(job / "state" / "rescue"), lambda _: None)
    (found,) = ask("list")["checkpoints"]
    assert (found["state"], len(found["units"])) == ("whole", 6)
    damage(kept[0].directory)
    assert ask("latest")["resume_from"] == "ring:10"
    shutil.rmtree(job / "ring")
    assert call("latest")[0] == 0


def test_a_step_from_outside_of_the_job_finds_its_ring(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --jobid=7 slurm-guard checkpoint list`: Slurm doesn't say there what the cluster is called."""
    (made,) = sharded(job / "ring" / "c-7", 10, (0,))
    sharded(job / "ring" / "c-17", 20, (0,))
    monkeypatch.delenv("SLURM_CLUSTER_NAME")
    assert call("latest")[1] == [made.directory]


def units(*rings: str) -> list[str]:
    found = (path for ring in rings for path in Path(ring).rglob("iteration-*"))
    return sorted(f"{path.parent.name}/{int(path.name[-10:])}" for path in found)


def test_prune_takes_a_moment_with_all_its_units_or_leaves_all(tmp_path: Path) -> None:
    """On all nodes that are named."""
    rings = partners(tmp_path, 10, 20)
    before = units(*rings)
    code, lines, said = call("prune", *rings, "--keep", "1")
    assert (code, units(*rings)) == (0, before)
    assert f"remove   {rings[0]}/rank-00000/iteration-0000000010 (56 B): not kept by the rule" in lines
    assert said == "1 would be removed; nothing was: add --yes\n"
    assert call("prune", *rings, "--keep", "1", "--yes")[0] == 0
    assert units(*rings) == [unit for unit in before if unit.endswith("/20")]


def test_prune_of_one_node_leaves_what_others_have_the_rest_of(tmp_path: Path) -> None:
    """Its shards of an older moment may be what makes that one whole."""
    rings = partners(tmp_path, 10, 20)
    before = units(*rings)
    code, lines, _ = call("prune", rings[0], "--keep", "1", "--yes")
    assert (code, units(*rings)) == (0, before)
    assert all("shards 0, 3 of 4 are here: name the rings of all its nodes" in line for line in lines)


def test_prune_keeps_the_older_one_where_the_newest_is_damaged(tmp_path: Path) -> None:
    """Of one of its shards no copy is good: the one before is what is left, and stays."""
    rings = [*partners(tmp_path / "a", 10), *partners(tmp_path / "b", 20, 30)]
    for node in (0, 1):
        damage(f"{tmp_path}/b/n{node}/ring/rank-00000/iteration-0000000030")
    code, lines, _ = call("prune", *rings, "--keep", "1", "--yes")
    assert (code, {unit.partition("/")[2] for unit in units(*rings)}) == (0, {"20", "30"})
    assert any(line.endswith("0020: the newest good one: all its bytes were read") for line in lines)


def test_prune_takes_a_replica_before_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be removed they stay too: a replica never stays without them."""
    (replica, _), _ = replicated(tmp_path, 10, (0,)), replicated(tmp_path, 20, (0,))
    rename = os.rename

    def refuse(source: str, target: str) -> None:
        if source == replica.directory:
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    code, _, said = call("prune", str(tmp_path), "--keep", "1", "--yes")
    assert (code, len(units(str(tmp_path)))) == (1, 4)
    assert f"{replica.directory}: it cannot be renamed" in said
    monkeypatch.undo()
    assert call("prune", str(tmp_path), "--keep", "1", "--yes")[0] == 0
    assert set(units(str(tmp_path))) == {f"{tmp_path.name}/20", "rank-00000/20"}


def test_prune_never_lets_one_job_speak_for_another(tmp_path: Path) -> None:
    """The newest of each stays, however old it is."""
    for name, iteration in (("c-7", 10), ("c-7", 20), ("c-8", 900)):
        sharded(tmp_path / name, iteration, range(WORLD), fork=name)
    call("prune", str(tmp_path / "c-7"), str(tmp_path / "c-8"), "--keep", "1", "--yes")
    assert set(units(str(tmp_path))) == {f"rank-0000{rank}/{i}" for rank in range(WORLD) for i in (20, 900)}


def test_prune_finds_unfinished_shards(tmp_path: Path) -> None:
    """Each rank writes into a directory of its own."""
    (shard,) = sharded(tmp_path, 10, (3,))
    left = Path(shard.directory).parent / ".tmp-iteration-0000000020-abcd"
    left.mkdir()
    os.utime(left, (0, 0))
    assert call("prune", str(tmp_path), "--yes")[0] == 0
    assert not left.exists()
    assert isinstance(read_checkpoint(shard.directory), Checkpoint)
