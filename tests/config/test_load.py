"""Settings come from five places; what is wrong is one line with source, key, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_guard.config.load import find_misspelt, load_settings
from slurm_guard.errors import ConfigError
from slurm_guard.model.limits import Settings


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load(
    site: Path | None = None,
    job: Path | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, str | bool] | None = None,
) -> tuple[Settings, frozenset[str]]:
    return load_settings(site=site, job_file=job, environment=environment or {}, flags=flags or {})


def test_nothing_given_is_the_table_of_defaults() -> None:
    """Without any source the settings are the defaults, and none is the user's own."""
    assert load(environment={"SLURM_GUARD_RUN": "x", "SLURM_GUARD_ATTEMPT": "1"}) == (Settings(), frozenset())


def test_later_sources_win(tmp_path: Path) -> None:
    """Defaults < site < job file < environment < flags; only the last three are the user's own."""
    site = write(tmp_path / "site.toml", "[kill]\ngrace_s = 1\n[scene]\ndump_s = 2\nlog_lines = 7\n")
    job = write(
        tmp_path / "job.toml", "[kill]\ngrace_s = 3\n[heartbeat]\nstall_s = 900\n[scene]\ndump_s = 4\n"
    )
    environment = {"SLURM_GUARD_GRACE_S": "5", "SLURM_GUARD_OBSERVE": "yes", "SLURM_GUARD_STATE_DIR": "/e"}
    settings, own = load(site, job, environment, {"grace_s": "6.5", "observe": False})
    assert settings == Settings(grace_s=6.5, dump_s=4.0, log_lines=7, observe=False, state_dir="/e")
    assert own == {"grace_s", "dump_s", "stall_s", "observe", "state_dir"}
    assert type(settings.dump_s) is float


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[hartbeat]\nstall_s = 1", "job.toml: [hartbeat] is no section: did you mean heartbeat?"),
        ("[kill]\ngrace = 1", "job.toml: kill.grace = 1 is not known: did you mean kill.grace_s?"),
        ("[kill]\nstall_s = 9", "job.toml: kill.stall_s = 9 is not known: did you mean heartbeat.stall_s?"),
        ("stall_s = 9", "job.toml: stall_s = 9 stands outside its section: put it under [heartbeat]"),
        ("[kill]\ngrace_s = '1'", "kill.grace_s = '1' is of the wrong type: give a number from 0 to 49"),
        ("[kill]\ngrace_s = true", "kill.grace_s = true is of the wrong type: give a number from 0 to 49"),
        ("[kill]\ngrace_s = 50", "kill.grace_s = 50.0 is out of bounds: give a number from 0 to 49"),
        ("[kill]\ngrace_s = nan", "kill.grace_s = nan is not finite: give a number from 0 to 49"),
        (
            "[scene]\nlog_lines = 1.0",
            "scene.log_lines = 1.0 is of the wrong type: give a whole number from 1 to",
        ),
        ("[guard]\nobserve = 1", "guard.observe = 1 is of the wrong type: give true or false"),
        (
            "[recovery]\nrecovery = 'no'",
            "recovery.recovery = 'no' is not known: give one of auto, restart, req",
        ),
        ('[paths]\nstate_dir = "a\\u0001"', "holds unprintable characters: give text"),
        ("[kill\ngrace_s = 1", "job.toml: line 1, column 6 is no TOML:"),
        ("[kill]\ngrace_s =", "is no TOML:"),
        ("locked = ['kill.grace_s']", "is for the site's file only: take it out"),
        ("[breaker]\ndrain_limit = 1", "job.toml: [breaker] is for the site's file only: take it out"),
        ("[kill]\ngrace_s = 1\n[kill]", "no TOML: [kill] stands there twice: put all its keys under one"),
        ("[kill]\ngrace_s = 1\ngrace_s = 2", "no TOML: a key stands there twice: keep one"),
    ],
)
def test_wrong_file(tmp_path: Path, text: str, told: str) -> None:
    """Each mistake in a file is one line that says where and what to do."""
    with pytest.raises(ConfigError) as caught:
        load(job=write(tmp_path / "job.toml", text))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[braker]\n", "[braker] is no section: did you mean breaker?"),
        (
            "[zzz]\n",
            (
                "known are guard, numeric, heartbeat, hardware, scene, kill, recovery, checkpoint, paths, "
                "hooks, node, "
            ),
        ),
        ("drain_limit = 3\n", "drain_limit = 3 stands outside its section: put it under [breaker]"),
    ],
)
def test_the_sites_file_has_the_administrators_sections_too(tmp_path: Path, text: str, told: str) -> None:
    """Whoever misspells one of them is helped like everybody else."""
    with pytest.raises(ConfigError) as caught:
        load(site=write(tmp_path / "site.toml", text))
    assert told in str(caught.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that was named must be there, and be text."""
    with pytest.raises(
        ConfigError, match=r"gone\.toml: cannot be read \(No such file or directory\): correct"
    ):
        load(job=tmp_path / "gone.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml: byte 2 is not UTF-8"):
        load(job=tmp_path / "latin.toml")


@pytest.mark.parametrize("value", ["", "soon", "1e400", "-1", "inf"])
def test_wrong_variable(value: str) -> None:
    """A variable is named as it is written in the environment."""
    with pytest.raises(
        ConfigError, match=r"^environment: SLURM_GUARD_GRACE_S = .* give a number from 0 to 49$"
    ):
        load(environment={"SLURM_GUARD_GRACE_S": value})


def test_lock(tmp_path: Path) -> None:
    """What the site locks can be repeated but not changed, from wherever."""
    site = write(tmp_path / "site.toml", 'locked = ["kill.grace_s", "guard.observe"]\n[kill]\ngrace_s = 20\n')
    assert load(site, flags={"grace_s": "20"})[0].grace_s == 20
    with pytest.raises(
        ConfigError, match=r"command line: --grace-s = 5\.0 is locked by .*site\.toml: take it out"
    ):
        load(site, flags={"grace_s": "5"})
    with pytest.raises(ConfigError, match=r"SLURM_GUARD_OBSERVE = True is locked"):
        load(site, environment={"SLURM_GUARD_OBSERVE": "1"})


@pytest.mark.parametrize("locked", ['"kill.grace_s"', '["kill.grace"]', "[1]"])
def test_wrong_lock(tmp_path: Path, locked: str) -> None:
    """A lock that locks nothing is an error, not a silence."""
    with pytest.raises(ConfigError, match=r"site\.toml: locked = "):
        load(write(tmp_path / "site.toml", f"locked = {locked}"))


def test_rule_for_milestones_that_is_none() -> None:
    """Said before the job begins, wherever it was written."""
    assert load(flags={"milestone_keep": "last 3, size 2 TB"})[0].milestone_keep == "last 3, size 2 TB"
    with pytest.raises(ConfigError, match=r"paths\.milestone_keep = 'last' is no rule: write all, or last N"):
        load(environment={"SLURM_GUARD_MILESTONE_KEEP": "last"})


def test_settings_that_cannot_hold_together() -> None:
    """Nothing may move the kill past the hard limit, nor the hard stall limit before the other."""
    assert load(flags={"dump_s": "20", "grace_s": "30"})[0].grace_s == 30
    with pytest.raises(
        ConfigError, match=r"dump_s = 20 and kill\.grace_s = 30\.5 cannot hold together.* lower one"
    ):
        load(flags={"dump_s": "20", "grace_s": "30.5"})
    with pytest.raises(ConfigError, match=r"stall_hard_s = 5 is below heartbeat\.stall_s = 9"):
        load(flags={"stall_s": "9", "stall_hard_s": "5"})


def test_long_stall_limit_takes_the_hard_one_along() -> None:
    """Who only gives training more time than the default hard limit means that one too."""
    settings, own = load(flags={"stall_s": "7200"})
    assert (settings.stall_hard_s, own) == (7200.0, frozenset({"stall_s"}))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SLURM_GUARD_STAL_S", "SLURM_GUARD_STALL_S"),
        ("SLURM_GUARD_MAX_RESTART", "SLURM_GUARD_MAX_RESTARTS"),
        ("SLURM_GUARD_Observe", "SLURM_GUARD_OBSERVE"),
        ("slurm_guard_grace_s", "SLURM_GUARD_GRACE_S"),
        ("SLURM_GUARD_NONFINIT_LIMIT", "SLURM_GUARD_NONFINITE_LIMIT"),
    ],
)
def test_a_misspelt_variable_is_told_and_obeyed_not(name: str, meant: str) -> None:
    """The nearest setting is named; the value itself goes nowhere."""
    assert find_misspelt({name: "7"}) == [f"{name} is no setting: did you mean {meant}?"]
    assert load(environment={name: "7"}) == (Settings(), frozenset())


def test_variables_that_are_no_settings_are_not_told() -> None:
    """Those of slurm-guard itself, every setting, and what only begins alike."""
    own = [
        "RUN",
        "ATTEMPT",
        "RESUME_FROM",
        "TRIALS",
        "HEARTBEAT",
        "SPOOL",
        "VENV",
        "REAL_LOGS",
        "REQUIRE_SLURM",
        "MY_OWN_NOTE",
        "",
    ]
    settings = [setting.name.upper() for setting in Settings.table()]
    assert find_misspelt({f"SLURM_GUARD_{name}": "1" for name in own + settings}) == []
    assert find_misspelt({"SLURM_GUARDS_STAL_S": "1", "STALL_S": "1"}) == []
