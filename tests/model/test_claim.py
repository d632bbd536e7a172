"""A claim is taken exactly as the watchdog writes it, and nothing else is taken for one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.claim import (
    LIMIT_BYTES,
    MOST_PIDS,
    Claim,
    ClaimClass,
    Left,
    ScenePointer,
    decode_left,
    encode_left,
    name_file,
)

UNKILLABLE = Claim(ClaimClass.UNKILLABLE, "7", "n2", "20261129T200657-non_finite-16ef", 12.5, (4, 5))
HARDWARE = Claim(
    ClaimClass.HARDWARE,
    "7",
    "n2",
    "i",
    12.5,
    gpu="GPU-6fe1bbd5-7b3f-4e4b-b0b3",
    check="ecc_sram",
)
SCENE = ScenePointer("7", "n2", "i", 12.5, "/tmp/a 'dir' of $(somebody)")


@pytest.mark.parametrize("left", [UNKILLABLE, HARDWARE, SCENE])
def test_what_is_written_is_read(left: Left) -> None:
    """Writer and reader have one form."""
    assert decode_left(encode_left(left)) == left


@pytest.mark.parametrize(
    ("left", "name"), [(UNKILLABLE, "unkillable"), (HARDWARE, "hardware"), (SCENE, "scene")]
)
def test_file_is_named_by_class_and_incident(left: Left, name: str) -> None:
    """So the claims of one incident stand side by side."""
    assert name_file(left) == f"{name}-{left.incident}.json"


def test_claim_of_many_processes_stays_small() -> None:
    """4 KiB is what its reader takes."""
    data = encode_left(replace(UNKILLABLE, pids=tuple(range(4_000_000, 4_010_000))))
    assert len(data) <= LIMIT_BYTES
    assert len(json.loads(data)["pids"]) == MOST_PIDS


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"schema": True},
        {"class": "drain"},
        {"class": ["scene"]},
        {"job_id": 7},
        {"job_id": "7_1"},
        {"job_id": "٧"},
        {"node": "n2 reason=x"},
        {"node": "../n2"},
        {"incident": "a/b"},
        {"incident": ""},
        {"time_s": "12"},
        {"time_s": True},
        {"time_s": float("nan")},
        {"time_s": -1},
        {"time_s": 10**400},
        {"pids": [1]},
        {"pids": [4, True]},
        {"pids": [4.0]},
        {"pids": list(range(2, MOST_PIDS + 3))},
        {"pids": None},
        {"gpu": "GPU 3"},
        {"check": "ecc\nsram"},
        {"reason": "please"},
    ],
)
def test_claim_with_one_thing_wrong_is_none(change: dict[str, object]) -> None:
    """Every key is there, of its type and form, and no other."""
    body = json.loads(encode_left(UNKILLABLE)) | change
    with pytest.raises(ValueError, match=r"^(it|its) "):
        decode_left(json.dumps(body).encode())


@pytest.mark.parametrize("directory", ["tmp", "/a\nb", "/" + "a" * 2000, "/a\x00b", ""])
def test_scene_lies_in_a_plain_absolute_directory(directory: str) -> None:
    """Of a path only what a log line can bear."""
    with pytest.raises(ValueError, match="directory"):
        encode_left(replace(SCENE, directory=directory))


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"[" * 4000, b"\xff\xfe", b"{", b"{}", b'{"schema":1}', b" " * 4097, b"9" * 4000],
)
def test_other_files_are_no_claims(data: bytes) -> None:
    """Nothing but ValueError comes of them, and its words hold nothing of theirs."""
    with pytest.raises(ValueError, match=r"^it(s)? (is|has|class|time)"):
        decode_left(data)


_KEYS = ("schema", "class", "job_id", "node", "incident", "time_s", "pids", "gpu", "check")
_VALUES = st.none() | st.booleans() | st.floats() | st.text(max_size=5)
_BODIES = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner),
    max_leaves=12,
)


@given(st.binary(max_size=300) | _BODIES.map(lambda value: json.dumps(value).encode()))
def test_any_file_is_refused_in_one_way(data: bytes) -> None:
    """Whatever a user puts there."""
    with pytest.raises(ValueError, match=r"^its? "):
        decode_left(data)
