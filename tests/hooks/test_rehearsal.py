"""What `doctor --as-prolog` learns from the prolog's rehearsal where nothing could be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_guard.cli import doctor
from slurm_guard.config.compiled import compile_site
from slurm_guard.hooks import rehearsal
from slurm_guard.hooks.place import Place


def test_a_node_that_could_not_be_judged_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job would be let in, unchecked: a code of its own says so, and the reason stands on stdout."""
    place = Place(tmp_path)
    place.settings.mkdir(parents=True)
    place.compiled.write_text(compile_site(place.settings))
    place.expected_gpus.write_text("eight\n")
    environ = {
        "SLURM_JOB_ID": "0",
        "SLURM_JOB_UID": "65534",
        "SLURM_JOB_GID": "65534",
        "SLURMD_NODENAME": "n1",
    }
    with pytest.raises(SystemExit) as caught:
        rehearsal.run(environ, place)
    assert caught.value.code == rehearsal.UNJUDGED == doctor.UNJUDGED
    assert "not judged: " in (said := capsys.readouterr().out)
    assert "holds 'eight': write the number of GPUs" in said
