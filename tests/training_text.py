"""Formats of lines of text."""

from __future__ import annotations

import json

from training_course import Moment
from training_format import Format, stamp

from slurm_guard.model.phase import Phase


class Megatron(Format):
    """Iteration lines with bars; a skipped iteration shows no loss."""

    def train(self, m: Moment) -> str:
        loss = f"lm loss: {m.loss:.6E} | " if m.loss > 0 else ""
        return self._line(m, f"{loss}loss scale: 1.0 | grad norm: {m.grad_norm:.3f} |", 0)

    def skip(self, m: Moment) -> str:
        return self._line(m, f"loss scale: {m.scale:.1f} |", 1)

    def _line(self, m: Moment, middle: str, skipped: int) -> str:
        return (
            f"{self.clock(m)}iteration {m.iteration:8}/{self.total:8} "
            f"| consumed samples: {m.iteration * 1024:12} | elapsed time per iteration (ms): 3902.7 "
            "| learning rate: 6.000000E-05 | global batch size:  1024 | "
            f"{middle} number of skipped iterations: {skipped:3} | number of nan iterations:   0 |\n"
        )

    def begin(self, m: Moment) -> str:
        if m.phase is Phase.CHECKPOINT:
            return f"saving checkpoint at iteration {m.iteration:7} to /ckpt in torch_dist format\n"
        return super().begin(m)

    def done(self, m: Moment) -> str:
        return {
            Phase.EVALUATION: f" validation loss at iteration {m.iteration} | lm loss value: {m.loss:E} |\n",
            Phase.CHECKPOINT: f"  successfully saved checkpoint from iteration {m.iteration:7} to /ckpt\n",
        }.get(m.phase, "")

    def start(self, m: Moment) -> str:
        loaded = f" loading checkpoint from /ckpt at iteration {m.iteration}\n" if m.iteration else ""
        return f"using world size: 64, data-parallel size: 8\n> initializing torch distributed ...\n{loaded}"

    def clock(self, m: Moment) -> str:
        return f" [{stamp(m, '%Y-%m-%d %H:%M:%S')}] "


class TorchTitan(Format):
    """Coloured text with a clock."""

    def train(self, m: Moment) -> str:
        return (
            f"{self.clock(m)}\x1b[31mstep: {m.iteration:2}  \x1b[32mloss: {m.loss:8.5f}  "
            f"\x1b[38;2;180;60;0mgrad_norm: {m.grad_norm:7.4f}  \x1b[38;2;54;234;195mmemory: 40.20GiB(50%)  "
            f"\x1b[34mtps: 12,345  \x1b[36mtflops: 310.12  \x1b[35mmfu: 31.40%\x1b[39m\n"
        )

    def begin(self, m: Moment) -> str:
        if m.phase is Phase.CHECKPOINT:
            return f"{self.clock(m)}Saving the checkpoint (or staging if async is enabled).\n"
        return super().begin(m)

    def done(self, m: Moment) -> str:
        return {
            Phase.EVALUATION: (
                f"{self.clock(m)}\x1b[33mvalidate step: {m.iteration}  \x1b[32mloss: {m.loss:8.4f}\x1b[39m\n"
            ),
            Phase.CHECKPOINT: f"{self.clock(m)}Finished saving the checkpoint in 12.30 seconds.\n",
        }.get(m.phase, "")

    def clock(self, m: Moment) -> str:
        return f"[titan] {stamp(m, '%Y-%m-%d %H:%M:%S,000')} - root - INFO - "


class NanoGpt(Format):
    """`iter N: loss`, no time."""

    has_time = False
    has_skips = False

    def train(self, m: Moment) -> str:
        return f"iter {m.iteration}: loss {m.loss:.4f}, time 455.12ms, mfu 31.00%\n"

    def begin(self, m: Moment) -> str:
        return "saving checkpoint to out\n" if m.phase is Phase.CHECKPOINT else ""

    def done(self, m: Moment) -> str:
        if m.phase is Phase.EVALUATION:
            return f"step {m.iteration}: train loss {m.loss:.4f}, val loss {m.loss:.4f}\n"
        return ""


