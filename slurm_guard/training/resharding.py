"""Sharded tensors in a milestone: written by torch.distributed.checkpoint, so that any number of ranks reads
them.

Each rank writes one file of what it alone has, and of what several have one of them. Only tensors are in
these files: all else is in `state.pt`. Nothing in them is run when they are read: the list of tensors is a
pickle, in which torch's own few words are known and nothing else.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from slurm_guard.checkpoint.held import held
from slurm_guard.checkpoint.part import PartFile
from slurm_guard.errors import CheckpointError
from slurm_guard.model.checkpoint import Part
from slurm_guard.training.layout import Shard, Target, aim, find_dtype, local_tensor, wrap_local
from slurm_guard.training.shard import rebuild_shards

METADATA = ".metadata"
"""The list of all tensors and where in which file each piece of them is."""

_BUFFER = 1 << 20
_METADATA_WORDS = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
}


def write_dcp(
    directory: str,
    shards: Mapping[str, Any],
    group: Any,
    cancelled: Callable[[], bool] = lambda: False,
    written: Callable[[], None] = lambda: None,
) -> list[Part]:
    """Write the tensors into this directory; the files of this rank, which are on the disk then. `written` is
    called when they are, though other ranks still write theirs.

    Every rank of the group must call this, for the same directory, with its DTensors by path over memory of
    the CPU (`stage_shard`). No rank waits for another longer than the group's time limit, once or twice.

    Raises:
        CheckpointError: it failed on some rank, or a rank did not come; nothing written is of any use.
    """
    import torch
    from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, save

    # A part without elements says nothing, and some versions of torch mistake its place.
    kept = {path: shard for path, shard in shards.items() if local_tensor(shard).numel()}
    writer = _make_writer(directory, cancelled, written)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        with torch.no_grad():
            save(kept, storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise CheckpointError(f"rank {rank} cannot write its tensors: {_say(cause)}") from error
    except Exception as error:
        raise CheckpointError(f"the ranks cannot write tensors together: {_say(error)}") from error
    return list(writer.fs.parts.values())


def read_dcp(directory: str, state: Mapping[str, Any], skeleton: Mapping[str, Any]) -> dict[str, Any]:
    """The state whose skeleton (`take_shards`) was saved with these files, sharded as `state` is now.

    Another number of ranks, another mesh or no sharding at all: all fit. The tensors are on the CPU. Each
    rank reads what it needs by itself, without a word to others.

    Raises:
        CheckpointError: the training is another one, or the files are damaged.
    """
    templates: dict[str, tuple[Shard, Any]] = {}

    def make(shard: Shard, target: Target) -> Any:
        template = _make_template(shard, target)
        templates[shard.path] = (shard, template)
        return template

    saved = rebuild_shards(state, skeleton, make)
    if not templates:
        return saved
    try:
        _fill(directory, templates)
    except CheckpointError:
        raise
    except Exception as error:  # whatever torch makes of files that are not its own
        raise CheckpointError(f"the tensors in {directory} cannot be read: {_say(error)}") from error
    return saved


def read_metadata(directory: str) -> Any:
    """The list of tensors, as torch.distributed.checkpoint's Metadata. No code in it is run.

    Raises:
        CheckpointError: it is not there, or anything else.
    """
    path = os.path.join(directory, METADATA)
    try:
        with open(path, "rb") as file:
            metadata = _make_unpickler(file).load()
        places = metadata.storage_data.values()
        names = {place.relative_path for place in places}
        whole = isinstance(metadata.state_dict_metadata, dict)
        plain = not any(getattr(place, "transform_descriptors", None) for place in places)
    except Exception as error:
        raise CheckpointError(f"{path} is no list of tensors: {_say(error)}") from error
    if not whole or not plain or not all(_is_name(name) for name in names):
        raise CheckpointError(f"{path} lists what slurm-guard does not write")
    return metadata


def _make_template(shard: Shard, target: Target) -> Any:
    import torch

    if target.spec is None:
        return torch.empty(shard.shape, dtype=find_dtype(shard), device="cpu")
    spec, local_shape = aim(shard, target, as_saved=False)
    return wrap_local(torch.empty(local_shape, dtype=find_dtype(shard), device="cpu"), spec)


def _fill(directory: str, templates: Mapping[str, tuple[Shard, Any]]) -> None:
    """Read into the templates what is theirs, and see that not a single element is left out."""
    import torch
    from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader

    metadata = read_metadata(directory)
    wanted, sizes = {}, {}
    for path, (shard, template) in templates.items():
        _check_listed(shard, metadata)
        local = local_tensor(template) if hasattr(template, "placements") else template
        if local.numel():
            wanted[path], sizes[path] = template, local.numel()
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = FileSystemReader(directory)
    with torch.no_grad(), torch.device("cpu"):  # the planner computes with tensors, wherever new ones go
        planner.set_up_planner(wanted, metadata, False)
        reader.set_up_storage_reader(metadata, False)
        plan = planner.create_local_plan()
        found: Counter[str] = Counter()
        for item in plan.items:
            found[item.dest_index.fqn] += math.prod(item.lengths)
        if lacking := sorted(path for path, size in sizes.items() if found[path] != size):
            raise CheckpointError(f"{os.path.join(directory, METADATA)} lacks pieces of {lacking[0]}")
        reader.read_data(plan, planner).wait()


def _check_listed(shard: Shard, metadata: Any) -> None:
    if not shard.numel:
        return
    listed = metadata.state_dict_metadata.get(shard.path)
    size = getattr(listed, "size", None)
    if size is None or tuple(size) != shard.shape or listed.properties.dtype != find_dtype(shard):
        raise CheckpointError(f"{shard.path} is not among the tensors of the checkpoint as state.pt has it")


def _make_writer(directory: str, cancelled: Callable[[], bool], written: Callable[[], None]) -> Any:
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.filesystem import FileSystem
    from torch.distributed.checkpoint.metadata import StorageMeta

    # Older versions of torch warn of what they do themselves.
    warnings.filterwarnings("ignore", "TypedStorage is deprecated", module=r"torch\.distributed\.checkpoint")

    class Writer(FileSystemWriter):  # type: ignore[misc]
        """One file a rank; nothing is copied ahead, which would use the training's CUDA stream."""

        def __init__(self) -> None:
            super().__init__(directory, single_file_per_rank=True, sync_files=False, per_thread_copy_ahead=0)
            self.fs = _Files(FileSystem(), cancelled)

        def write_data(self, plan: Any, planner: Any) -> Any:
            try:
                done = super().write_data(plan, planner)
            except RuntimeError as error:
                raise self.fs.fault or error from error  # torch hides the reason behind a word of its own
            written()
            return done

        def storage_meta(self) -> Any:
            return StorageMeta()  # not the directory: it will have another name

    return Writer()


