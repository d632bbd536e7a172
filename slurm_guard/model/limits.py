"""The settings: one field a setting, with its section, unit, bounds and meaning.

The same table gives the TOML keys, the `SLURM_GUARD_*` variables, the flags of guarded-srun and
the documentation, so that none of them can say something else than the others.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import Any

from slurm_guard.model.setting import setting


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of guarded-srun. Names end in their unit; a limit of 0 is never "off"."""

    observe: bool = setting(False, "guard", "judge and dump, but stop, restart and exclude nothing")
    nonfinite_limit: int = setting(
        3, "numeric", "consecutive records with a NaN or infinite loss that stop the job", low=1, high=10_000
    )
    skip_limit: int = setting(
        30,
        "numeric",
        "consecutive iterations that the loss scaler skips, without one that counts, that stop the job",
        low=2,
        high=100_000,
    )
    spike_factor: float = setting(
        10.0,
        "numeric",
        "how many times the median of the last good losses is a spike",
        low=1.5,
        high=1e6,
    )
    spike_limit: int = setting(
        10,
        "numeric",
        "consecutive records above spike_factor, and not falling back, that stop the job",
        low=2,
        high=100_000,
    )
    spike_window: int = setting(
        100, "numeric", "finite losses that the median is taken of", low=20, high=10_000
    )
    resume_proof: str = setting(
        "observe",
        "numeric",
        "a training that was run again and doesn't go on from its checkpoint: observe (say so), stop or off",
        choices=("observe", "stop", "off"),
    )
    loss_key: str = setting(
        "",
        "numeric",
        "keys of the training loss in the log, separated by commas, where it has a name of its own",
    )
    iteration_key: str = setting(
        "", "numeric", "keys of the iteration in the log, separated by commas, where it has a name of its own"
    )
    pattern: str = setting(
        "",
        "numeric",
        "regular expression with the group loss (and iteration, epoch, grad_norm) for lines without keys",
    )
    stall_s: float = setting(
        900.0,
        "heartbeat",
        "seconds without progress after which stacks are compared (set by you, it convicts alone)",
        low=2,
        high=604_800,
    )
    stall_hard_s: float = setting(
        3600.0,
        "heartbeat",
        "seconds without progress that stop the job whatever stacks say",
        low=2,
        high=1_209_600,
    )
    startup_s: float = setting(
        3600.0,
        "heartbeat",
        "seconds that start-up may take before the second progress record",
        low=2,
        high=1_209_600,
    )
    learned_s: float = setting(
        60.0,
        "heartbeat",
        "shortest silence that is judged by the job's own rhythm, with a second witness",
        low=1,
        high=604_800,
    )
    compilation_s: float = setting(
        3600.0, "heartbeat", "seconds that a compilation may take", low=2, high=1_209_600
    )
    evaluation_s: float = setting(
        7200.0, "heartbeat", "seconds that an evaluation may take without a sign", low=2, high=1_209_600
    )
    checkpoint_s: float = setting(
        3600.0, "heartbeat", "seconds that saving a checkpoint may take", low=2, high=1_209_600
    )
    final_s: float = setting(
        3600.0,
        "heartbeat",
        "seconds that the end of training (last save, upload) may take",
        low=2,
        high=1_209_600,
    )
    phase_pattern: str = setting(
        "",
        "heartbeat",
        "regular expression for lines that begin a phase, with groups compilation, evaluation, checkpoint, "
        "final or training",
    )
    stack_interval_s: float = setting(
        30.0,
        "heartbeat",
        "seconds between the two stack dumps that tell a stall from a pause",
        low=0.5,
        high=600,
    )
    stopped_s: float = setting(
        60.0,
        "heartbeat",
        "seconds that one rank may be stopped (state T) while others run",
        low=1,
        high=86_400,
    )
    exit_wait_s: float = setting(
        600.0,
        "heartbeat",
        "seconds that other ranks may run on after one has ended with code 0",
        low=1,
        high=604_800,
    )
    thermal_s: float = setting(
        600.0,
        "hardware",
        "seconds that the hardware may hold a GPU's clocks down in a training that stands",
        low=10,
        high=86_400,
    )
    probe_hang_s: float = setting(
        300.0,
        "hardware",
        "seconds without progress that the driver may leave a question about a GPU unanswered",
        low=30,
        high=86_400,
    )
    dump_s: float = setting(
        10.0, "scene", "seconds that capturing the scene may take, whatever hangs", low=1, high=40
    )
    log_lines: int = setting(
        500, "scene", "last lines of output kept in the fault folder", low=1, high=100_000
    )
    grace_s: float = setting(10.0, "kill", "seconds between SIGTERM and SIGKILL", low=0, high=49)
    recovery: str = setting(
        "auto",
        "recovery",
        "what follows a stop: auto (restart in the allocation, else requeue), restart, requeue or stop",
        choices=("auto", "restart", "requeue", "stop"),
    )
    resumable: bool = setting(
        False, "recovery", "the training resumes by itself from its checkpoints, so it may be run again"
    )
    max_restarts: int = setting(
        3,
        "recovery",
        "restarts and requeues in a row that bring no progress before the job is stopped",
        low=0,
        high=1000,
    )
    exit_code: int = setting(
        86,
        "recovery",
        "exit code of guarded-srun when it stops a job that it may not run again",
        low=1,
        high=125,
    )
    controller_wait_s: float = setting(
        600.0,
        "recovery",
        "seconds to wait for a silent Slurm controller before giving up a requeue",
        low=0,
        high=86_400,
    )
    rescue_s: float = setting(
        120.0,
        "recovery",
        "seconds that carrying the newest ring to shared storage may take before a requeue; 0: none",
        low=0,
        high=86_400,
    )
    ring_copies: int = setting(
        1,
        "checkpoint",
        "other nodes that keep a copy of what one rank alone holds, in their rings; 0: none",
        low=0,
        high=8,
    )
    node_mtbf_hours: float = setting(
        1000.0,
        "checkpoint",
        "mean hours between two failures of one node, where the job has no past of its own",
        low=1,
        high=1e7,
    )
    log: str = setting(
        "",
        "paths",
        "files to follow beside the output, separated by commas: logs, JSON lines, CSV, TensorBoard; globs",
    )
    state_dir: str = setting(
        "", "paths", "journal and fault folders; default: slurm-guard/JOBID under the submit directory"
    )
    ring_dir: str = setting("", "paths", "node-local ring checkpoints; default: /var/tmp/slurm-guard-USER")
    milestone_dir: str = setting(
        "", "paths", "milestones on shared storage; default: milestones in the state directory"
    )
    milestone_keep: str = setting(
        "all",
        "paths",
        "which milestones stay: all, or last N, every N (iterations) and size N GB, separated by commas",
    )

    @classmethod
    def table(cls) -> tuple[Field[Any], ...]:
        """The fields in order; `metadata` holds section, text, low, high and choices."""
        return fields(cls)


HARD_LIMIT_S = 60.0
"""Seconds from a breach in which every sick rank must be dead."""

SCENE_RESERVE_S = 10.0
"""Seconds of the hard limit kept for verifying and for `scancel`."""
