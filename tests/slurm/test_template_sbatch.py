"""The rendered templates are what a real sbatch takes, quoting included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slurm_guard.cli.template import read_templates, render_script

if TYPE_CHECKING:
    from slurm.conftest import RealCluster

GOLDEN = sorted((Path(__file__).parents[1] / "data" / "golden").glob("*.sbatch"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_sbatch_takes_it(path: Path, cluster: RealCluster) -> None:
    """All options together fit on a cluster of four nodes."""
    done = cluster.run_as_user(["sbatch", "--test-only"], input=path.read_text())
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def test_values_reach_the_job_and_the_ranks_as_they_are(cluster: RealCluster) -> None:
    """Quotes and dollars through #SBATCH lines, bash, and srun in place of the guard."""
    name = 'it\'s "a" $(job)'
    values = {
        "command": "echo rank=\\$RANK '$RANK of' \"two  words\"",
        "job_name": name,
        "nodes": "2",
        "spares": "1",
        "mem": "100M",
        "time": "5:00",
        "output": "out.txt",
    }
    script = render_script(read_templates()["srun-per-rank"], values).replace(
        "exec guarded-srun", "exec srun"
    )
    job_id = cluster.sbatch(script)
    fields = cluster.wait_state(job_id, {"COMPLETED", "FAILED"})
    assert (fields["JobState"], fields["NumNodes"], fields["JobName"]) == ("COMPLETED", "3", name)
    assert cluster.output(job_id) == "rank=$RANK $RANK of two  words\n" * 2
