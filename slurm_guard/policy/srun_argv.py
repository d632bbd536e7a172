"""srun's own command line, understood just far enough to see where the command begins.

srun reads its options with getopt: an option may be shortened as long as it is unique, the first word
that is no option is the command, and a later option replaces an earlier one. The lists are those of
22.05 with what came and went up to 26.05; an option in neither list is taken for one without a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_VALUED = frozenset(
    """
    accel-bind account acctg-freq bb bbf bcast-exclude begin chdir cluster-constraint clusters comment
    constraint container container-id core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu
    cpus-per-task deadline delay-boot dependency distribution epilog error exclude export extra
    extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags
    het-group hint ignore-signals input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output pack-group partition
    power prefer priority profile prolog qos relative reservation segment signal slurmd-debug
    sockets-per-node switches task-epilog task-prolog thread-spec threads threads-per-core time time-min
    tmp treewidth tres-bind tres-per-task uid wait wckey
    """.split()  # noqa: SIM905
)
"""Options with a value in the next word or after "="."""
_BARE = frozenset(
    """
    async bcast compress consolidate-segments contiguous disable-status exact exclusive external-launcher
    get-user-env help hold immediate kill-on-bad-exit label multi-prog nice no-allocate no-kill
    oom-kill-step overcommit overlap oversubscribe preserve-env propagate pty quiet quit-on-interrupt
    reboot resv-ports send-libs share spread-job stepmgr test-only unbuffered usage use-min-nodes verbose
    version wait-for-children whole x11
    """.split()  # noqa: SIM905
)
"""Options without a value, or with one that can only follow "="."""
_LONG = _VALUED | _BARE
_SHORT_VALUED = frozenset("ABCDFGJLMNSTWbcdeimnopqrtwx")
# Their value can only follow in the same word.
_SHORT_ATTACHED = frozenset("IKk")
_SHORT_NAMES = {"o": "output", "e": "error", "x": "exclude"}


@dataclass(frozen=True, slots=True)
class SrunCall:
    """What one srun command line says. `options_end` is the index at which srun's own options
    end (a `--` may follow); `exclude` is the user's own `-x`."""

    output: str | None
    error: str | None
    exclude: str | None
    pty: bool
    options_end: int
    command: tuple[str, ...]


def parse_srun_argv(words: Sequence[str]) -> SrunCall:
    """The words after `srun`, as srun understands them.

    >>> call = parse_srun_argv(["-N2", "-o", "log.%t", "python", "train.py", "--pty"])
    >>> call.output, call.pty, call.command
    ('log.%t', False, ('python', 'train.py', '--pty'))
    """
    seen: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        name, value, valued = (_parse_long if words[at].startswith("--") else _parse_short)(words[at])
        at += 1
        if valued and value is None and at < len(words):
            value = words[at]
            at += 1
        seen[name] = value or ""
    command = words[at + 1 :] if "--" in words[at : at + 1] else words[at:]
    return SrunCall(
        seen.get("output"), seen.get("error"), seen.get("exclude"), "pty" in seen, at, tuple(command)
    )


def is_srun_option(word: str) -> bool:
    """Whether srun has this long option, shortened or not.

    >>> is_srun_option("--outp=x"), is_srun_option("--stal-s")
    (True, False)
    """
    name = word.split("=", 1)[0].removeprefix("--")
    return any(option.startswith(name) for option in _LONG)


def plan_restart_argv(words: Sequence[str], exclude: Sequence[str], nodes: int | None) -> list[str]:
    """The same words without the nodes `exclude`, on `nodes` nodes.

    The additions stand behind the user's own options, because srun obeys the last one; what the user
    excludes himself stays excluded.

    >>> plan_restart_argv(["-N", "4", "-x", "n9", "python", "t.py"], ["n2"], 3)
    ['-N', '4', '-x', 'n9', '-x', 'n9,n2', '-N', '3', 'python', 't.py']
    """
    call = parse_srun_argv(words)
    added = []
    if exclude:
        # A list with a slash is the name of a file, which cannot be joined with names.
        own = [call.exclude] if call.exclude and "/" not in call.exclude else []
        added += ["-x", ",".join([*own, *exclude])]
    if nodes is not None:
        added += ["-N", str(nodes)]
    return [*words[: call.options_end], *added, *words[call.options_end :]]


def _parse_long(word: str) -> tuple[str, str | None, bool]:
    """Its full name, its value if it stands in the same word, and whether it must have one."""
    name, equals, value = word[2:].partition("=")
    if name not in _LONG:
        longer = [option for option in _LONG if option.startswith(name)]
        name = longer[0] if len(longer) == 1 else name
    return name, value if equals else None, name in _VALUED


def _parse_short(word: str) -> tuple[str, str | None, bool]:
    """The same for a cluster like `-lN2`, of which only the last option can have a value."""
    for at, letter in enumerate(word[1:], start=1):
        if letter in _SHORT_VALUED:
            return _SHORT_NAMES.get(letter, letter), word[at + 1 :] or None, True
        if letter in _SHORT_ATTACHED:
            break
    return word, None, False
