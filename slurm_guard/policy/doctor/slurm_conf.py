"""Slurm's configuration, as `scontrol show config` prints it or as slurm.conf says it: one form for both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Version = tuple[int, int, int]

_SHOWN = re.compile(r"([A-Za-z_]+)(?:\[\d+\])?\s*=(?:\s(.*))?")
_PAIR = re.compile(r"""(?:^|\s)([A-Za-z_]+)\s*[-+]?=\s*("[^"]*"|\S+)""")
_NONE = frozenset({"", "(null)", "none", "n/a", "unknown"})
_ENDLESS = frozenset({"unlimited", "infinite", "65534", "65535", "4294967294", "4294967295"})
_TABLES = ("nodename", "partitionname", "downnodes", "frontendname", "nodeset", "include")
_LISTS = frozenset({"prolog", "epilog", "prologslurmctld", "epilogslurmctld"})
_CGROUP_TITLE = "cgroup support configuration"

_DEFAULTS = {
    "proctracktype": "proctrack/cgroup",
    "unkillablesteptimeout": "60",
    "messagetimeout": "10",
    "killwait": "30",
    "jobrequeue": "1",
    "jobfileappend": "0",
    "killonbadexit": "0",
    "prologflags": "",
    "prologepilogtimeout": "unlimited",
    "healthcheckinterval": "0",
    "requeueexit": "",
    "authinfo": "",
    "schedulerparameters": "",
    "slurmctldparameters": "",
    "waittime": "0",
}
"""What Slurm takes for a key that slurm.conf leaves out. Of all of them a controller must say something.

No rule reads WaitTime: it comes last, so an answer that has it was not cut off before it."""

_NUMBERS = (
    "unkillablesteptimeout",
    "messagetimeout",
    "killwait",
    "jobrequeue",
    "jobfileappend",
    "killonbadexit",
    "prologepilogtimeout",
    "healthcheckinterval",
    "waittime",
)


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """Settings by their key in small letters, cgroup.conf's apart; `version` is None where it is unknown."""

    values: Mapping[str, str]
    cgroup: Mapping[str, str] = field(default_factory=dict)
    version: Version | None = None

    def text(self, key: str) -> str:
        """The value; empty for what is not set, however Slurm says that."""
        value = self.values.get(key.lower(), "")
        return "" if value.lower() in _NONE else value

    def words(self, key: str) -> tuple[str, ...]:
        """The value's parts between commas.

        >>> SlurmConfig({"prologflags": "Alloc, X11"}).words("PrologFlags")
        ('Alloc', 'X11')
        """
        return tuple(word.strip() for word in self.text(key).split(",") if word.strip())

    def option(self, key: str, name: str) -> str | None:
        """What `name=` says among the parts of the value, "" for a bare name; None where it is not there.

        >>> SlurmConfig({"authinfo": "socket=/s,cred_expire=5"}).option("AuthInfo", "cred_expire")
        '5'
        """
        for word in self.words(key):
            head, _, value = word.partition("=")
            if head.lower() == name.lower():
                return value
        return None

    def number(self, key: str) -> float | None:
        """The value as a number, endless as infinity; None where it is none.

        >>> config = SlurmConfig({"killwait": "30 sec", "prologepilogtimeout": "65534", "x": "-"})
        >>> config.number("KillWait"), config.number("PrologEpilogTimeout"), config.number("x")
        (30.0, inf, None)
        """
        head = self.values.get(key.lower(), "").split(" ")[0].lower()
        if head in _ENDLESS:
            return math.inf
        count = parse_count(head)
        return None if count is None else float(count)

    def since(self, *version: int) -> bool:
        """Whether it is known to be of this version or newer."""
        return self.version is not None and self.version >= version

    def before(self, *version: int) -> bool:
        """Whether it is known to be older than this version."""
        return self.version is not None and self.version < version


def parse_count(text: str) -> int | None:
    """The whole number that the text is, of at most ten digits; else None.

    >>> parse_count("86"), parse_count("-1"), parse_count("9" * 5000)
    (86, None, None)
    """
    return int(text) if re.fullmatch(r"\d{1,10}", text, re.ASCII) else None


def parse_version(text: str) -> Version | None:
    """The version in what a command or the controller says; None where there is none.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("25.11.0-0rc1"), parse_version("(null)")
    ((22, 5, 8), (25, 11, 0), None)
    """
    found = re.search(r"\b(\d{2})\.(\d{1,2})(?:\.(\d{1,3}))?(?![\d.])", text, re.ASCII)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def parse_scontrol_config(text: str) -> SlurmConfig:
    """The answer of `scontrol show config`; of two equal keys the first counts.

    >>> config = parse_scontrol_config("KillWait = 30 sec\\nProlog[0] = /a\\nProlog[1] = /b\\n")
    >>> config.text("KillWait"), config.words("Prolog")
    ('30 sec', ('/a', '/b'))
    """
    parts: dict[str, dict[str, str]] = {"": {}, _CGROUP_TITLE: {}}
    values: dict[str, str] | None = parts[""]
    for line in text.splitlines():
        found = _SHOWN.fullmatch(line.strip())
        if found and values is not None:
            _add(values, found[1].lower(), (found[2] or "").strip(), last=False)
        elif line.rstrip().endswith(":"):
            values = parts.get(line.strip().rstrip(":").lower())  # parts that no rule reads are passed over
    version = parse_version(parts[""].get("slurm_version", ""))
    return SlurmConfig(parts[""], parts[_CGROUP_TITLE], version)


def parse_slurm_conf(text: str, cgroup: str = "", version: Version | None = None) -> SlurmConfig:
    """The text of slurm.conf (its includes put in already) and of cgroup.conf; of two equal keys the last.

    >>> parse_slurm_conf("KillWait=9 # short\\nkillwait=10\\nNodeName=n1 State=UP").text("KillWait")
    '10'
    """
    values: dict[str, str] = {}
    for key, value in _read_pairs(text):
        _add(values, key, value, last=True)
    return SlurmConfig({**_DEFAULTS, **values}, dict(_read_pairs(cgroup)), version)


def find_unknown(config: SlurmConfig) -> tuple[str, ...]:
    """The keys that every release's answer has and this one lacks, or has with a value that is none."""
    lacking = {key for key in _DEFAULTS if key not in config.values}
    lacking |= {key for key in _NUMBERS if config.number(key) is None}
    return tuple(sorted(lacking))


def holds_settings(text: str) -> bool:
    """Whether a text says anything of what is judged: of another file the defaults would be.

    >>> holds_settings("KillWait=60"), holds_settings("#KillWait=60"), holds_settings("#!/bin/sh\\nA=1")
    (True, False, False)
    """
    keys = {key for key, _ in _read_pairs(text)}
    return bool(keys & (_DEFAULTS.keys() | _LISTS | {"clustername", "slurmctldhost", "controlmachine"}))


def _add(values: dict[str, str], key: str, value: str, *, last: bool) -> None:
    if key in _LISTS and key in values:
        values[key] += f",{value}"
    elif last or key not in values:
        values[key] = value


def _read_pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        said = re.split(r"(?<!\\)#", line, maxsplit=1)[0].strip()
        if not said.lower().startswith(_TABLES):
            for key, value in _PAIR.findall(said):
                yield key.lower(), value.strip('"')
