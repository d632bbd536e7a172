"""A loss on a device is never waited for: its value is known at a later call, or stays unknown.

The device is a double that stands in torch's place: it answers only what is asked of it here.
"""

from __future__ import annotations

import contextlib
import math
import sys
from types import SimpleNamespace

import pytest

from slurm_guard.training.loss import LossReader


class _Device:
    """torch as far as it is used: a copy arrives when the test says so."""

    def __init__(self) -> None:
        self.events: list[_Event] = []
        self.capturing = False
        self.broken = ""
        outer = self

        class Event(_Event):
            def __init__(self) -> None:
                super().__init__(outer)

        self.Tensor = _Tensor
        self.float32 = "float32"
        self.cuda = SimpleNamespace(
            Event=Event,
            current_stream=lambda device: f"stream of {device.index}",
            is_current_stream_capturing=lambda: self.capturing,
        )

    def inference_mode(self, _mode: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def empty(self, *_size: int, dtype: str, device: str, pin_memory: bool) -> _Buffer:
        assert (dtype, device, pin_memory) == ("float32", "cpu", True)
        return _Buffer()

    def fail(self, what: str) -> None:
        if self.broken == what:
            raise RuntimeError("an illegal memory access")


class _Tensor:
    """A loss on the device. Whoever asks it for its value would wait."""

    is_cpu = False

    def __init__(self, value: float, elements: int = 1, device: str = "cuda") -> None:
        self.value = value
        self._elements = elements
        self.device = SimpleNamespace(type=device, index=3)

    def numel(self) -> int:
        return self._elements

    def detach(self) -> _Tensor:
        return self

    def reshape(self, _size: int) -> _Tensor:
        return self

    def item(self) -> float:
        raise AssertionError("that waits for the device")

    __float__ = item


class _Buffer:
    """Memory of the host that a copy will have reached."""

    def __init__(self) -> None:
        self.value = math.nan

    def copy_(self, source: _Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.value = source.value

    def item(self) -> float:
        return self.value


class _Event:
    def __init__(self, device: _Device) -> None:
        self._device = device
        self.done = False
        device.events.append(self)

    def record(self, stream: str) -> None:
        assert stream == "stream of 3"
        self._device.fail("record")

    def query(self) -> bool:
        self._device.fail("query")
        assert not self._device.capturing, "that would break the capture"
        return self.done


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    """In torch's place."""
    made = _Device()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def _known(reader: LossReader) -> tuple[float | None, int]:
    return reader.number, reader.iteration


def test_the_value_comes_with_a_later_call_and_its_own_iteration(device: _Device) -> None:
    """The one before stays known meanwhile."""
    reader = LossReader()
    reader.take(1.5, 9, 0.0)
    reader.take(_Tensor(2.5), 10, 1.0)
    assert _known(reader) == (1.5, 9)
    reader.poll()
    assert _known(reader) == (1.5, 9)
    device.events[0].done = True
    reader.poll()
    assert _known(reader) == (2.5, 10)


def test_a_nan_on_the_device_arrives_as_one(device: _Device) -> None:
    """It is a value."""
    reader = LossReader()
    reader.take(_Tensor(math.nan), 10, 0.0)
    device.events[0].done = True
    reader.poll()
    assert reader.number is not None
    assert math.isnan(reader.number)


def test_there_is_one_copy_at_a_time_and_four_a_second(device: _Device) -> None:
    """What nobody reads is not copied; the buffer is not written over while it is under way."""
    reader = LossReader()
    for call in range(100):
        reader.take(_Tensor(call), call, call / 100)
    assert len(device.events) == 1
    device.events[0].done = True
    for call in range(100, 200):
        reader.take(_Tensor(call), call, call / 100)
        device.events[-1].done = True
    assert len(device.events) == 5
    assert _known(reader) == (175.0, 175)


def test_a_number_given_meanwhile_is_newer_than_the_copy(device: _Device) -> None:
    """The late value does not replace it."""
    reader = LossReader()
    reader.take(_Tensor(2.5), 10, 0.0)
    reader.take(0.5, 11, 0.1)
    device.events[0].done = True
    reader.poll()
    assert _known(reader) == (0.5, 11)


def test_a_graph_that_is_being_captured_is_left_alone(device: _Device) -> None:
    """Neither a copy nor a question becomes part of it."""
    reader = LossReader()
    device.capturing = True
    reader.take(_Tensor(2.5), 10, 0.0)
    assert device.events == []
    device.capturing = False
    reader.take(_Tensor(2.5), 11, 1.0)
    device.capturing = True
    reader.poll()
    assert reader.number is None
    device.capturing = False
    device.events[0].done = True
    reader.poll()
    assert _known(reader) == (2.5, 11)


@pytest.mark.parametrize("what", ["record", "query"])
def test_a_device_that_fails_is_not_asked_again(device: _Device, what: str) -> None:
    """The loss is unknown from then on; numbers are still taken."""
    reader = LossReader()
    device.broken = what
    for call in range(3):
        reader.take(_Tensor(2.5), call, float(call))
        reader.poll()
    assert (reader.number, len(device.events)) == (None, 1)
    reader.take(0.5, 4, 4.0)
    assert _known(reader) == (0.5, 4)


@pytest.mark.parametrize("loss", [_Tensor(2.5, elements=8), _Tensor(2.5, device="xla")])
def test_what_is_no_single_value_or_on_a_strange_device_is_unknown(device: _Device, loss: _Tensor) -> None:
    """And is not waited for either."""
    reader = LossReader()
    reader.take(1.0, 1, 0.0)
    reader.take(loss, 2, 1.0)
    assert reader.number is None


def test_a_subclass_of_a_tensor_is_unknown(device: _Device) -> None:
    """It may hold one part of a sharded value; reading it would be a collective."""

    class Sharded(_Tensor):
        pass

    reader = LossReader()
    reader.take(Sharded(2.5), 1, 0.0)
    assert (reader.number, device.events) == (None, [])
