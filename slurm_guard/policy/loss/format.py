"""What the records of one series normally show, so that a loss that is missing can be told from none."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 2
"""Records with a loss and a gradient norm after which a bare NaN norm says that the loss vanished."""

_REGULAR = 10
"""Equal distances in a row between iterations with a loss that make a rhythm."""


@dataclass(slots=True)
class LossFormat:
    """Records of one kind: those with a gradient norm, or those without.

    `iteration` is the newest one, `stride` the distance between two with a loss, seen `regular` times
    in a row. `is_mixed`: records without a loss stand between those with one, and say nothing.
    """

    shown: int = 0
    iteration: int | None = None
    stride: int = 0
    regular: int = 0
    is_mixed: bool = False
    _is_doubtful: bool = False

    def saw_loss(self, iteration: int | None) -> None:
        """A record with a loss: what stood without one before it was no loss that vanished."""
        self.shown += 1
        self.is_mixed = self.is_mixed or self._is_doubtful
        self._is_doubtful = False
        if iteration is None or iteration == self.iteration:
            return
        stride = iteration - self.iteration if self.iteration is not None else 0
        self.regular = self.regular + 1 if stride == self.stride and stride > 0 else 0
        self.stride, self.iteration = stride, iteration

    def skipped(self, iteration: int | None) -> None:
        """The loss scaler skipped it: its loss is not missed."""
        if iteration is not None and self.iteration is not None and iteration > self.iteration:
            self.iteration = iteration

    def lacks_loss(self, iteration: int | None, *, has_nan_norm: bool) -> bool:
        """Whether a loss vanished from this record; it has none.

        A NaN gradient norm is proof enough where such records had a loss. Else the iteration must be
        the very next one of a rhythm: bars and timing lines have numbers of their own.
        """
        if has_nan_norm:
            return self.shown >= _SHOWN and not self.is_mixed
        if iteration is None or self.iteration is None or iteration <= self.iteration:
            return False
        self._is_doubtful = True
        if self.is_mixed or self.regular < _REGULAR or iteration - self.iteration != self.stride:
            return False
        self.iteration = iteration
        return True
