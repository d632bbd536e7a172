"""`slurm-guard site`: what it writes, what it keeps, and what it takes away again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_guard.adapters import interpreter
from slurm_guard.cli import site
from slurm_guard.cli.app import main
from slurm_guard.config.compiled import load_compiled
from slurm_guard.policy.site_kit import hash_text

pytestmark = pytest.mark.usefixtures("good_code")

Say = pytest.CaptureFixture[str]
SETTINGS = "etc/slurm-guard"
SYSTEM = {"etc", "etc/tmpfiles.d", "etc/logrotate.d", "var", "var/lib", "var/log"}
"""Directories of every system, which an empty root lacks."""
HOOKS = ("prolog.d/50-slurm-guard", "epilog.d/50-slurm-guard", "health-check")


def install(root: Path, *words: str) -> int:
    """Install below `root`."""
    return main(["site", "install", "--root", str(root), *words])


def list_files(root: Path) -> set[str]:
    """Every file and directory below it."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_it_writes_hooks_settings_and_snippets(tmp_path: Path, capsys: Say) -> None:
    """The scripts call this interpreter, isolated; slurmd runs whatever stands beside them: nothing."""
    assert install(tmp_path, "--gpus", "8") == 0
    folder = tmp_path / SETTINGS
    for name in HOOKS:
        assert (folder / name).stat().st_mode & 0o7777 == 0o755
        assert f"{sys.executable} -I -m slurm_guard.hooks" in (folder / name).read_text()
    for folder_name in ("prolog.d", "epilog.d"):
        assert os.listdir(folder / folder_name) == ["50-slurm-guard"]
    assert load_compiled(folder / "site.json").settings.probe_s == 5.0
    assert (folder / "expected-gpus").read_text() == "8\n"
    assert "Prolog=/etc/slurm-guard/prolog.d/*\n" in (folder / "slurm.conf.snippet").read_text()
    assert (tmp_path / "var/log/slurm-guard").stat().st_mode & 0o777 == 0o750
    told = capsys.readouterr().err
    assert "next: install on every node first, then slurm.conf on the controller takes over the lines" in told
    assert f"the scripts name {sys.executable}, and {tmp_path} has no such file" in told
    python = tmp_path / sys.executable.lstrip("/")
    python.parent.mkdir(parents=True)
    python.touch()
    install(tmp_path, "--slurm-conf", "/opt/slurm.conf")
    assert "the scripts name /opt/slurm.conf, and" in capsys.readouterr().err


def test_again_it_changes_nothing(tmp_path: Path, capsys: Say) -> None:
    """And says so."""
    install(tmp_path, "--gpus", "8")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert install(tmp_path, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert {row["act"] for row in said["files"]} == {"unchanged"}
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    changed = {path.name for path in after if after[path] != before[path]}
    assert changed <= {"installed.json", "site.json"}


def test_a_changed_setting_reaches_the_hooks(tmp_path: Path) -> None:
    """site.toml is the person's; what is compiled of it and the deadlines in the scripts follow."""
    install(tmp_path)
    text = "[prolog]\nprobe_s = 2.5\n[guard]\nobserve = true\n"
    (tmp_path / SETTINGS / "site.toml").write_text(text)
    assert install(tmp_path) == 0
    assert (tmp_path / SETTINGS / "site.toml").read_text() == text
    assert load_compiled(tmp_path / SETTINGS / "site.json").settings.probe_s == 2.5
    assert "timeout -k 1 12 " in (tmp_path / SETTINGS / HOOKS[0]).read_text()


def test_an_older_file_is_replaced_and_a_changed_one_kept(tmp_path: Path, capsys: Say) -> None:
    """What install itself wrote is known by the mark that it left."""
    install(tmp_path)
    record = tmp_path / SETTINGS / "installed.json"
    prolog, epilog = (tmp_path / SETTINGS / name for name in HOOKS[:2])
    prolog.write_text("#!/bin/sh\n# an older release\n")
    body = json.loads(record.read_text())
    body["files"][f"{SETTINGS}/{HOOKS[0]}"] = hash_text(prolog.read_bytes())
    record.write_text(json.dumps(body))
    epilog.write_text("#!/bin/sh\nexit 0\n")
    capsys.readouterr()
    assert install(tmp_path) == 3
    assert "slurm_guard.hooks prolog" in prolog.read_text()
    assert epilog.read_text() == "#!/bin/sh\nexit 0\n"
    said = capsys.readouterr().out
    assert f"kept       {epilog}: changed by hand: move it away and install again for the new one" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[prolog]\nprobe_s = 99\n", "prolog.probe_s"),
        ("[numeric]\nspike_factor = 0\n", "numeric.spike_factor"),
        ("[prolog\n", "is no TOML"),
        ("[prolog]\nprobes_s = 1\n", "is not known"),
    ],
)
def test_a_wrong_site_file_is_one_line_and_no_write(
    tmp_path: Path, capsys: Say, text: str, said: str
) -> None:
    """The hooks go on with what they have."""
    install(tmp_path)
    before = (tmp_path / SETTINGS / "site.json").read_bytes()
    (tmp_path / SETTINGS / "site.toml").write_text(text)
    capsys.readouterr()
    assert install(tmp_path) == 2
    err = capsys.readouterr().err
    assert (said in err, err.count("\n")) == (True, 1)
    assert (tmp_path / SETTINGS / "site.json").read_bytes() == before


