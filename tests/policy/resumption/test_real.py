"""Real logs, cut in two: what really came next never looks wrong, their beginning again often does.

They are not part of the repository: SLURM_GUARD_REAL_LOGS names their folder.
"""

from __future__ import annotations

import pytest
from policy.resumption.course import Second, journal
from real_log import FOLDER, truth

from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.line import LineReader
from slurm_guard.policy.log.pattern import parse_patterns

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="SLURM_GUARD_REAL_LOGS names no folder, so no real log is read"
)

HEALTHY = [
    str(case["file"]) for case in truth() if isinstance(case["truth"], dict) and case["truth"]["healthy"]
]


def read(name: str) -> list[Record]:
    """The records of the training in it."""
    reader = LineReader(parse_patterns("", "", "", ""), has_blocks=True)
    found: list[Record] = []
    with (FOLDER / name).open("rb") as log:
        for line in log:
            found += reader.feed(line)
    return [r for r in [*found, *reader.flush()] if r.kind is RecordKind.TRAIN and r.loss is not None]


@pytest.mark.parametrize("back", [0, 1, 10])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_really_came_next_is_never_called_wrong(name: str, back: int) -> None:
    """Cut anywhere, and resumed from there or from some records before."""
    course = read(name)
    for cut in sorted({len(course) * share // 20 for share in range(1, 20)} - {0}):
        begin = max(1, cut - back)
        at = course[begin - 1].iteration
        told = f"ring:{at}" if at is not None else "/m/best"
        second = Second.after(journal(course[:cut], told)).shows(course[begin : begin + 40])
        assert second.said == [], (name, cut)


def test_a_start_from_scratch_is_seen_where_the_loss_has_fallen_since() -> None:
    """No more can be said of a loss that is as at the beginning, or of a log of a few lines."""
    seen, long = [], [name for name in HEALTHY if len(read(name)) > 40]
    for name in long:
        course = read(name)
        told = max((r.iteration or 0 for r in course), default=0)
        second = Second.after(journal(course, f"ring:{told}")).shows(course[:40])
        seen += [name] if second.said else []
    assert len(long) == 5
    assert len(seen) >= 4, seen
