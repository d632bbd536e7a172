"""Take secrets out of what is captured. Pure; when in doubt a value goes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

REDACTED = "<redacted>"
_SHORTEST = 6

_SECRET_NAME = re.compile(
    r"KEY|TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|PWD|CRED|AUTH|COOKIE|PRIVATE|SESSION|JWT|BEARER"
    r"|SIGNATURE|WEBHOOK|DSN|_SAS$|CONNECTION_STRING",
    re.IGNORECASE,
)

# The look-behinds let a match begin at the start of a word only: without them a long word costs its square.
_SECRET_VALUE = re.compile(
    r"(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|hf_[A-Za-z0-9]{8,}"
    r"|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
    r"|\bsk-[\w-]{8,}"
    r"|xox[a-z]-[\w-]{8,}"
    r"|AIza[\w-]{20,}"
    r"|(?<![\w-])eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?"
    r"|-----BEGIN[^-]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|$)",
    re.DOTALL,
)
_URL_PASSWORD = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://)[^/\s@]+@")
_ASSIGNMENT = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[=:]\s*""")
_OPTION = re.compile(r"(?<![\w.-])(--?[\w.-]+)\s+(?!-)")
_VALUE = re.compile(r"""(?:Bearer\s+|Basic\s+)?(?:"[^"]*"|'[^']*'|[^\s,;&"']+)""", re.IGNORECASE)
_HEADER = re.compile(r"\b(Bearer|Basic)\s+[\w.+/=-]{6,}", re.IGNORECASE)

_PLAIN = frozenset({"SLURM_GUARD_RUN", "PWD", "OLDPWD"})
_PLAIN_NAME = re.compile(
    r"^(?:SLURM|SRUN|SBATCH|CUDA|NVIDIA|NCCL|GPU|ROCR|HIP|PMI|PMIX|OMP|MKL|LD|PYTHON|CONDA|XDG|LMOD|MODULE)"
    r"|PATH$|DIR$|^LS_COLORS$|^HOME$|^SHELL$|^HOST(?:NAME)?$"
)
_RANDOM = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_RANDOM_BITS = 3.8


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without its secrets: by name, by the form of a value, by its randomness.

    >>> redact_environment({"HF_TOKEN": "x", "DB": "pg://me:pw@host/db", "LANG": "C"})
    {'HF_TOKEN': '<redacted>', 'DB': 'pg://<redacted>@host/db', 'LANG': 'C'}
    """
    return {name: _redact_value(name, value) for name, value in environment.items()}


def redact_command(words: Sequence[str]) -> str:
    """The command line without its secrets.

    >>> redact_command(["train.py", "--password", "x", "--api-key=y", "--lr", "1"])
    'train.py --password <redacted> --api-key=<redacted> --lr 1'
    """
    shown: list[str] = []
    hide = False
    for word in words:
        is_option = word.startswith("-")
        shown.append(REDACTED if hide and not is_option else redact_text(word))
        hide = is_option and "=" not in word and _SECRET_NAME.search(word) is not None
    return " ".join(shown)


def find_secrets(environment: Mapping[str, str], words: Sequence[str]) -> dict[bytes, bytes]:
    """What must not be seen of this environment and command line wherever it stands -> what is shown.

    Values of less than 6 characters are left out: they are found in everything.

    >>> find_secrets({"HF_TOKEN": "abcdef", "LANG": "C"}, ["train.py", "--password", "longer"])
    {b'abcdef': b'<redacted>', b'longer': b'<redacted>'}
    """
    found = {value: _redact_value(name, value) for name, value in environment.items()}
    for before, word in zip(("", *words), words, strict=False):
        hidden = redact_command([before, word]).removeprefix(f"{redact_text(before)} ")
        # Of `--api-key=VALUE` the value alone.
        value = word.partition("=")[2] if word.startswith("-") and hidden.endswith(f"={REDACTED}") else word
        found[value] = REDACTED if value != word else hidden
    return {
        value.encode(errors="surrogateescape"): shown.encode(errors="surrogateescape")
        for value, shown in found.items()
        if value != shown and len(value) >= _SHORTEST
    }


def redact_text(text: str) -> str:
    """Free text without the secrets that can be recognised in it."""
    text = _URL_PASSWORD.sub(rf"\g<1>{REDACTED}@", text)
    text = _hide_values(_OPTION, _hide_values(_ASSIGNMENT, text))
    text = _HEADER.sub(rf"\g<1> {REDACTED}", text)
    text = _SECRET_VALUE.sub(REDACTED, text)
    return _RANDOM.sub(lambda found: REDACTED if _is_random(found[0]) else found[0], text)


def _hide_values(label: re.Pattern[str], text: str) -> str:
    shown: list[str] = []
    end = 0
    for found in label.finditer(text):
        if found.start() < end or not _SECRET_NAME.search(found[1]):
            continue
        if value := _VALUE.match(text, found.end()):
            shown += [text[end : found.end()], REDACTED]
            end = value.end()
    return "".join([*shown, text[end:]])


def _redact_value(name: str, value: str) -> str:
    if not value or name in _PLAIN:
        return value
    if _SECRET_NAME.search(name):
        return REDACTED
    if _PLAIN_NAME.search(name):
        return _SECRET_VALUE.sub(REDACTED, _URL_PASSWORD.sub(rf"\g<1>{REDACTED}@", value))
    return redact_text(value)


def _is_random(text: str) -> bool:
    digit = any(c.isdigit() for c in text)
    if _HEX.fullmatch(text):
        return digit and any(c.isalpha() for c in text)
    if text.count("/") > 2 or not digit:
        return False
    mixed = any(c.isupper() for c in text) and any(c.islower() for c in text)
    counts = [text.count(c) / len(text) for c in set(text)]
    return mixed and -sum(share * math.log2(share) for share in counts) >= _RANDOM_BITS
