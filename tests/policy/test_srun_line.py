"""srun's and slurmstepd's words on stderr. The lines are those of real jobs (22.05) and of later releases."""

from __future__ import annotations

import pytest

from slurm_guard.model.reading import NodeLost, TaskExit
from slurm_guard.policy.ending import Ending
from slurm_guard.policy.srun_line import parse_srun_line

NODE_FAILURE = (
    "slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-29T18:53:33 "
    "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
)
SIGNAL_KILLED = (  # the prefix from 25.05 on
    "[2026-09-25T02:29:47.645] error: *** STEP 847885.6 ON n1 CANCELLED AT 2026-09-25T02:29:47 "
    "DUE to SIGNAL Killed ***"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun: error: dev-n2: task 3: Exited with exit code 3", TaskExit("dev-n2", (3,), code=3)),
        ("srun: error: dev-n1: tasks 0-2: Killed", TaskExit("dev-n1", (0, 1, 2), signal="KILL")),
        ("srun: error: n1: tasks 0-1,5: Killed\n", TaskExit("n1", (0, 1, 5), signal="KILL")),
        ("srun: error: n1: task 0: Segmentation fault", TaskExit("n1", (0,), signal="SEGV")),
        (
            "srun: error: n1: tasks 1-2: Segmentation fault (core dumped)",
            TaskExit("n1", (1, 2), signal="SEGV"),
        ),
        ("srun: error: n1: task 3: Bus error", TaskExit("n1", (3,), signal="BUS")),
        ("srun: error: n1: task 3: Terminated", TaskExit("n1", (3,), signal="TERM")),
        ("srun: error: n1: task 3: Aborted (core dumped)", TaskExit("n1", (3,), signal="ABRT")),
        ("srun: error: n1: task 3: Out Of Memory", TaskExit("n1", (3,), signal="OOM")),
        ("srun: error: n1: task 3: User defined signal 1", TaskExit("n1", (3,), signal="USR1")),
        ("srun: error: n1: task 3: Real-time signal 0", TaskExit("n1", (3,), signal="Real-time signal 0")),
        (
            "srun: error: n[1-2],n7: tasks 0-3: Exited with exit code 1",
            TaskExit("n[1-2],n7", (0, 1, 2, 3), code=1),
        ),
        (
            "srun: launch/slurm: _task_finish: n2: task 3: Exited with exit code 9",
            TaskExit("n2", (3,), code=9),
        ),
        ("0: srun: error: n2: task 3: Killed", TaskExit("n2", (3,), signal="KILL")),
    ],
)
def test_task_exits(line: str, expected: TaskExit) -> None:
    """A task that ended badly: node, task numbers, and its code or signal."""
    assert parse_srun_line(line.encode()) == expected


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-29T18:54:25 ***", "step"),
        ("slurmstepd-dev-n1: error: *** STEP 3.9 ON dev-n1 CANCELLED AT 2026-11-29T18:54:25 ***", "step"),
        ("0: slurmstepd-dev-n1: error: *** STEP 4.0 ON dev-n1 CANCELLED AT 2026-11-29T18:53:33 ***", "step"),
        ("slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-29T18:53:33 ***", "job"),
        (
            "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-29T18:53:33 DUE TO TIME LIMIT ***",
            "time limit",
        ),
        (
            "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-29T18:53:33 DUE TO PREEMPTION ***",
            "preemption",
        ),
        (
            "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-29T18:53:33 DUE TO JOB REQUEUE ***",
            "requeue",
        ),
        (
            NODE_FAILURE,
            "node failure",
        ),
        (
            SIGNAL_KILLED,
            "signal killed",
        ),
        ("srun: forcing job termination", "forcing"),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", "aborted"),
        ("srun: launch/slurm: _step_signal: Terminating StepId=3.9", "Terminating"),
        ("srun: Terminating StepId=3.9", "Terminating"),
        ("srun: Force Terminated StepId=3.9", "Force"),
        ("srun: sending Ctrl-C to StepId=3.14", "Ctrl-C"),
        ("srun: error: Timed out waiting for job step to complete", "Timed out"),
    ],
)
def test_endings(line: str, word: str) -> None:
    """Somebody ends the step or the job; the reason says who or why."""
    ending = parse_srun_line(line.encode())
    assert isinstance(ending, Ending)
    assert word in ending.reason


@pytest.mark.parametrize(
    "line",
    [
        "srun: interrupt (one more within 1 sec to abort)",
        "srun: StepId=3.14 tasks 0-3: running",
        "srun: First task exited 2s ago",
        "srun: launch/slurm: _task_finish: dev-n1: tasks 0-2: Completed",
        "srun: error: n1: task 0: Exited with exit code 0",
        "srun: error: n1: task 0: Something new",
        "srun: error: n1: tasks 9-0-1,: Killed",
        "srun: error: n1: tasks 0-99999999: Killed",
        "srun: error: Unable to create step for job 5: Invalid user id",
        "slurmstepd: error: *** STEP 3.0 ON n1 UNCORRECTABLE MEMORY ERROR AT 2026-11-29T18:53:33 ***",
        "error: n1: task 3: Killed",
        "the log of srun: forcing job termination was seen",
        "*** STEP 12.0 ON n1 CANCELLED AT 2026-11-29T18:54:25 ***",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    """A first Ctrl-C, status lines, code 0, and user text that only resembles Slurm's."""
    assert parse_srun_line(line.encode()) is None


def test_bytes_that_are_no_text_are_harmless() -> None:
    """Binary output is nobody's word."""
    assert parse_srun_line(b"\xff\xfe srun: \x00\xff ***") is None


def test_a_lost_node_is_named() -> None:
    """srun says it once for a step that loses a node."""
    assert parse_srun_line(b"srun: error: Node failure on n2\n") == NodeLost("n2")
    assert parse_srun_line(b"3: Node failure on n2\n") is None