def test_a_wrong_table_of_the_sites_own_is_no_write_either(tmp_path: Path, capsys: Say) -> None:
    """Nothing is half installed."""
    (tmp_path / SETTINGS).mkdir(parents=True)
    (tmp_path / SETTINGS / "gpu-profiles.toml").write_text("[h100]\nwarm = 3\n")
    assert install(tmp_path) == 2
    assert "gpu-profiles.toml: h100.warm = 3 is not known" in capsys.readouterr().err
    assert list_files(tmp_path) == {"etc", SETTINGS, f"{SETTINGS}/gpu-profiles.toml"}


def test_a_site_file_of_ones_own_is_for_a_node_without(tmp_path: Path, capsys: Say) -> None:
    """It never replaces one that is there."""
    own = tmp_path / "mine.toml"
    own.write_text("[sweep]\nundrain = true\n")
    root = tmp_path / "root"
    root.mkdir()
    assert install(root, "--site", str(own)) == 0
    assert load_compiled(root / SETTINGS / "site.json").settings.undrain is True
    own.write_text("[sweep]\nundrain = false\n")
    capsys.readouterr()
    assert install(root, "--site", str(own)) == 2
    assert "is there and differs from" in capsys.readouterr().err


def test_uninstall_leaves_nothing(tmp_path: Path, capsys: Say) -> None:
    """Of its own; the system's directories stay, also those that install has made."""
    install(tmp_path, "--gpus", "1")
    assert main(["site", "uninstall", "--root", str(tmp_path)]) == 0
    assert list_files(tmp_path) == SYSTEM
    assert main(["site", "uninstall", "--root", str(tmp_path)]) == 1
    assert "there is nothing to take away" in capsys.readouterr().err


def test_uninstall_leaves_what_is_a_persons_and_what_happened(tmp_path: Path, capsys: Say) -> None:
    """--purge takes records and changed files as well, and not what install never wrote."""
    install(tmp_path)
    (tmp_path / SETTINGS / "site.toml").write_text("[sweep]\nundrain = true\n")
    (tmp_path / SETTINGS / "xid.toml").touch()
    (tmp_path / "var/lib/slurm-guard/archive/7-ab").mkdir(parents=True)
    (tmp_path / "var/lib/slurm-guard/ledger.jsonl").touch()
    (tmp_path / "var/log/slurm-guard/hooks.log.1.gz").touch()
    main(["site", "uninstall", "--root", str(tmp_path)])
    said = capsys.readouterr().out
    for name in (f"{SETTINGS}/site.toml", "var/lib/slurm-guard/ledger.jsonl", "var/lib/slurm-guard/archive"):
        assert f"kept       {tmp_path}/{name}: " in said
    kept = {path for path in list_files(tmp_path) if (tmp_path / path).is_file()}
    logs = {"var/lib/slurm-guard/ledger.jsonl", "var/log/slurm-guard/hooks.log.1.gz"}
    assert not (tmp_path / SETTINGS / "prolog.d").exists()
    record = f"{SETTINGS}/installed.json"
    assert kept == {f"{SETTINGS}/site.toml", f"{SETTINGS}/xid.toml", record, *logs}
    assert json.loads((tmp_path / record).read_text())["files"].keys() == {f"{SETTINGS}/site.toml"}
    assert main(["site", "uninstall", "--purge", "--root", str(tmp_path)]) == 0
    assert list_files(tmp_path) == SYSTEM | {SETTINGS, f"{SETTINGS}/xid.toml"}


def test_uninstall_spares_directories_that_an_older_install_called_its_own(tmp_path: Path) -> None:
    """An empty /etc/tmpfiles.d is the system's."""
    install(tmp_path)
    record = tmp_path / SETTINGS / "installed.json"
    body = json.loads(record.read_text())
    body["directories"] = ["etc", "etc/tmpfiles.d", "var", *body["directories"]]
    record.write_text(json.dumps(body))
    main(["site", "uninstall", "--root", str(tmp_path)])
    assert list_files(tmp_path) == SYSTEM


