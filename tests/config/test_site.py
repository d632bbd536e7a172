"""The administrators' settings: what cannot be is refused with a line that says what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_guard.config.site import load_site
from slurm_guard.errors import ConfigError


def test_scratch_is_a_list_of_full_paths(tmp_path: Path) -> None:
    """Separated by commas, with or without blanks."""
    site = tmp_path / "site.toml"
    assert load_site(site).scratch_paths == ("/tmp", "/var/tmp", "/dev/shm")
    site.write_text('[node]\nscratch = "/tmp, /local disk,"\n')
    assert load_site(site).scratch_paths == ("/tmp", "/local disk")
    site.write_text('[node]\nscratch = "/tmp,scratch"\n')
    with pytest.raises(ConfigError, match=r"site.toml: node\.scratch holds 'scratch': give full paths"):
        load_site(site)


@pytest.mark.parametrize("key", ["state", "log", "page"])
def test_paths_of_the_hooks_are_full_ones(tmp_path: Path, key: str) -> None:
    """The hooks have no working directory that anybody could mean."""
    (tmp_path / "site.toml").write_text(f'[hooks]\n{key} = "var/x"\n')
    with pytest.raises(ConfigError, match=rf"hooks\.{key} = 'var/x' is no full path: begin it with /$"):
        load_site(tmp_path / "site.toml")
