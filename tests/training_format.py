"""What all written formats of a training log share.

A format declares its evaluations, checkpoints and compilations in the words of its framework;
`has_time` says whether its lines carry a time.
"""

from __future__ import annotations

from datetime import datetime, timezone

from training_course import Course, Moment, What

from slurm_guard.model.phase import Phase


class Format:
    """How one framework writes; a subclass gives at least `train`. Every text ends its own lines."""

    has_time = True
    has_skips = True

    def __init__(self, course: Course) -> None:
        self.total = (course.records + course.warm_up_skips) * course.every
        self.every = course.every
        self.begin_s = course.start_s
        self.interval_s = course.interval_s

    def write(self, moment: Moment) -> bytes:
        """The bytes of this moment."""
        texts = {
            What.START: self.start,
            What.TRAIN: self.train,
            What.SKIP: self.skip,
            What.BEGIN: self.begin,
            What.DONE: self.done,
            What.STOPPED: self.stopped,
            What.END: self.end,
        }
        return texts[moment.what](moment).encode()

    def start(self, m: Moment) -> str:
        """What stands in front of a run."""
        resumed = f"{self.clock(m)}Loading checkpoint from /ckpt/step_{m.iteration}\n" if m.iteration else ""
        return f"{self.clock(m)}Initializing process group, world size 64\n{resumed}"

    def train(self, m: Moment) -> str:
        """A record with a loss."""
        raise NotImplementedError

    def skip(self, m: Moment) -> str:
        """A record that the loss scaler skipped."""
        return (
            f"{self.clock(m)}Gradient overflow. Skipping step, "
            f"loss scaler 0 reducing loss scale to {m.scale}\n"
        )

    def begin(self, m: Moment) -> str:
        """A phase begins."""
        return {
            Phase.EVALUATION: f"{self.clock(m)}Running evaluation\n",
            Phase.CHECKPOINT: f"{self.clock(m)}Saving checkpoint to /ckpt/step_{m.iteration}\n",
            Phase.COMPILATION: f"{self.clock(m)}Compiling the model with torch.compile\n",
        }.get(m.phase, "")

    def done(self, m: Moment) -> str:
        """A phase is over."""
        return {
            Phase.EVALUATION: f"{self.clock(m)}eval_loss: {m.loss:.4f} eval_ppl: 9.91\n",
            Phase.CHECKPOINT: f"{self.clock(m)}Saved checkpoint /ckpt/step_{m.iteration}\n",
        }.get(m.phase, "")

    def stopped(self, m: Moment) -> str:
        """Slurm ends the job."""
        at = datetime.fromtimestamp(m.at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        return f"slurmstepd: error: *** STEP 4242.0 ON gpu07 CANCELLED AT {at} DUE TO PREEMPTION ***\n"

    def end(self, m: Moment) -> str:
        """The last words."""
        return f"{self.clock(m)}Training finished\n"

    def clock(self, m: Moment) -> str:
        """The time in front of a line, with its separator."""
        return stamp(m, "%Y-%m-%d %H:%M:%S") + " " if self.has_time else ""


def stamp(m: Moment, form: str) -> str:
    """The time of this moment, UTC."""
    return datetime.fromtimestamp(m.at_s, timezone.utc).strftime(form)


def span(seconds: float) -> str:
    """Seconds as tqdm writes them."""
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes:02}:{s:02}"
