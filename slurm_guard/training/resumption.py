"""What the training resumed from, said to the guard, which looks whether it goes on there."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

from slurm_guard.model.checkpoint import Checkpoint
from slurm_guard.model.resumption import AT, Resumption, encode_resumption
from slurm_guard.policy.trial import name_checkpoint
from slurm_guard.training.heartbeat import Beater, find_beater, put_beater


def say_resumed(checkpoint: Checkpoint | None) -> None:
    """Say from which checkpoint this rank's state was loaded; None when it begins from scratch.

    Call it once it is loaded, before the first iteration. The first two iterations that the heartbeats tell
    after it are told too. Never raises; without a guard it does nothing.
    """
    with suppress(Exception):
        pid = os.getpid()
        beater = find_beater(pid)
        if isinstance(beater, _Beginning):
            beater = beater.beater
        if beater is not None:
            said = _describe(checkpoint)
            put_beater(pid, _Beginning(beater, said))


def _describe(checkpoint: Checkpoint | None) -> Resumption:
    if checkpoint is None:
        return Resumption()
    return Resumption(
        name_checkpoint(checkpoint), checkpoint.iteration, loss=checkpoint.loss, epoch=checkpoint.epoch
    )


class _Beginning:
    """Takes the calls of a process until two iterations were said, and is out of their way from then on."""

    def __init__(self, beater: Beater, said: Resumption) -> None:
        self.beater = beater
        self._said = said
        self._tell()

    def beat(self, iteration: Any, loss: Any, epoch: Any, phase: Any, norm: Any) -> None:
        self.beater.beat(iteration, loss, epoch, phase, norm)
        if iteration is None:
            return
        said, (number, at_epoch) = self._said, self.beater.place
        if number is None or number == said.first:
            return
        if said.first is None:
            self._said = replace(said, first=number, first_epoch=at_epoch)
        else:
            self._said = replace(said, second=number)
            put_beater(self.beater.pid, self.beater)
        self._tell()

    def _tell(self) -> None:
        data = encode_resumption(self.beater.pid, self._said)
        if data is not None:
            self.beater.say(AT, data)
