"""What stands in a job's journal: broken lines are left out, and each command has its own past."""

from __future__ import annotations

from slurm_guard.policy.journal import choose_newest_command, parse_journal


def test_broken_lines_are_counted_and_left_out() -> None:
    """A crash in mid-write, a number where an entry should be, brackets without end."""
    data = b'{"what":"head"}\n\n{"what":"ru\n7\n' + b"[" * 100_000 + b'\n{"what":"run"}\n'
    assert parse_journal(data) == ([{"what": "head"}, {"what": "run"}], 3)


def test_the_command_that_ran_last_has_its_own_entries() -> None:
    """Whatever ran before it in the same job."""
    first, other = {"what": "run", "command": "a"}, {"what": "run", "command": "b"}
    assert choose_newest_command([first, other, first]) == [first, first]
    assert choose_newest_command([{"what": "head"}]) == [{"what": "head"}]
    assert choose_newest_command([]) == []
