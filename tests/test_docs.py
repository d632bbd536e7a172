"""What the documents say is held against the code: settings, options, commands, links and reasons."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from slurm_guard.adapters.heartbeat import read_heartbeat
from slurm_guard.cli.app import main, make_app
from slurm_guard.cli.guarded_srun import own_flags
from slurm_guard.config.load import load_settings
from slurm_guard.config.schema import key_of
from slurm_guard.config.site import load_site
from slurm_guard.model.limits import Settings
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy import ladder
from slurm_guard.policy.srun_argv import is_srun_option

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
SITE_TOML = ROOT / "site-config" / "site.toml"
ALL_SETTINGS = (*Settings.table(), *SiteSettings.table())
BATCH_OPTIONS = {"--requeue"}
"""Options of sbatch that srun doesn't know."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def _uncommented() -> str:
    return re.sub(r"^# (\w+ = \S+)$", r"\1", SITE_TOML.read_text(), flags=re.MULTILINE)


def _code(page: Path, language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return found


def _shell_lines() -> list[str]:
    blocks = [block for page in PAGES for block in _code(page, "sh")]
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def _slurm_guard_options() -> set[str]:
    import typer

    words: set[str] = {"--help"}
    waiting: list[Any] = [typer.main.get_command(make_app([]))]
    for command in waiting:
        words |= {word for parameter in command.params for word in parameter.opts if word.startswith("--")}
        waiting += getattr(command, "commands", {}).values()
    return words


def test_site_toml_has_every_key_with_its_default() -> None:
    """Every setting stands in site.toml in its section and with its default, and nothing else does."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(_uncommented())
    assert document.pop("locked") == []
    said = {f"{section}.{name}": value for section, body in document.items() for name, value in body.items()}
    assert said == {key_of(setting): setting.default for setting in ALL_SETTINGS}


def test_site_toml_is_read_as_it_is_and_with_every_key_given(tmp_path: Path) -> None:
    """The shipped file changes nothing, and neither does one with every default written out."""
    given = tmp_path / "site.toml"
    given.write_text(_uncommented())
    for site in (SITE_TOML, given):
        settings, explicit = load_settings(site=site, job_file=None, environment={}, flags={})
        assert (settings, explicit) == (Settings(), frozenset())
        assert load_site(site) == SiteSettings()


def test_site_toml_says_the_bounds_of_every_number() -> None:
    """The comment above a number ends in the bounds that the schema enforces."""
    text = SITE_TOML.read_text()
    for setting in ALL_SETTINGS:
        low, high = setting.metadata["low"], setting.metadata["high"]
        if low is not None:
            comment = text[: text.index(f"# {setting.name} =")].rpartition("\n\n")[2]
            assert f"{low:g} to {high:.10g}" in re.sub(r"\n# ", " ", comment), setting.name


@pages
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pages
def test_scripts_are_there_to_be_run(page: Path) -> None:
    """Every script that a page names is an executable file."""
    named = set(re.findall(r"(?<![\w/])scripts/\w+(?:\.py)?", page.read_text()))
    assert [name for name in named if not os.access(ROOT / name, os.X_OK)] == []


def _script_options() -> set[str]:
    """What the scripts that pages quote say of themselves."""
    helps = (
        subprocess.run([ROOT / name, "--help"], capture_output=True, text=True, check=True).stdout
        for name in ("scripts/bench", "scripts/minicluster")
    )
    return {option for text in helps for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}


@pages
def test_options_exist(page: Path) -> None:
    """Every long option that a page names belongs to one of our programs, to srun or to sbatch."""
    known = own_flags().keys() | _slurm_guard_options() | _script_options() | BATCH_OPTIONS
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text())
    assert [option for option in named if option not in known and not is_srun_option(option)] == []


def test_template_commands_of_the_readme_work(capsys: pytest.CaptureFixture[str]) -> None:
    """The template commands can be typed as they stand."""
    lines = [line for line in _shell_lines() if line.startswith("slurm-guard template")]
    assert len(lines) >= 2
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
    assert "exec guarded-srun" in capsys.readouterr().out


def test_slurm_guard_commands_exist() -> None:
    """Every command of slurm-guard that a page shows has a help page."""
    lines = {" ".join(shlex.split(line)[1:3]) for line in _shell_lines() if line.startswith("slurm-guard ")}
    assert lines >= {"incident show", "checkpoint latest"}
    assert [line for line in sorted(lines) if main([*line.split(), "--help"]) != 0] == []


def test_training_code_of_the_readme_saves_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three lines do what is said of them: a second run begins where the first one saved."""
    import torch

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_GUARD_RING_DIR", str(tmp_path / "ring"))
    _, code = _code(ROOT / "README.md", "python")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    names = {"model": model, "optimizer": optimizer, "loader": 7, "iterations": 5001, "loss": 0.5}
    before = signal.getsignal(signal.SIGUSR1)
    first: dict[str, Any] = dict(names)
    second: dict[str, Any] = dict(names)
    try:
        exec(code, first)
        first["guard"].finish()  # as the end of its process would
        exec(code, second)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (first["point"], second["point"].iteration) == (None, 5000)


def test_heartbeat_of_the_readme_is_read_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop with its one line leaves the last iteration and its loss."""
    monkeypatch.setenv("SLURM_GUARD_RUN", "run")
    monkeypatch.setattr(import_module("slurm_guard.training.heartbeat"), "_beaters", {})
    code, _ = _code(ROOT / "README.md", "python")
    exec(code, {"iterations": 3, "loss": 0.5})
    said = read_heartbeat(os.getpid())
    assert said is not None
    assert (said.iteration, said.loss) == (2, 0.5)


def test_reasons_in_recovery_are_the_ladders_own() -> None:
    """Every reason in the table of code 86 is one that the ladder can give."""
    table = (ROOT / "docs" / "recovery.md").read_text().partition("| the reason |")[2].partition("\n\n")[0]
    reasons = [row.split("|")[1].strip() for row in table.splitlines()[2:]]
    assert len(reasons) >= 8
    assert [reason for reason in reasons if reason not in inspect.getsource(ladder)] == []


def test_exit_code_is_the_default() -> None:
    """The pages name the exit code that the settings have."""
    for page in ("README.md", "docs/recovery.md"):
        assert f"code {Settings().exit_code}" in (ROOT / page).read_text()


def test_picture_shows_a_demo_that_worked() -> None:
    """docs/demo.svg was made by a demo in which every claim held."""
    picture = (ROOT / "docs" / "demo.svg").read_text()
    assert "COMPLETED" in picture
    assert "✗" not in picture
