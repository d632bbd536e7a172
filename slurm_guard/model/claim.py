"""What the user's side of a job leaves for root on its node, one small file each, in the one form of both.

Nothing of it is believed: a claim makes root look for himself, and a pointer says where a scene lies.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

SCHEMA = 1
LIMIT_BYTES = 4096
MOST_PIDS = 256
_SCENE = "scene"
_JOB = re.compile(r"[0-9]{1,20}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_INCIDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_GPU = re.compile(r"[A-Za-z0-9-]{0,64}")
_CHECK = re.compile(r"[a-z0-9_]{0,40}")
_DIRECTORY = re.compile(r"/[^\x00-\x1f\x7f]{0,1023}")
_MOST_PID = 1 << 22
_LATEST_S = 1e11


class ClaimClass(str, Enum):
    """What is claimed: processes that no signal ends, or a GPU that is broken."""

    UNKILLABLE = "unkillable"
    HARDWARE = "hardware"


@dataclass(frozen=True, slots=True)
class Claim:
    """`time_s` is wall time. `pids` belong to UNKILLABLE; `gpu` (its UUID) and `check` to HARDWARE."""

    cls: ClaimClass
    job_id: str
    node: str
    incident: str
    time_s: float
    pids: tuple[int, ...] = ()
    gpu: str = ""
    check: str = ""


@dataclass(frozen=True, slots=True)
class ScenePointer:
    """A scene that shared storage did not take lies in `directory` on this node."""

    job_id: str
    node: str
    incident: str
    time_s: float
    directory: str


Left = Union[Claim, ScenePointer]


def name_file(left: Left) -> str:
    """The name of its file.

    >>> name_file(ScenePointer("7", "n2", "001-stall", 12.5, "/tmp/s"))
    'scene-001-stall.json'
    """
    kind = left.cls.value if isinstance(left, Claim) else _SCENE
    return f"{kind}-{left.incident}.json"


def encode_left(left: Left) -> bytes:
    """The content of its file.

    Raises:
        ValueError: its reader would not take it.
    """
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "class": left.cls.value if isinstance(left, Claim) else _SCENE,
        "job_id": left.job_id,
        "node": left.node,
        "incident": left.incident,
        "time_s": left.time_s,
    }
    if isinstance(left, ScenePointer):
        body["directory"] = left.directory
    else:
        body |= {"pids": list(left.pids[:MOST_PIDS]), "gpu": left.gpu, "check": left.check}
    data = json.dumps(body, separators=(",", ":")).encode() + b"\n"
    decode_left(data)
    return data


def decode_left(data: bytes) -> Left:
    """What the file says.

    Raises:
        ValueError: it is not exactly in the form; a few words say where, and nothing of the file is in them.
    """
    if len(data) > LIMIT_BYTES:
        raise ValueError(f"it is larger than {LIMIT_BYTES} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(body, dict) or type(body.get("schema")) is not int or body["schema"] != SCHEMA:
        raise ValueError(f"it is no object of schema {SCHEMA}")
    if body.get("class") == _SCENE:
        _want(body, {"schema", "class", "job_id", "node", "incident", "time_s", "directory"})
        return ScenePointer(*_head(body), _text(body, "directory", _DIRECTORY))
    _want(body, {"schema", "class", "job_id", "node", "incident", "time_s", "pids", "gpu", "check"})
    cls = next((cls for cls in ClaimClass if cls.value == body["class"]), None)
    if cls is None:
        raise ValueError("its class is not known")
    gpu, check = _text(body, "gpu", _GPU), _text(body, "check", _CHECK)
    return Claim(cls, *_head(body), _pids(body), gpu, check)


def _want(body: dict[str, Any], keys: set[str]) -> None:
    if body.keys() != keys:
        raise ValueError("it has other keys than its class")


def _head(body: dict[str, Any]) -> tuple[str, str, str, float]:
    names = (_text(body, "job_id", _JOB), _text(body, "node", _NODE), _text(body, "incident", _INCIDENT))
    time_s = body["time_s"]
    if type(time_s) not in (int, float) or not 0 <= time_s < _LATEST_S:  # NaN is no time either
        raise ValueError("its time_s is no time")
    return (*names, float(time_s))


def _text(body: dict[str, Any], key: str, form: re.Pattern[str]) -> str:
    text = body[key]
    if not isinstance(text, str) or not form.fullmatch(text):
        raise ValueError(f"its {key} is not in the form")
    return text


def _pids(body: dict[str, Any]) -> tuple[int, ...]:
    pids = body["pids"]
    if not isinstance(pids, list) or len(pids) > MOST_PIDS:
        raise ValueError("its pids are no short list")
    if any(type(pid) is not int or not 1 < pid < _MOST_PID for pid in pids):
        raise ValueError("its pids are no pids")
    return tuple(pids)
