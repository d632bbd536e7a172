"""Formats of progress bars: frames that end in a carriage return."""

from __future__ import annotations

from math import isfinite, isnan

from training_course import Moment
from training_format import Format, span

from slurm_guard.model.phase import Phase


class Bar(Format):
    """A tqdm bar: frames that end in a carriage return, the seconds since its start in brackets."""

    has_time = False
    has_skips = False
    last = 0.0

    def start(self, m: Moment) -> str:
        self.begin_s = m.at_s
        return "\n" + super().start(m)

    def train(self, m: Moment) -> str:
        passed, rate = m.at_s - self.begin_s, self.every / self.interval_s
        per = m.iteration / self.total
        return (
            f"\r{self.clock(m)}Training: {per:4.0%}|{'█' * int(per * 10):10}| {m.iteration}/{self.total} "
            f"[{span(passed)}<{span((self.total - m.iteration) / rate)}, {rate:5.2f}it/s, loss={m.loss:.3g}]"
        )

    def begin(self, m: Moment) -> str:
        text = super().begin(m)
        return "\n" + text if text else ""


class BarTimed(Bar):
    """The same where every frame has the time in front of it."""

    has_time = True


class Lightning(Bar):
    """Bars of epochs of 400 batches; numbers are filled up to five characters (`nan.0`)."""

    def train(self, m: Moment) -> str:
        epoch, batch = divmod(m.iteration // self.every - 1, 400)
        passed = span(m.at_s - self.begin_s)
        value = f"{m.loss:.3f}" if isfinite(m.loss) else ("nan.0" if isnan(m.loss) else "inf.0")
        return (
            f"\rEpoch {epoch}: {batch / 4:4.0f}%|{'█' * (batch // 40):10}| {batch + 1}/400 "
            f"[{passed}<10:00,  0.10it/s, v_num=7, train_loss={value}]"
        )

    def begin(self, m: Moment) -> str:
        if m.phase is Phase.EVALUATION:
            return "\nValidation DataLoader 0:   0%|          | 0/50 [00:00<?, ?it/s]\r"
        return super().begin(m)

    def done(self, m: Moment) -> str:
        if m.phase is Phase.EVALUATION:
            return "Validation DataLoader 0: 100%|██████████| 50/50 [00:03<00:00,  9.80it/s]\n"
        return super().done(m)