class _Files:
    """torch's files, hashed while they are written and synced to their last byte."""

    def __init__(self, files: Any, cancelled: Callable[[], bool]) -> None:
        self._files = files
        self._cancelled = cancelled
        self.parts: dict[str, Part] = {}
        self.fault: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    @contextmanager
    def create_stream(self, path: Any, _mode: str) -> Iterator[Any]:
        with held(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)) as descriptor:
            file = PartFile(descriptor, self._cancelled)
            raw = _Stream(file, self)
            try:
                stream = io.BufferedWriter(raw, _BUFFER)
                yield stream
                if not stream.closed:
                    stream.flush()
            finally:
                raw.close()  # what is still in a buffer must not go to whoever gets this number next
            os.fsync(descriptor)
            file.look()
        name = os.path.basename(path)
        self.parts[name] = Part(name, file.size, file.checksum)

    def rename(self, path: Any, new_path: Any) -> None:
        self._files.rename(path, new_path)
        name = os.path.basename(new_path)
        self.parts[name] = replace(self.parts.pop(os.path.basename(path)), name=name)


class _Stream(io.RawIOBase):
    """What torch writes into; it never goes back."""

    def __init__(self, file: PartFile, files: _Files) -> None:
        super().__init__()
        self._file = file
        self._files = files

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.size

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except Exception as error:
            self._files.fault = error
            raise


def _make_unpickler(file: Any) -> Any:
    import torch
    from torch.distributed.checkpoint import metadata

    def find_member(kind: Any, name: str) -> Any:
        if kind is not metadata._MEM_FORMAT_ENCODING:
            raise pickle.UnpicklingError(f"{kind!r} has no place in it")
        return kind[name]

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) == ("builtins", "getattr"):  # how Python 3.11 writes a member of an enum
                return find_member
            if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
            if name in _METADATA_WORDS.get(module, ()):
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")

    return Reader(file)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", ".", "..")


def _say(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
