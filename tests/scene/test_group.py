"""Ranks at one place are one group; the outlier is the last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurm_guard.scene.group import group_stacks, name_ranks, write_groups


def _stack(rank: int | None, signature: str, node: str = "n1", root: bool = True) -> dict[str, Any]:
    pid = 100 + (rank or 0)
    own = pid if root else 1
    return {
        "rank": rank,
        "pid": pid,
        "root": own,
        "node": node,
        "signature": signature,
        "top": "f",
        "text": "t",
    }


def test_the_largest_group_comes_first_and_children_make_none() -> None:
    """A DataLoader worker's stack and a refused one are no rank's place."""
    stacks = [_stack(2, "b"), _stack(0, "a"), _stack(1, "a"), _stack(3, ""), _stack(4, "c", root=False)]
    groups = group_stacks([*stacks, _stack(None, "d")])
    assert [(g.signature, [rank for rank, _, _ in g.ranks]) for g in groups] == [("a", [0, 1]), ("b", [2])]


def test_a_file_a_signature_is_written_over_all_nodes(tmp_path: Path) -> None:
    """Nodes are merged; a node file cut short costs that node only."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    (folder / "n1.json").write_text(json.dumps([_stack(0, "a"), _stack(1, "a")]))
    (folder / "n2.json").write_text(json.dumps([_stack(2, "b", "n2"), _stack(3, "a", "n2")]))
    (folder / "n3.json").write_text('[{"rank"')
    write_groups(tmp_path)
    assert sorted(p.name for p in folder.glob("*.txt")) == [
        "signature-1-ranks-0-1,3.txt",
        "signature-2-ranks-2.txt",
    ]
    assert "rank 3 on n2 (pid 103)" in (folder / "signature-1-ranks-0-1,3.txt").read_text()


def test_a_name_never_grows_too_long() -> None:
    """Thousands of scattered ranks still fit a file name."""
    assert len(name_ranks(range(0, 9000, 2))) < 100
