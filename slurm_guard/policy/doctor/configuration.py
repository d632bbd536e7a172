"""What of Slurm's configuration hurts guarded jobs: a rule a function, config in, advice or None out."""

from __future__ import annotations

from collections.abc import Callable

from slurm_guard.model.advice import Advice, Level
from slurm_guard.model.limits import Settings
from slurm_guard.policy.doctor.hook import HOOK_RULES
from slurm_guard.policy.doctor.slurm_conf import SlurmConfig, parse_count

CONF, CGROUP = "slurm.conf", "cgroup.conf"
_LEAST_UNKILLABLE_S = 180
_LEAST_KILL_WAIT_S = 30
_LEAST_CREDENTIAL_S = 30


def judge_config(config: SlurmConfig, settings: Settings) -> list[Advice]:
    """Every advice on this configuration, the gravest first. `settings` are those of the site."""
    said = [rule(config) for rule in (*RULES, *HOOK_RULES)]
    said += [rule(config, settings) for rule in SETTINGS_RULES]
    order = list(Level)
    return sorted((one for one in said if one), key=lambda one: order.index(one.level))


def judge_version(config: SlurmConfig) -> Advice | None:
    """The watchdogs run beside the training by `srun --overlap`, which came with 20.11."""
    if not config.before(22, 5):
        return None
    old = config.before(20, 11)
    return Advice(
        "version",
        Level.ERROR if old else Level.WARN,
        f"Slurm is {_version(config)}",
        "srun has no --overlap before 20.11" if old else "slurm-guard is tried on 22.05 and newer only",
        "the packages of Slurm",
        "22.05.4 or newer",
    )


def judge_difference(config: SlurmConfig) -> Advice | None:
    """A node that reads another slurm.conf than the controller runs by."""
    if not config.text("HASH_VAL").lower().startswith("different"):
        return None
    return Advice(
        "conf-differs",
        Level.WARN,
        "slurm.conf of this machine is not the controller's",
        "daemons and commands of this machine go by other settings than those judged here",
        CONF,
        "the same file on every machine, then scontrol reconfigure",
    )


def judge_proctrack(config: SlurmConfig) -> Advice | None:
    """Ranks and their children are followed, and signalled, by cgroup."""
    kind = config.text("ProctrackType")
    if kind in ("", "proctrack/cgroup"):
        return None
    return Advice(
        "proctrack",
        Level.ERROR,
        f"ProctrackType is {kind}",
        "children of a rank can escape Slurm, and SIGTERM to a job kills its ranks without their grace",
        CONF,
        "ProctrackType=proctrack/cgroup",
    )


def judge_unkillable(config: SlurmConfig) -> Advice | None:
    """The time before Slurm drains a node with "Kill task failed"."""
    timeout_s, message_s = config.number("UnkillableStepTimeout"), config.number("MessageTimeout")
    if timeout_s is None or message_s is None:
        return None
    least_s = max(_LEAST_UNKILLABLE_S, 5 * message_s)
    if timeout_s >= least_s:
        return None
    return Advice(
        "unkillable-timeout",
        Level.WARN,
        f"UnkillableStepTimeout is {timeout_s:g} s",
        'ranks that leave a GPU driver or write a core slowly drain their node: "Kill task failed"',
        CONF,
        f"UnkillableStepTimeout={least_s:g}",
    )


def judge_kill_wait(config: SlurmConfig) -> Advice | None:
    """The time that a job has after SIGTERM."""
    wait_s = config.number("KillWait")
    if wait_s is None or wait_s >= _LEAST_KILL_WAIT_S:
        return None
    return Advice(
        "kill-wait",
        Level.WARN,
        f"KillWait is {wait_s:g} s",
        "a training that saves on SIGTERM is killed in the middle of its checkpoint",
        CONF,
        f"KillWait={_LEAST_KILL_WAIT_S}, or the time of the longest checkpoint",
    )


def judge_requeue(config: SlurmConfig) -> Advice | None:
    """Whether a stopped job may come back."""
    if config.number("JobRequeue") != 0:
        return None
    return Advice(
        "job-requeue",
        Level.WARN,
        "JobRequeue is 0",
        "a stopped job does not come back unless its script says #SBATCH --requeue",
        CONF,
        "JobRequeue=1",
    )


def judge_append(config: SlurmConfig) -> Advice | None:
    """Whether a requeued job keeps the log of what went wrong."""
    if config.number("JobFileAppend") != 0:
        return None
    return Advice(
        "file-append",
        Level.NOTE,
        "JobFileAppend is 0",
        "a requeued job empties its output file unless its script says #SBATCH --open-mode=append",
        CONF,
        "JobFileAppend=1",
    )


