"""A loss as training code has it, read without ever waiting for a device."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

_COPY_S = 0.25


class LossReader:
    """The newest known loss: `number` belongs to `iteration`; None while it is unknown.

    A tensor on a device is copied in the background at most every 0.25 s (nobody reads it more often),
    and its value known at a later call.
    """

    __slots__ = ("_broken", "_buffer", "_copied", "_event", "_next_s", "iteration", "number")

    def __init__(self) -> None:
        self.number: float | None = None
        self.iteration = 0
        self._buffer: Any = None
        self._event: Any = None
        self._copied: tuple[Any, int] = (None, 0)
        self._next_s = float("-inf")
        self._broken = False

    def take(self, loss: Any, iteration: int, now_s: float) -> None:
        """A number, a tensor of one element or a numpy scalar; anything else makes the loss unknown."""
        if type(loss) is float:
            self.number = loss
            self.iteration = iteration
            self._event = None
            return
        self.poll()
        try:
            # A tensor subclass may hold a part of a value, and reading it be a collective: no loss here.
            torch = sys.modules.get("torch")
            if torch is not None and type(loss) is torch.Tensor:
                if not loss.is_cpu:
                    self._copy(loss, iteration, now_s)
                    return
                number: float | None = float(loss.item())
            else:
                number = _read(loss)
        except Exception:
            number = None
        self.number, self.iteration, self._event = number, iteration, None

    def poll(self) -> None:
        """See whether the copy on its way has arrived."""
        if self._event is None:
            return
        try:
            device, iteration = self._copied
            if _is_capturing(device) or not self._event.query():
                return
            self.number, self.iteration = float(self._buffer.item()), iteration
        except Exception:
            self.number, self._broken = None, True
        self._event = None

    def _copy(self, loss: Any, iteration: int, now_s: float) -> None:
        if self._event is not None or now_s < self._next_s:
            return
        self._next_s = now_s + _COPY_S
        if self._broken or loss.numel() != 1:
            self.number = None
            return
        torch: Any = sys.modules["torch"]
        device = getattr(torch, loss.device.type)
        if _is_capturing(device):  # whatever touches the device now would become part of the graph
            return
        try:
            if self._buffer is None:
                with torch.inference_mode(False):
                    self._buffer = torch.empty(1, dtype=torch.float32, device="cpu", pin_memory=True)
            self._buffer.copy_(loss.detach().reshape(1), non_blocking=True)
            event = device.Event()
            event.record(device.current_stream(loss.device))
        except Exception:
            self.number, self._broken = None, True
            return
        self._event, self._copied = event, (device, iteration)


def _read(loss: Any) -> float | None:
    return float(loss) if isinstance(loss, Real) or type(loss).__module__ == "numpy" else None


def _is_capturing(device: Any) -> bool:
    ask = getattr(device, "is_current_stream_capturing", None)
    return ask is not None and bool(ask())
