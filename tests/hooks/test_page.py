"""The site's program is called with one sentence, only where it is root's, and nobody waits for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_guard.hooks.page import page
from slurm_guard.hooks.place import Place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the program must be root's")
NOW_S = 1_000_000_000.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def make(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def wait_for(path: Path) -> str:
    while not (path.exists() and path.read_text().endswith("\n")):
        time.sleep(0.01)
    return path.read_text()


def test_the_sentence_is_one_argument_whatever_is_in_it(tmp_path: Path, place: Place) -> None:
    """No shell reads it, and a line break does not break it."""
    out = tmp_path / "out"
    program = make(tmp_path / "pager", f'#!/bin/sh\nprintf "%s|" "$#" "$1" "$PATH" >{out}\necho >>{out}\n')
    assert page(program, "drain", "n1", "n1 $(reboot) 'x'\n`y`", place=place, wall_s=NOW_S)
    assert wait_for(out) == "1|n1 $(reboot) 'x'\\n`y`|/usr/sbin:/usr/bin:/sbin:/bin|\n"


def test_the_program_has_none_of_our_descriptors_and_a_session_of_its_own(
    tmp_path: Path, place: Place
) -> None:
    """slurmd waits for all who hold the pipe of a hook."""
    out, go = tmp_path / "out", tmp_path / "go"
    os.mkfifo(go)
    text = f"#!/bin/sh\nread _ <{go}\n(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2; "
    text += f"[ $(ps -o sid= -p $$) = $$ ] && echo own) >{out}\n"
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    assert page(make(tmp_path / "pager", text), "drain", "n1", "x", place=place, wall_s=NOW_S)
    os.close(writer)
    assert os.read(reader, 1) == b""  # while it still runs
    os.close(reader)
    go.write_text("go\n")
    while not (out.exists() and len(out.read_text().split()) == 4):
        time.sleep(0.01)
    assert out.read_text().split() == ["/dev/null", "/dev/null", "/dev/null", "own"]


def test_one_page_in_ten_minutes_for_a_node_and_kind(tmp_path: Path, place: Place) -> None:
    """Another kind, another node and a later time have pages of their own."""
    program = make(tmp_path / "pager", "#!/bin/sh\n")
    asked = [("drain", "n1", 0), ("drain", "n1", 599), ("capped", "n1", 599), ("drain", "n2", 599),
             ("drain", "n1", 600), ("drain", "n1", -3600)]  # fmt: skip
    came = [page(program, kind, node, "x", place=place, wall_s=NOW_S + at) for kind, node, at in asked]
    assert came == [True, False, True, True, True, True]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o644])
def test_a_program_that_others_can_write_or_that_is_none_is_not_run(
    mode: int, tmp_path: Path, place: Place
) -> None:
    """And the log says which."""
    out = tmp_path / "out"
    program = make(tmp_path / "pager", f"#!/bin/sh\ntouch {out}\n", mode)
    assert not page(program, "drain", "n1", "x", place=place, wall_s=NOW_S)
    assert "nobody was paged: " in place.log.read_text()
    assert not out.exists()


def test_a_program_of_another_user_a_link_or_a_fifo_is_not_run(tmp_path: Path, place: Place) -> None:
    """Whoever can lay it there could run as root."""
    theirs = make(tmp_path / "theirs", "#!/bin/sh\n")
    os.chown(theirs, 1234, 0)
    (tmp_path / "link").symlink_to(make(tmp_path / "pager", "#!/bin/sh\n"))
    os.mkfifo(tmp_path / "fifo", 0o755)
    for number, name in enumerate(("theirs", "link", "fifo", "missing")):
        kind = f"kind{number}"
        assert not page(str(tmp_path / name), kind, "n1", "x", place=place, wall_s=NOW_S), name
    assert len(place.log.read_text().splitlines()) == 4


def test_a_site_without_a_program_is_silent(place: Place) -> None:
    """There is nothing to say about it."""
    assert not page("", "drain", "n1", "x", place=place, wall_s=NOW_S)
    assert not place.log.exists()


def test_a_state_directory_that_cannot_be_written_stops_no_page(tmp_path: Path, place: Place) -> None:
    """A full disk is a reason to call somebody."""
    place.state.parent.mkdir(parents=True)
    place.state.write_text("")
    assert page(make(tmp_path / "pager", "#!/bin/sh\n"), "drain", "n1", "x", place=place, wall_s=NOW_S)
