"""A copy of the training state in memory, so that training goes on while the copy is written.

The copy is what training waits for. Its memory is kept and used again by the next save, pinned where the
state is on a CUDA device: a fresh gigabyte costs more than the copying into it. It is as large as the
state that is saved, once. What is on the CPU is copied by several threads: one does not move as much as the
memory can.
"""

from __future__ import annotations

import copy
import ctypes
import mmap
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from slurm_guard.checkpoint.reader import count_threads

_PIECE = 4 << 20
"""Bytes that a thread copies at a time."""

_LARGE = 2 << 20
"""Bytes from which on a buffer has pages of its own: the size of a huge one."""

_Kind = tuple[int, bool]
"""Size in bytes of a buffer, and whether it is meant to be pinned."""


class Staging:
    """The memory for one copy at a time: what `copy` returned is overwritten by its next call."""

    def __init__(self) -> None:
        self._buffers: list[tuple[_Kind, Any]] = []

    def copy(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The collected state with every tensor on the CPU and nothing shared with the training.

        Tensors that share memory share it in the copy too, as torch.save keeps it. Returns once the copies
        from devices have arrived.

        Raises:
            Exception: whatever an object in the state makes of being copied.
        """
        import torch

        tensors = [tensor for tensor in _tensors(saved) if _is_plain(tensor)]
        sources = {_key(tensor): tensor.untyped_storage() for tensor in tensors}
        kinds = [(source.nbytes(), source.device.type == "cuda") for source in sources.values()]
        buffers = dict(zip(sources, self._take(kinds), strict=True))
        with torch.no_grad():
            for key, source in sources.items():
                if source.device.type == "cuda" and source.nbytes():
                    buffers[key].copy_(source, non_blocking=True)
            _copy_bytes([(buffers[key], each) for key, each in sources.items() if each.device.type == "cpu"])
            for device in {source.device for source in sources.values() if source.device.type == "cuda"}:
                torch.cuda.synchronize(device)
            staged = {id(tensor): _view(tensor, buffers[_key(tensor)]) for tensor in tensors}
        return dict(copy.deepcopy(dict(saved), staged))

    def _take(self, kinds: list[_Kind]) -> list[Any]:
        """A buffer of each kind, old ones first. What fits no more is freed before anything new is taken."""
        old = defaultdict(list)
        for kind, buffer in self._buffers:
            old[kind].append(buffer)
        found = [old[kind].pop() if old[kind] else None for kind in kinds]
        self._buffers = []
        old.clear()
        taken = [
            _make_buffer(kind) if buffer is None else buffer
            for kind, buffer in zip(kinds, found, strict=True)
        ]
        self._buffers = list(zip(kinds, taken, strict=True))
        return taken


def _make_buffer(kind: _Kind) -> Any:
    import torch

    size, pinned = kind
    if pinned:
        try:
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).untyped_storage()
        except RuntimeError:  # the limit for locked memory: ordinary memory copies slower, and is right too
            pass
    if size < _LARGE:
        return torch.UntypedStorage(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A DataLoader worker would keep the pages of the save before, and this process get fresh ones.
    memory.madvise(mmap.MADV_DONTFORK)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _copy_bytes(pairs: list[tuple[Any, Any]]) -> None:
    """Into each storage what the other holds, as many bytes as that has."""
    pieces = [
        (target.data_ptr() + at, source.data_ptr() + at, min(_PIECE, source.nbytes() - at))
        for target, source in pairs
        for at in range(0, source.nbytes(), _PIECE)
    ]
    left = iter(pieces)  # each piece goes to one thread: the interpreter is only left by memmove

    def work() -> None:
        for piece in left:
            ctypes.memmove(*piece)

    helpers = [threading.Thread(target=work) for _ in range(min(count_threads(), len(pieces)) - 1)]
    started = []
    try:
        with suppress(RuntimeError):  # a limit of threads: this one does it all
            for helper in helpers:
                helper.start()
                started.append(helper)
        work()
    finally:
        for helper in started:
            helper.join()


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _is_plain(tensor: Any) -> bool:
    """Whether the bytes of its storage are all there is to it; others are copied by their own rules."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _key(tensor: Any) -> tuple[Any, int, int]:
    storage = tensor.untyped_storage()
    return storage.device, storage.data_ptr(), storage.nbytes()


def _view(tensor: Any, buffer: Any) -> Any:
    import torch

    view = torch.empty(0, dtype=tensor.dtype, device="cpu")  # whatever the default device is
    view.set_(buffer, tensor.storage_offset(), tensor.size(), tensor.stride())
    return view.requires_grad_(tensor.requires_grad)
