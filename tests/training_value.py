"""Formats of dicts, objects and tables."""

from __future__ import annotations

import json
from math import isfinite

from training_course import Moment
from training_format import Format, stamp

from slurm_guard.model.phase import Phase


class HuggingFace(Format):
    """Dict lines without iteration and without time."""

    has_time = False
    has_skips = False

    def train(self, m: Moment) -> str:
        values = {
            "loss": m.loss if not isfinite(m.loss) else round(m.loss, 4),
            "grad_norm": m.grad_norm if not isfinite(m.grad_norm) else round(m.grad_norm, 6),
            "learning_rate": 4.9e-05,
            "epoch": round(m.iteration / self.total * 3, 6),
        }
        return f"{self.clock(m)}{values}\n"

    def begin(self, m: Moment) -> str:
        return {
            Phase.EVALUATION: f"{self.clock(m)}***** Running Evaluation *****\n  Num examples = 2000\n",
            Phase.CHECKPOINT: f"{self.clock(m)}Saving model checkpoint to out/checkpoint-{m.iteration}\n",
        }.get(m.phase, "")

    def done(self, m: Moment) -> str:
        if m.phase is not Phase.EVALUATION:
            return ""
        values = {
            "eval_loss": round(m.loss, 4),
            "eval_runtime": 35.4,
            "epoch": round(m.iteration / self.total * 3, 6),
        }
        return f"{self.clock(m)}{values}\n"

    def end(self, m: Moment) -> str:
        return f"{self.clock(m)}{{'train_runtime': 4129.3, 'train_loss': 1.73402, 'epoch': 3.0}}\n"


class HuggingFaceTimed(HuggingFace):
    """The same behind the logger of LLaMA-Factory and transformers."""

    has_time = True

    def clock(self, m: Moment) -> str:
        return f"[INFO|{stamp(m, '%Y-%m-%d %H:%M:%S')}] llamafactory.train.callbacks:143 >> "


class JsonLines(Format):
    """One object a line, its time as epoch seconds; NaN as Python writes it."""

    has_skips = False

    def train(self, m: Moment) -> str:
        return self._line(m, step=m.iteration, loss=m.loss, grad_norm=m.grad_norm, lr=3e-4)

    def start(self, m: Moment) -> str:
        return self._line(m, event="start", resumed_from=m.iteration)

    def begin(self, m: Moment) -> str:
        words = {Phase.EVALUATION: "running evaluation", Phase.CHECKPOINT: "saving checkpoint"}
        words[Phase.COMPILATION] = "compiling model"
        return self._line(m, message=words[m.phase]) if m.phase in words else ""

    def done(self, m: Moment) -> str:
        return self._line(m, step=m.iteration, eval_loss=m.loss) if m.phase is Phase.EVALUATION else ""

    def end(self, m: Moment) -> str:
        return self._line(m, message="training finished")

    def _line(self, m: Moment, **values: object) -> str:
        return json.dumps({"ts": round(m.at_s, 3), "level": "INFO", **values}) + "\n"


class Csv(Format):
    """A table with a header; its phases are told on lines of their own, as stderr in the same file."""

    has_skips = False

    def start(self, m: Moment) -> str:
        resumed = f"{self.clock(m)}Loading checkpoint from /ckpt/step_{m.iteration}\n" if m.iteration else ""
        return f"{resumed}time,step,train_loss,grad_norm,lr\n"

    def train(self, m: Moment) -> str:
        return f"{stamp(m, '%Y-%m-%dT%H:%M:%SZ')},{m.iteration},{m.loss:.6f},{m.grad_norm:.4f},0.0003\n"


class Yolo(Format):
    """A header and a bar for every epoch, no total and no time."""

    has_time = False
    has_skips = False

    def train(self, m: Moment) -> str:
        epoch, epochs = m.iteration // self.every, self.total // self.every
        box, classes, dfl = (m.loss * part for part in (0.4, 0.35, 0.25))
        row = (
            f"{epoch:>9}/{epochs}      2.61G {box:10.4g} {classes:10.4g} {dfl:10.4g}         81        640: "
        )
        return (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
            f"\r{row} 50% ━━━━━━────── 4/8 4.2it/s 0.9s\r{row}100% ━━━━━━━━━━━━ 8/8 4.2it/s 1.9s\n"
        )

    def begin(self, m: Moment) -> str:
        return ""

    def done(self, m: Moment) -> str:
        return ""
