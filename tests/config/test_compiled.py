"""The compiled settings: what hooks read instead of TOML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_guard.config.compiled import Compiled, compile_site, load_compiled
from slurm_guard.config.profile import load_profiles
from slurm_guard.config.site import load_site
from slurm_guard.config.xid import load_xid_table
from slurm_guard.errors import ConfigError
from slurm_guard.model.health import HealthClass, Level, Switch
from slurm_guard.model.site import SiteSettings


def compiled(tmp_path: Path, text: str | None = None) -> Compiled:
    path = tmp_path / "site.json"
    path.write_text(compile_site(tmp_path) if text is None else text)
    return load_compiled(path)


def test_all_is_as_the_files_have_it(tmp_path: Path) -> None:
    """Settings, profiles and codes, the site's own changes among them."""
    (tmp_path / "site.toml").write_text('[prolog]\nprobe_s = 3\n[hooks]\npage = "/bin/page"\n')
    (tmp_path / "gpu-profiles.toml").write_text('[generic.check]\nnvlink = "off"\n')
    (tmp_path / "xid.toml").write_text('[[xid]]\ncode = 79\nclass = "replace"\n')
    found = compiled(tmp_path)
    assert found.settings == load_site(tmp_path / "site.toml")
    assert found.settings.probe_s == 3.0
    assert found.profiles == load_profiles(tmp_path / "gpu-profiles.toml")
    assert found.profiles[0].switches["nvlink"] is Switch.OFF
    assert found.table == load_xid_table(tmp_path / "xid.toml")
    assert (found.table.xids[79].cls, found.table.xids[79].level) == (HealthClass.REPLACE, Level.FAIL)
    found.check()


def test_site_without_files_has_the_defaults(tmp_path: Path) -> None:
    """Each of the three files may be missing."""
    found = compiled(tmp_path)
    assert found.settings == SiteSettings()
    assert found.scontrol == "/usr/bin/scontrol"
    assert found.value("snapshot_s") == SiteSettings().snapshot_s


def test_wrong_setting_is_not_compiled(tmp_path: Path) -> None:
    """It is told at the installation, and not to the hooks."""
    (tmp_path / "site.toml").write_text("[prolog]\nprobe_s = 0\n")
    with pytest.raises(ConfigError, match=r"prolog\.probe_s = 0"):
        compile_site(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        "{}",
        '{"schema":0}',
        '{"schema":1}',
        '{"schema":1,"table":[]}',
        "[" * 100_000,
    ],
)
def test_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    """With the remedy at its end."""
    with pytest.raises(ConfigError) as caught:
        compiled(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("run slurm-guard site install")


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    """As on a node where nothing was installed."""
    with pytest.raises(ConfigError, match=r"site\.json: cannot be read \(No such file or directory\)"):
        load_compiled(tmp_path / "site.json")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", {"no_such_setting": 1}),
        ("profiles", [{"name": "generic"}]),
        ("profiles", "H100"),
        ("table", {"xids": {"x": {}}, "sxids": {}, "recovery": {}, "unknown": {}}),
        ("scontrol", "scontrol"),
    ],
)
def test_broken_part_is_told_when_it_is_asked_for(tmp_path: Path, part: str, value: object) -> None:
    """And not before: a prolog that needs no table has no trouble with it."""
    found = compiled(tmp_path, json.dumps({**json.loads(compile_site(tmp_path)), part: value}))
    with pytest.raises(ConfigError, match="site install"):
        getattr(found, part)
    with pytest.raises(ConfigError, match="site install"):
        found.check()


def test_setting_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As after an upgrade without a new installation."""
    found = compiled(tmp_path, json.dumps({**json.loads(compile_site(tmp_path)), "settings": {}}))
    with pytest.raises(ConfigError, match="KeyError: 'state'"):
        found.value("state")