def test_code_that_is_not_roots_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Say
) -> None:
    """As root; anybody else may look at what root would refuse."""
    monkeypatch.setattr(
        site, "find_foreign_code", lambda: ["/home/a/bin (the interpreter) is not root's alone"]
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert install(tmp_path) == 1
    assert "root would run code that others can change: /home/a/bin" in capsys.readouterr().err
    assert list_files(tmp_path) == set()
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert install(tmp_path) == 0
    assert "root would refuse this: /home/a/bin" in capsys.readouterr().err


def test_a_root_of_somebody_elses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Say
) -> None:
    """Root writes no program into a directory that others can change."""
    monkeypatch.setattr(site, "find_foreign", str)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert install(tmp_path) == 1
    assert "is not root's alone" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_without_root_it_is_one_line(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Say) -> None:
    """That names the way to look at it all the same."""
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert main(["site", command]) == 2
    err = capsys.readouterr().err
    assert "needs root: run it as root, or look with `slurm-guard site render`" in err
    assert err.count("\n") == 1


def test_render_shows_what_install_writes(tmp_path: Path, capsys: Say) -> None:
    """To the terminal, or into a directory."""
    root, shown = tmp_path / "root", tmp_path / "shown"
    root.mkdir()
    install(root, "--gpus", "4")
    assert main(["site", "render", "--output", str(shown), "--gpus", "4"]) == 0
    files = {name for name in list_files(root) if (root / name).is_file()} - {f"{SETTINGS}/installed.json"}
    assert {name: (shown / name).read_bytes() for name in files} == {
        name: (root / name).read_bytes() for name in files
    }
    own = tmp_path / "mine.toml"
    own.write_text("[prolog]\nprobe_s = 1.5\n")
    main(["site", "render", "--output", str(shown), "--site", str(own)])
    assert load_compiled(shown / SETTINGS / "site.json").settings.probe_s == 1.5
    capsys.readouterr()
    main(["site", "render"])
    out = capsys.readouterr().out
    assert "# --- /etc/slurm-guard/prolog.d/50-slurm-guard 0755\n#!/bin/sh\n" in out
    assert " characters in one line: --output DIR writes them)\n" in out
    assert max(map(len, out.splitlines())) <= 500


def test_what_another_install_is_writing_is_left_to_it(tmp_path: Path) -> None:
    """Two at once: neither takes the other's file for a leftover. The record's own leftovers go too."""
    install(tmp_path)
    folder = tmp_path / SETTINGS
    dead = folder / ".installed.json.4194305"
    dead.touch()
    with subprocess.Popen(["sleep", "60"]) as other:
        theirs = folder / "prolog.d" / f".50-slurm-guard.{other.pid}"
        theirs.touch()
        assert install(tmp_path) == 0
        assert theirs.exists()
        other.kill()
    assert install(tmp_path) == 0
    assert not theirs.exists()
    assert not dead.exists()


def test_what_a_killed_write_left_is_cleared(tmp_path: Path) -> None:
    """Of our own names only."""
    install(tmp_path)
    folder = tmp_path / SETTINGS / "prolog.d"
    (folder / ".50-slurm-guard.4194305").touch()
    (folder / "10-site").touch()
    install(tmp_path)
    assert sorted(os.listdir(folder)) == ["10-site", "50-slurm-guard"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_every_part_of_the_code_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single module that is another user's, or that others can write, is enough."""
    package = tmp_path / "package"
    package.mkdir(mode=0o755)
    module = package / "module.py"
    module.write_text("")
    monkeypatch.setattr(interpreter, "_PACKAGE", package)

    def find() -> list[str]:
        return [line for line in interpreter.find_foreign_code() if str(tmp_path) in line]

    module.chmod(0o644)
    assert find() == []
    module.chmod(0o646)
    assert find() == [f"{module} (the package) is not root's alone: chown root, chmod go-w"]
    module.chmod(0o644)
    os.chown(module, 65533, 65533)
    assert len(find()) == 1
    os.chown(module, 0, 0)
    package.chmod(0o777)
    assert find() == [f"{package} (the package) is not root's alone: chown root, chmod go-w"]


def test_a_package_that_does_not_compile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With file and line: every hook would let its job in unchecked."""
    monkeypatch.setattr(interpreter, "_PACKAGE", tmp_path)
    (tmp_path / "good.py").write_text("a = 1\n")
    assert interpreter.compile_package() == []
    (tmp_path / "bad.py").write_text("a = 1\nb = = 2\n")
    assert interpreter.compile_package() == [
        f"{tmp_path}/bad.py:2: invalid syntax: the package is broken, install it again"
    ]