class KeyValue(Format):
    """A plain logger: `time name INFO step=… loss=…`."""

    def train(self, m: Moment) -> str:
        values = f"step={m.iteration} loss={m.loss:.5f} grad_norm={m.grad_norm:.4f} lr=3e-4"
        return f"{self.clock(m)}INFO train: {values}\n"

    def clock(self, m: Moment) -> str:
        return stamp(m, "%Y-%m-%dT%H:%M:%S.000Z") + " "


class DeepSpeed(Format):
    """The engine's line of steps and skips, and the loss of the pipeline engine."""

    skipped = 0

    def train(self, m: Moment) -> str:
        return (
            f"{self._log(m)}step={m.iteration}, skipped={self.skipped}, lr=[5e-05], mom=[[0.9, 0.999]]\n"
            f"steps: {m.iteration} loss: {m.loss:.4f} iter time (s): 0.512 samples/sec: 62.500\n"
        )

    def skip(self, m: Moment) -> str:
        self.skipped += 1
        return (
            f"{self.clock(m)}[INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 "
            f"Skipping step. Attempted loss scale: {m.scale:.0f}, reducing to {m.scale / 2:.0f}\n"
            f"{self._log(m)}step={m.iteration}, skipped={self.skipped}, lr=[5e-05], mom=[[0.9, 0.999]]\n"
        )

    def begin(self, m: Moment) -> str:
        if m.phase is Phase.CHECKPOINT:
            return f"{self._log(m)}[Torch] Checkpoint global_step{m.iteration} is about to be saved!\n"
        return super().begin(m)

    def _log(self, m: Moment) -> str:
        return f"{self.clock(m)}[INFO] [logging.py:96:log_dist] [Rank 0] "

    def clock(self, m: Moment) -> str:
        return f"[{stamp(m, '%Y-%m-%d %H:%M:%S,000')}] "


class MmEngine(Format):
    """Epochs of 400 iterations in brackets, a clock in front."""

    has_skips = False

    def train(self, m: Moment) -> str:
        epoch, at = divmod(m.iteration // self.every - 1, 400)
        return (
            f"{self.clock(m)}Epoch(train)  [{epoch + 1}][{at + 1:4}/400]  lr: 1.9820e-03  eta: 11:20:01  "
            f"time: 0.4641  data_time: 0.0112  memory: 3783  grad_norm: {m.grad_norm:.4f}  "
            f"loss: {m.loss:.4f}  loss_cls: {m.loss * 0.4:.4f}  loss_bbox: {m.loss * 0.6:.4f}\n"
        )

    def begin(self, m: Moment) -> str:
        return {
            Phase.EVALUATION: f"{self.clock(m)}Epoch(val)  [1][ 10/500]    eta: 0:10:00  time: 0.2\n",
            Phase.CHECKPOINT: f"{self.clock(m)}Saving checkpoint at 12 epochs\n",
        }.get(m.phase, super().begin(m))

    def clock(self, m: Moment) -> str:
        return f"{stamp(m, '%Y/%m/%d %H:%M:%S')} - mmengine - INFO - "


class Fairseq(Format):
    """A logger with a JSON object of quoted numbers."""

    def train(self, m: Moment) -> str:
        values = {"epoch": 1, "update": round(m.iteration / self.total, 5), "loss": f"{m.loss:.3f}"}
        values |= {"num_updates": str(m.iteration), "gnorm": f"{m.grad_norm:.3f}", "loss_scale": "128"}
        return f"{self.clock(m)}train_inner | {json.dumps(values)}\n"

    def begin(self, m: Moment) -> str:
        return {
            Phase.EVALUATION: f'{self.clock(m)}fairseq_cli.train | begin validation on "valid" subset\n',
            Phase.CHECKPOINT: f"{self.clock(m)}fairseq.trainer | Saving checkpoint to /ckpt/c_1.pt\n",
        }.get(m.phase, super().begin(m))

    def skip(self, m: Moment) -> str:
        return (
            f"{self.clock(m)}fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, "
            f"setting loss scale to: {m.scale}\n"
        )

    def clock(self, m: Moment) -> str:
        return f"{stamp(m, '%Y-%m-%d %H:%M:%S')} | INFO | "
