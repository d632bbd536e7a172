"""Clipping that follows the gradients: tighter after spikes, and no update without a finite norm."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_guard.errors import UsageError
from slurm_guard.policy.clip import FLOOR, WINDOW, ClipState, judge_norm, plan_limit

_log = logging.getLogger("slurm_guard")


class Clipper:
    """Clips the gradients of one training; its state is saved and resumed with the training's.

    `share` is the part of `max_norm` that applies now, `skipped` how many updates were left out since the
    training began.

    All ranks must come to the same limit, and do where their norms are the same to the last digit: DDP has
    averaged the gradients before, and the norm of DTensors (FSDP2, tensor parallel) is reduced over all
    ranks. Different GPU models in one DDP job may sum a norm differently: clip with torch alone there.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._norm: float | None = None
        self._state = ClipState()

    @property
    def share(self) -> float:
        """The part of `max_norm` that applies to the next iteration: 1/8 to 1."""
        return self._state.share

    def clip(self, parameters: Any, max_norm: float, *, group: Any = None, scaler: Any = None) -> float:
        """Clip the gradients in place with `torch.nn.utils.clip_grad_norm_`; their 2-norm before that.

        Call it between `backward` and `optimizer.step`, on every rank. Where the norm is not finite, the
        gradients are set to None instead: the step after it then changes neither weights nor moments, on any
        rank, and `skipped` counts it. On a GPU the call waits for the backward pass, as GradScaler's step
        does: whether there is an update cannot be known before. Nothing else waits.

        Give `group` where its ranks hold different parameters of one model as plain tensors (pipeline
        stages): the norm is then that over all of them. Give the GradScaler of fp16 as `scaler`, after its
        `unscale_`: overflow is its routine, and what is not finite is left to it, uncounted.

        Raises:
            UsageError: `max_norm` is no positive number, or FSDP1 holds the parameters, whose norm one rank
                alone cannot know.
        """
        if not max_norm > 0:
            raise UsageError(f"clip_gradients(max_norm={max_norm}): give a positive number")
        held = [parameters] if hasattr(parameters, "grad") else list(parameters)
        if any(type(parameter).__name__ == "FlatParameter" for parameter in held):
            raise UsageError("clip_gradients cannot clip FSDP1 parameters: use FSDP2 (fully_shard)")
        norm = _clip(held, plan_limit(self._state, max_norm), group)
        self._norm = norm
        if math.isfinite(norm):
            self._state = judge_norm(self._state, norm)
        elif scaler is not None and scaler.is_enabled():
            self._norm = None  # no sign of trouble
        else:
            self._skip(held)
        return norm

    def take_norm(self) -> float | None:
        """The norm of the last call, once; None where there was none since."""
        norm, self._norm = self._norm, None
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, so that a safe load takes them."""
        return {"share": self._state.share, "norms": list(self._state.norms), "skipped": self.skipped}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: it is none of ours.
        """
        try:
            share, norms = float(saved["share"]), tuple(float(norm) for norm in saved["norms"])
            skipped = int(saved["skipped"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no state of a Clipper: {error!r}") from error
        if not FLOOR <= share <= 1 or not all(math.isfinite(norm) for norm in norms):
            raise ValueError(f"no state of a Clipper: share {share}")
        self._state, self.skipped = ClipState(share, norms[-WINDOW:]), skipped

    def _skip(self, held: Iterable[Any]) -> None:
        for parameter in held:
            parameter.grad = None
        self.skipped += 1
        # Said at 1, 2, 4, 8 …: what goes on for ever must not flood the log.
        if self.skipped & (self.skipped - 1) == 0 and _is_first_rank():
            _log.warning("slurm-guard: gradients without a finite norm: no update (%d so far)", self.skipped)


def _clip(held: list[Any], limit: float, group: Any) -> float:
    from torch.nn import utils

    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    if group is None:
        return _read(utils.clip_grad_norm_(held, limit)) if gradients else 0.0
    if not hasattr(utils, "get_total_norm"):
        raise UsageError("clip_gradients(group=…) needs torch 2.6 or newer")
    total = _sum_over(group, utils.get_total_norm(gradients), held)
    if gradients:
        utils.clip_grads_with_norm_(held, limit, total)
    return _read(total)


def _sum_over(group: Any, norm: Any, held: list[Any]) -> Any:
    import torch.distributed as dist

    squares = _whole(norm).to(held[0].device if held else "cpu").square()
    dist.all_reduce(squares, group=group)
    return squares.sqrt()


def _whole(norm: Any) -> Any:
    # The norm of DTensors is one itself, and only reduced when it is asked for.
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _read(norm: Any) -> float:
    return float(_whole(norm))


def _is_first_rank() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
