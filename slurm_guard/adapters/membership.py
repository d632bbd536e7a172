"""Whose process is this: pure functions over environments, command lines and parents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch/distributed/run.py", "torch.distributed.launch",
              "accelerate launch", "accelerate.commands.launch", "deepspeed.launcher")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """What the environment of a process says. `own_rank` is RANK, `task` is SLURM_PROCID."""

    run: str = ""
    node: str = ""
    step_id: str = ""
    task: int | None = None
    local_task: int | None = None
    own_rank: int | None = None
    own_local_rank: int | None = None
    elastic: bool = False

    @property
    def rank(self) -> int | None:
        """RANK where there is one, else SLURM_PROCID."""
        return self.task if self.own_rank is None else self.own_rank

    @property
    def local_rank(self) -> int | None:
        """LOCAL_RANK beside RANK, SLURM_LOCALID beside SLURM_PROCID."""
        return self.local_task if self.own_rank is None else self.own_local_rank


@dataclass(slots=True)
class Member:
    """A process of the run. `root` is the pid of the rank it belongs to, once that was seen."""

    pid: int
    parent: int
    python: bool
    command: str
    facts: Facts
    root: int | None = None


def parse_environ(data: bytes) -> dict[str, str]:
    """The variables of a /proc/PID/environ."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def parse_facts(data: bytes) -> Facts | None:
    """The facts of a task's environment; None without a run token or outside a task.

    The training srun itself bears the token too, but no step id.
    """
    if b"SLURM_GUARD_RUN=" not in data:
        return None
    env = parse_environ(data)
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID", ""))
    if not env.get("SLURM_GUARD_RUN") or not step or "SLURM_PROCID" not in env:
        return None
    return replace(
        _rank_facts(env),
        run=env["SLURM_GUARD_RUN"],
        node=env.get("SLURMD_NODENAME", ""),
        step_id=f"{env.get('SLURM_JOB_ID', '')}.{step}",
    )


def parse_rank_facts(data: bytes) -> Facts:
    """What the environment of any process says of its rank, in Slurm or not.

    >>> parse_rank_facts(b"RANK=3\\0LOCAL_RANK=1\\0").rank
    3
    """
    env = parse_environ(data)
    return _rank_facts({"RANK": env.get("LOCAL_RANK", ""), **env})


def _rank_facts(env: Mapping[str, str]) -> Facts:
    return Facts(
        task=_number(env.get("SLURM_PROCID")),
        local_task=_number(env.get("SLURM_LOCALID")),
        own_rank=_number(env.get("RANK")),
        own_local_rank=_number(env.get("LOCAL_RANK")),
        elastic="TORCHELASTIC_RUN_ID" in env,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def parse_listpids(text: str) -> dict[int, tuple[str, int | None, int | None]]:
    """`scontrol listpids`: pid -> (step, local task, task); batch and extern steps left out.

    >>> parse_listpids("PID JOBID STEPID LOCALID GLOBALID\\n70 9 0 1 3\\n71 9 0 - -\\n72 9 batch 0 0\\n")
    {70: ('9.0', 1, 3), 71: ('9.0', None, None)}
    """
    found = {}
    for line in text.splitlines():
        word = line.split()
        if len(word) == 5 and word[0].isdigit() and word[2].isdigit():
            found[int(word[0])] = (f"{word[1]}.{word[2]}", _number(word[3]), _number(word[4]))
    return found


def is_launcher(command: str) -> bool:
    """Whether this is the command line of torchrun or one of its kind."""
    return any(word in command for word in _LAUNCHERS)


def choose_launchers(members: Mapping[int, Member]) -> set[int]:
    """The Python processes that start ranks and are none, such as torchrun's agent.

    By their command line; else a process without RANK above one with RANK is one when torchrun started
    the lower one, or when the two disagree about the rank. (A script that sets RANK for itself
    passes it to its compile workers, and is a rank.)
    """
    launchers = {m.pid for m in members.values() if m.python and is_launcher(m.command)}
    # A fork that has not yet become its program, and a DataLoader worker's parent, share the command.
    launchers = {pid for pid in launchers if members[pid].facts.own_rank is None}
    for member in members.values():
        if member.facts.own_rank is None or not member.python:
            continue
        for above in _ancestors(member, members):
            facts = above.facts
            without_rank = above.python and facts.own_rank is None and facts.task is not None
            if without_rank and (member.facts.elastic or facts.task != member.facts.own_rank):
                launchers.add(above.pid)
    return launchers


def choose_root(member: Member, members: Mapping[int, Member], launchers: set[int]) -> int | None:
    """The rank a process belongs to: the topmost Python process with a rank at or above it.

    A process that outlived its rank stays with it: it is no rank itself.
    """
    if member.pid in launchers:
        return None
    root: int | None = None
    for process in (member, *_ancestors(member, members)):
        orphan = process.parent not in members and process.root != process.pid
        if orphan and process.root is not None and process.root not in launchers:
            return process.root
        if process.python and process.pid not in launchers and process.facts.rank is not None:
            root = process.pid
    return root


def _ancestors(member: Member, members: Mapping[int, Member]) -> list[Member]:
    found: list[Member] = []
    above = members.get(member.parent)
    while above is not None and above not in found:
        found.append(above)
        above = members.get(above.parent)
    return found