def judge_bad_exit(config: SlurmConfig) -> Advice | None:
    """Who comes first when a rank dies: srun, or the watchdogs that read the stacks of the others."""
    if config.number("KillOnBadExit") != 1:
        return None
    return Advice(
        "kill-on-bad-exit",
        Level.NOTE,
        "KillOnBadExit is 1",
        "when a rank dies, srun kills the others before their stacks are read",
        CONF,
        "KillOnBadExit=0, or srun's --kill-on-bad-exit=0 after guarded-srun",
    )


def judge_credential(config: SlurmConfig) -> Advice | None:
    """The life time of job credentials, which old releases make the wait of a requeued job as well."""
    expire_s = parse_count(config.option("AuthInfo", "cred_expire") or "")
    if expire_s is None or expire_s >= _LEAST_CREDENTIAL_S:
        return None
    return Advice(
        "credential-life",
        Level.WARN,
        f"cred_expire is {expire_s} s",
        "a launch that a slow prolog or a busy node delays for longer fails: Job credential expired",
        CONF,
        "AuthInfo without cred_expire (120 s)",
    )


def judge_requeue_delay(config: SlurmConfig) -> Advice | None:
    """A word that old releases do not know, and say nothing about."""
    if config.option("SchedulerParameters", "requeue_delay") is None or not config.before(25, 11):
        return None
    return Advice(
        "requeue-delay",
        Level.NOTE,
        f"requeue_delay is no word of Slurm {_version(config)}",
        "it does nothing before 25.11: a requeued job waits cred_expire + 1 s",
        CONF,
        "SchedulerParameters without requeue_delay",
    )


def judge_expedited(config: SlurmConfig) -> Advice | None:
    """Slurm's own quick requeue, whose first releases were faulty."""
    if config.option("SlurmctldParameters", "enable_expedited_requeue") is None:
        return None
    if not config.before(25, 11, 3):
        return None
    return Advice(
        "expedited-requeue",
        Level.WARN,
        f"enable_expedited_requeue with Slurm {_version(config)}",
        "jobs that end with code 0 are run again, or wait for an epilog for ever (mended in 25.11.3)",
        CONF,
        "SlurmctldParameters without enable_expedited_requeue",
    )


def judge_devices(config: SlurmConfig) -> Advice | None:
    """Whether a job can touch the GPUs of another one."""
    if "gpu" not in config.words("GresTypes") or config.cgroup.get("constraindevices", "").lower() != "no":
        return None
    return Advice(
        "constrain-devices",
        Level.WARN,
        "ConstrainDevices is no on a cluster with GPUs",
        "a job can use the GPUs of another one, which then gets the blame",
        CGROUP,
        "ConstrainDevices=yes",
    )


def judge_children(config: SlurmConfig) -> Advice | None:
    """Who gets SIGTERM: with this, srun inside the batch script does."""
    if config.cgroup.get("signalchildrenprocesses", "").lower() not in ("yes", "true", "1"):
        return None
    return Advice(
        "signal-children",
        Level.WARN,
        "SignalChildrenProcesses is yes",
        "SIGTERM to a job also hits srun in the batch script, which kills the ranks without their grace",
        CGROUP,
        "SignalChildrenProcesses=no",
    )


def judge_requeue_exit(config: SlurmConfig, settings: Settings) -> Advice | None:
    """guarded-srun's own exit code marks jobs that must not run again."""
    code = settings.exit_code
    if not any(_holds(word, code) for word in config.words("RequeueExit")):
        return None
    return Advice(
        "requeue-exit",
        Level.ERROR,
        f"RequeueExit holds {code}, guarded-srun's exit code",
        "that code says that the job must not be run again; Slurm would run it for ever",
        CONF,
        f"RequeueExit without {code}",
    )


Rule = Callable[[SlurmConfig], Advice | None]
RULES: tuple[Rule, ...] = (
    judge_version,
    judge_difference,
    judge_proctrack,
    judge_unkillable,
    judge_kill_wait,
    judge_requeue,
    judge_append,
    judge_bad_exit,
    judge_credential,
    judge_requeue_delay,
    judge_expedited,
    judge_devices,
    judge_children,
)
SETTINGS_RULES = (judge_requeue_exit,)


def _holds(word: str, code: int) -> bool:
    """Whether a code is in `7` or `5-9`.

    >>> _holds("80-90", 86), _holds("86", 86), _holds("8", 86), _holds("x-", 86)
    (True, True, False, False)
    """
    low, dash, high = word.partition("-")
    first, last = parse_count(low), parse_count(high if dash else low)
    return first is not None and last is not None and first <= code <= last


def _version(config: SlurmConfig) -> str:
    major, minor, patch = config.version or (0, 0, 0)
    return f"{major}.{minor:02}.{patch}"
