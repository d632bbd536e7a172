"""What Slurm's commands print, read without asking anybody.

Only forms that every release since 22.05 prints: `scontrol -o show …` under LC_ALL=C and TZ=UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone

from slurm_guard.model.reading import NodeReading

_KEY = re.compile(r"(?:^| )([A-Z][A-Za-z_/:]*)=")
_JOB_NAME = re.compile(r" JobName=.* UserId=(?=\S+\(\d+\) GroupId=)", re.DOTALL)
_REASON = re.compile(r" Reason=(.*?) \[([^\[\]@\s]+)@([\dT:-]{19}|Unknown)\](.*)$", re.DOTALL)
_UNKNOWN = frozenset({"", "(null)", "None", "N/A", "Unknown"})
_SILENT = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "connection refused",
    "connection reset",
    "connect failure",
    "transport endpoint",
    "in standby mode",
    "slurm temporarily unable",
    "unexpected message received",
    "protocol authentication error",
    "munge encode failed",
)
_GPU = re.compile(r"gres[:/]gpu[:=]([^,]+)")


def parse_fields(line: str) -> dict[str, str]:
    """The fields of one line of `scontrol -o show job|step|node`; values that say "none" are empty.

    A field is what stands before the next ` Key=`. The job's name is left out and the first of two
    equal keys counts: a name or comment that looks like fields can't change what was read.

    >>> parse_fields("JobId=5 JobName=a Requeue=0 UserId=u(7) GroupId=g(7) Requeue=1 QOS=(null)")
    {'JobId': '5', 'UserId': 'u(7)', 'GroupId': 'g(7)', 'Requeue': '1', 'QOS': ''}
    >>> parse_fields("StepId=5.0 SrunHost:Pid=vm:417 CPUs/Task=1 TRES=cpu=2,mem=1M")["SrunHost:Pid"]
    'vm:417'
    >>> parse_fields("NodeName=n1 OS=Linux 6.1 #1 SMP State=IDLE+DRAIN Reason=bad cable [root@now]")["Reason"]
    'bad cable [root@now]'
    """
    parts = _KEY.split(_JOB_NAME.sub(" UserId=", line.strip()))
    fields: dict[str, str] = {}
    for key, value in zip(parts[1::2], parts[2::2], strict=True):
        text = value.strip()
        fields.setdefault(key, "" if text in _UNKNOWN else text)
    return fields


def parse_job_id(fields: Mapping[str, str]) -> str:
    """The name of the job for every command: array elements as ARRAYJOB_TASK.

    The raw number of the last element is that of the whole array.

    >>> parse_job_id({"JobId": "7", "ArrayJobId": "6", "ArrayTaskId": "3"})
    '6_3'
    >>> parse_job_id({"JobId": "5"})
    '5'
    """
    array, task = fields.get("ArrayJobId", ""), fields.get("ArrayTaskId", "")
    return f"{array}_{task}" if array and task.isdigit() else fields.get("JobId", "")


def parse_time_s(text: str) -> float | None:
    """Seconds since the epoch of a time printed under TZ=UTC; None where Slurm names no time.

    >>> parse_time_s("2026-11-29T18:54:01")
    1795978441.0
    >>> parse_time_s("Unknown") is None
    True
    """
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def parse_user_id(text: str) -> int:
    """The number in `name(1001)`; -1 where there is none.

    >>> parse_user_id("alice(1001)"), parse_user_id("1001"), parse_user_id("")
    (1001, 1001, -1)
    """
    found = re.search(r"(\d+)\)?$", text)
    return int(found[1]) if found else -1


def parse_srun(text: str) -> tuple[str, int | None]:
    """Host and pid of a step's srun, of `host:pid`.

    >>> parse_srun("vm:417"), parse_srun("(null):0")
    (('vm', 417), ('', None))
    """
    host, _, pid = text.rpartition(":")
    known = host not in _UNKNOWN and pid.isdigit() and pid != "0"
    return (host, int(pid)) if known else ("", None)


def parse_states(text: str) -> frozenset[str]:
    """Base state and flags of a node; the mark `*` becomes NOT_RESPONDING.

    >>> sorted(parse_states("IDLE+DRAIN")), sorted(parse_states("DOWN*+DRAIN"))
    (['DRAIN', 'IDLE'], ['DOWN', 'DRAIN', 'NOT_RESPONDING'])
    """
    words = frozenset(word.rstrip("*~#!%$@^-") for word in text.split("+") if word)
    return words | {"NOT_RESPONDING"} if "*" in text else words


def parse_node(line: str) -> NodeReading:
    """The node of one line of `scontrol -o show node`, printed under TZ=UTC.

    The reason is read whole, also where it looks like fields or had several lines: word for word it says
    whose drain it is.

    >>> stamp = "[root@2026-11-29T18:54:01]"
    >>> node = parse_node(f"NodeName=n1 State=IDLE Partitions=a,b Reason=bad Keep=yes {stamp} Comment=c")
    >>> node.reason, node.reason_by, node.reason_s, node.partitions
    ('bad Keep=yes', 'root', 1795978441.0, ('a', 'b'))
    >>> parse_node(f"NodeName=n1 State=DOWN Reason=bad {stamp}        since Monday").reason
    'bad since Monday'
    """
    fields = parse_fields(line)
    said = _REASON.search(line)
    more = _KEY.split(said[4])[0].strip() if said else ""
    return NodeReading(
        name=fields.get("NodeName", ""),
        states=parse_states(fields.get("State", "")),
        reason=" ".join(filter(None, (said[1], more))) if said else fields.get("Reason", ""),
        reason_by=said[2] if said else "",
        reason_s=parse_time_s(said[3]) if said else None,
        partitions=tuple(name for name in fields.get("Partitions", "").split(",") if name),
    )


def count_gpus(gres: str) -> int:
    """The GPUs of a node's Gres, of all types together; shards and the like are none.

    >>> count_gpus("gpu:a100:4(S:0-1),gpu:l40s:2,shard:8"), count_gpus("gpu"), count_gpus("")
    (6, 1, 0)
    """
    words = [re.sub(r"\(.*?\)", "", word).split(":") for word in re.split(r",(?![^(]*\))", gres)]
    counts = [word[-1] for word in words if word[0] == "gpu"]
    return sum(int(count) if count.isdecimal() else 1 for count in counts)


def parse_silence(text: str) -> bool:
    """Whether a failed command says that the controller could not be asked at all.

    >>> parse_silence("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    True
    >>> parse_silence("slurm_load_jobs error: Invalid job id specified")
    False
    """
    words = text.lower()
    return any(silent in words for silent in _SILENT)


def parse_requeue_refusal(text: str) -> tuple[str, str]:
    """Why `requeue` and why the exclusion after it were refused, of the errors of one scontrol.

    A refused requeue leaves the job running, and then the exclusion is refused as well.

    >>> parse_requeue_refusal("Operation disabled for job 19\\nJob is no longer pending for job 19")
    ('Operation disabled for job 19', 'Job is no longer pending for job 19')
    >>> parse_requeue_refusal("Invalid node name specified for job 20")
    ('', 'Invalid node name specified for job 20')
    >>> parse_requeue_refusal("Job is pending execution for job 20")
    ('Job is pending execution for job 20', '')
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        return lines[0], lines[1]
    line = lines[0] if lines else ""
    of_exclusion = "no longer pending" in line or " node " in line
    return ("", line) if of_exclusion else (line, "")


def plan_submission(fields: Mapping[str, str]) -> list[str]:
    """sbatch options that ask for what the job has, whoever asked for it (script, environment, command line).

    What they leave out (switches, sockets, licences) stays as the job's own script says. A job that was
    given fewer nodes than it would take (`-N 1-4`) counts with those that it has. Waiting conditions are
    lifted, since they are met: the job ran.

    >>> plan_submission({"NumNodes": "2", "TresPerNode": "gres:gpu:1", "ReqNodeList": "n1"})
    ['--nodes=2', '--gres=gpu:1', '--nodelist=n1', '--dependency=', '--begin=now']
    """
    found = [(option, fields.get(key, "")) for option, key in _OPTIONS]
    found += [
        ("ntasks-per-node", fields.get("NtasksPerN:B:S:C", "").partition(":")[0]),
        ("gres", re.sub(r"gres[:/]", "", fields.get("TresPerNode", ""))),
        *((option, _gpus(fields.get(key, ""))) for option, key in _GPU_OPTIONS),
    ]
    options = [f"--{option}={value}" for option, value in found if value not in ("", "0", "*")]
    shared = fields.get("OverSubscribe", "")
    options += {"NO": ["--exclusive"], "USER": ["--exclusive=user"]}.get(shared, [])
    options += _plan_cpus(fields) + _plan_memory(fields)
    return [*options, f"--nodelist={fields.get('ReqNodeList', '')}", "--dependency=", "--begin=now"]


_OPTIONS = (
    ("nodes", "NumNodes"),
    ("ntasks", "NumTasks"),
    ("sockets-per-node", "Socks/Node"),
    ("partition", "Partition"),
    ("account", "Account"),
    ("qos", "QOS"),
    ("reservation", "Reservation"),
    ("time", "TimeLimit"),
    ("constraint", "Features"),
)

_GPU_OPTIONS = (
    ("gpus", "TresPerJob"),
    ("gpus-per-socket", "TresPerSocket"),
    ("gpus-per-task", "TresPerTask"),
)


def _plan_cpus(fields: Mapping[str, str]) -> list[str]:
    """CPUs by GPU or by task; sbatch refuses both."""
    per_gpu, per_task = _gpus(fields.get("CpusPerTres", "")), fields.get("CPUs/Task", "")
    if per_gpu:
        return [f"--cpus-per-gpu={per_gpu}"]
    return [f"--cpus-per-task={per_task}"] if per_task.isdigit() else []


def _plan_memory(fields: Mapping[str, str]) -> list[str]:
    """Memory by GPU, CPU or node; sbatch refuses two of them. 0 a node means all of it."""
    by = (
        ("mem-per-gpu", _gpus(fields.get("MemPerTres", ""))),
        ("mem-per-cpu", fields.get("MinMemoryCPU", "")),
        ("mem", fields.get("MinMemoryNode", "")),
    )
    return next(([f"--{option}={value}"] for option, value in by if value), [])


def _gpus(tres: str) -> str:
    found = _GPU.search(tres)
    return found[1].replace("=", ":") if found else ""
