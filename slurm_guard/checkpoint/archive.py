"""Files that torch.save and safetensors write: whole, or cut off? Nothing is ever unpickled.

torch.save writes a zip archive of uncompressed records with CRC-32, whose table of contents comes last
(https://docs.pytorch.org/docs/stable/notes/serialization.html). A safetensors file begins with the
length of a JSON header that tells where each tensor ends
(https://github.com/huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import Callable
from typing import BinaryIO

_ZIP = b"PK\x03\x04"
_END = b"PK\x05\x06"
_END_BYTES = 22
"""How an archive begins, and how its last record does."""
_HEADER_LIMIT = 100_000_000
"""Bytes of a safetensors header: the format's own limit."""
_PIECE = 1 << 20


def inspect_file(path: str) -> str:
    """Why this file cannot be whole, judged by its ends; empty when nothing speaks against it."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return "is not a file"
        if found.st_size == 0:
            return "is empty"
        with open(path, "rb") as file:
            if path.endswith(".safetensors"):
                return _inspect_safetensors(file, found.st_size)
            ends = _ends_as_archives if path.endswith(".distcp") else _ends_as_archive
            if _is_zip(file) and not ends(file, found.st_size):
                return "is cut off: the end of the archive is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return ""


def read_through(path: str, advance: Callable[[int], object]) -> str:
    """Read every byte; why the file is bad, or empty. `advance` gets the bytes read since its last call.

    The checksums of an archive are compared, where torch was not told to leave them out
    (torch.serialization.set_crc32_options). Other files have none: that they can be read is all that is
    known then.
    """
    if fault := inspect_file(path):
        return fault
    try:
        with open(path, "rb") as file:
            if _is_archive(path, file):
                return _read_archive(file, advance)
            file.seek(0)
            return _read_plain(file, advance)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _is_archive(path: str, file: BinaryIO) -> bool:
    """torch.distributed.checkpoint puts many archives one after the other: that is none."""
    return _is_zip(file) and not path.endswith(".distcp")


def _is_zip(file: BinaryIO) -> bool:
    """One byte of a beginning that was cut off after it is one."""
    return _ZIP.startswith(file.read(len(_ZIP)))


def _ends_as_archive(file: BinaryIO, _: int) -> bool:
    return zipfile.is_zipfile(file)


def _ends_as_archives(file: BinaryIO, size: int) -> bool:
    """One end of many is not enough here: it must be the last of the file. torch adds no comment to it."""
    file.seek(max(0, size - _END_BYTES))
    end = file.read(_END_BYTES)
    return len(end) == _END_BYTES and end.startswith(_END) and end.endswith(b"\0\0")


def _inspect_safetensors(file: BinaryIO, size: int) -> str:
    length = int.from_bytes(file.read(8), "little")
    if length > _HEADER_LIMIT:
        return "does not begin as safetensors do"
    text = file.read(length)
    if len(text) < length:
        return "is cut off in its header"
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max((int(end) for end in ends), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "does not have the header of safetensors"
    return "" if size == expected else f"has {size} bytes instead of {expected}"


def _read_plain(file: BinaryIO, advance: Callable[[int], object]) -> str:
    while piece := file.read(_PIECE):
        advance(len(piece))
    return ""


def _read_archive(file: BinaryIO, advance: Callable[[int], object]) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            if not any(record.CRC for record in records):  # torch left the checksums out
                file.seek(0)
                return _read_plain(file, advance)
            for record in records:
                if record.compress_type != zipfile.ZIP_STORED:
                    return f"holds a compressed record ({record.filename}), which torch never writes"
                if fault := _read_record(archive, record, advance):
                    return fault
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        return f"is damaged: {error}"
    return ""


def _read_record(archive: zipfile.ZipFile, record: zipfile.ZipInfo, advance: Callable[[int], object]) -> str:
    try:
        with archive.open(record) as stream:
            while piece := stream.read(_PIECE):
                advance(len(piece))
    except zipfile.BadZipFile:
        return f"is damaged: {record.filename} does not have its checksum"
    except EOFError:
        return f"is cut off in {record.filename}"
    return ""
