"""What srun and slurmstepd say on stderr about tasks that end and steps that are ended.

The texts are those of Slurm 22.05 to 26.05: the prefix of slurmstepd is `slurmstepd: error:` up to
24.11 and a time stamp later; `launch/slurm: _task_finish:` stands in front of the same words with
`-v`. A task that ends with code 0 is not spoken of.
"""

from __future__ import annotations

import re

from slurm_guard.model.reading import NodeLost, TaskExit
from slurm_guard.policy.ending import Ending

_WHO = r"(?:\s*\d{1,6}: )?(?:srun: |slurmstepd(?:-\S+)?: |\[\d{4}-\d\d-\d\dT[\d:.]+\] )(?:error: )?"
_TASK = re.compile(
    _WHO
    + r"(?:launch/slurm: )?(?:_task_finish: )?(?P<node>[\w.,\[\]-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)"
)
_CODE = re.compile(r"Exited with exit code (\d{1,3})")
_CORE_DUMPED = " (core dumped)"
_SIGNALS = {
    "Hangup": "HUP",
    "Interrupt": "INT",
    "Quit": "QUIT",
    "Illegal instruction": "ILL",
    "Trace/breakpoint trap": "TRAP",
    "Aborted": "ABRT",
    "Bus error": "BUS",
    "Floating point exception": "FPE",
    "Killed": "KILL",
    "User defined signal 1": "USR1",
    "Segmentation fault": "SEGV",
    "User defined signal 2": "USR2",
    "Broken pipe": "PIPE",
    "Alarm clock": "ALRM",
    "Terminated": "TERM",
    "CPU time limit exceeded": "XCPU",
    "File size limit exceeded": "XFSZ",
    "Bad system call": "SYS",
    "Out Of Memory": "OOM",
}
_OTHER_SIGNAL = re.compile(
    r"(?:Real-time signal|Unknown signal) -?\d+|Power failure|I/O possible|Stack fault"
)

_NODE_LOST = re.compile(_WHO + r"(?:launch/slurm: )?(?:\w+: )?Node failure on (?P<node>[\w.,\[\]-]+)")
_CANCELLED = re.compile(
    _WHO + r"\*\*\* (?P<what>JOB|STEP|STEPD|HETJOB)\b.{0,200}? (?:CANCELLED|TERMINATED) AT \S+"
    r"(?: DUE [Tt][Oo] (?P<why>.+?))? \*\*\*"
)
_ABORT = re.compile(
    r"srun: (?:error: )?(?:launch/slurm: )?(?:_step_signal: |launch_p_step_terminate: )?"
    r"(?:forcing job termination|job abort in progress|sending Ctrl-C to StepId=|Job step aborted"
    r"|Terminating (?:StepId=|job step )|Force Terminated |Timed out waiting for job step to complete)"
)


def parse_srun_line(line: bytes) -> TaskExit | NodeLost | Ending | None:
    """What this line of stderr says, or None. Signals are named without SIG; `OOM` is Slurm's own.

    The node of a TaskExit is the host list as srun wrote it, so `n[1-2]` for tasks of two nodes.

    >>> parse_srun_line(b"srun: error: n1: tasks 0-1,5: Killed")
    TaskExit(node='n1', tasks=(0, 1, 5), code=None, signal='KILL')
    """
    if b"srun: " not in line and b"***" not in line:
        return None
    text = line.decode("utf-8", "replace").strip("\r\n")
    if found := _TASK.match(text):
        return _task_exit(found["node"], found["tasks"], found["how"])
    if found := _NODE_LOST.match(text):
        return NodeLost(found["node"])
    if found := _CANCELLED.match(text):
        what = "job" if found["what"] in {"JOB", "HETJOB"} else "step"
        why = f" ({found['why'].lower()})" if found["why"] else ""
        return Ending(f"Slurm cancelled the {what}{why}")
    if found := _ABORT.match(text):
        return Ending(f"srun says {text.partition('srun: ')[2].removeprefix('error: ')!r}")
    return None


def _task_exit(node: str, tasks: str, how: str) -> TaskExit | None:
    numbers = _parse_tasks(tasks)
    if not numbers:
        return None
    if code := _CODE.fullmatch(how):
        return TaskExit(node, numbers, code=int(code[1])) if int(code[1]) else None
    cause = how.removesuffix(_CORE_DUMPED)
    signal = _SIGNALS.get(cause) or (cause if _OTHER_SIGNAL.fullmatch(cause) else None)
    return TaskExit(node, numbers, signal=signal) if signal else None


def _parse_tasks(text: str) -> tuple[int, ...]:
    """The numbers of `0-1,5`; empty where the text is no such list or names absurdly many."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or len(part) > 16:
            return ()
        span = range(int(first), int(last or first) + 1)
        if len(span) > 1_000_000:
            return ()
        numbers.extend(span)
    return tuple(numbers)
