"""Real logs are read as whoever labelled them read them.

They are not part of the repository: SLURM_GUARD_REAL_LOGS names their folder.
"""

from __future__ import annotations

import math

import pytest
from real_log import FOLDER, truth

from slurm_guard.model.reading import Record, RecordKind
from slurm_guard.policy.log.line import LineReader

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="SLURM_GUARD_REAL_LOGS names no folder, so no real log is read"
)

BARS_CUT_BY_SRUN = 13
"""Frames of 003 that srun cut before `global_step=`: we take their loss, the labels leave them out."""


def read(name: str) -> list[Record]:
    reader = LineReader()
    data = (FOLDER / name).read_bytes()
    return reader.feed(data) + reader.flush()


def chosen(records: list[Record], *, has_loss: bool) -> list[Record]:
    """The records that the labels count: those with a training loss, else evaluations, else iterations."""
    if any(r.loss is not None for r in records):
        return [r for r in records if r.loss is not None]
    kind = RecordKind.EVAL if has_loss else RecordKind.TRAIN
    return [r for r in records if r.kind is kind and r.iteration is not None]


@pytest.mark.parametrize("case", truth(), ids=lambda case: str(case["file"]))
def test_real_log_is_read_as_labelled(case: dict[str, object]) -> None:
    """Records, iterations, first and last loss.

    Two logs show only the loss of evaluations. There the labels give that loss; for us it is no
    loss of the training, and only the evaluations and their iterations are compared.
    """
    said = case["truth"]
    assert isinstance(said, dict)
    name = str(case["file"])
    records = chosen(read(name), has_loss=said["first_loss"] is not None)
    extra = BARS_CUT_BY_SRUN if name.startswith("003") else 0
    assert len(records) == said["records"] + extra
    assert (records[0].iteration, records[-1].iteration) == (said["first_iteration"], said["last_iteration"])
    if records[0].kind is RecordKind.TRAIN:
        assert (records[0].loss, records[-1].loss) == (said["first_loss"], said["last_loss"])


@pytest.mark.parametrize("case", truth(), ids=lambda case: str(case["file"]))
def test_first_loss_that_is_not_finite_is_on_the_labelled_line(case: dict[str, object]) -> None:
    """`accuracy=nan` and `step_avg:nanms` are no loss; a running mean that went bad is one."""
    said = case["truth"]
    assert isinstance(said, dict)
    reader = LineReader()
    lines = (FOLDER / str(case["file"])).read_bytes().split(b"\n")
    bad = (
        number
        for number, line in enumerate(lines, 1)
        if any(r.loss is not None and not math.isfinite(r.loss) for r in reader.feed(line + b"\n"))
    )
    assert next(bad, None) == said["nonfinite_at_line"]
