"""The table of codes: as the catalogue has them, and a site's changes of single codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_guard.config.xid import load_xid_table
from slurm_guard.errors import ConfigError
from slurm_guard.model.health import HealthClass, Level
from slurm_guard.policy.health.gpu import name_action
from slurm_guard.policy.health.xidjudge import explain_recovery

CATALOGUE = {
    "information": "14 37 38 45 63 66 67 92 93 106-108 121-125 141 152-154 160-166 170",
    "application": "11 13 25 31 43 68 69 82-84 86 88 89 96-105 137 139 142",
    "restart": "8 32 39-41 44 60 61 70-72 75-78 80 85 94 126-135 151 159",
    "reset": "46 48 62 74 95 109 119 120 136 140 143-150 155 156 158 169 171-173",
    "reboot": "79 110 167 168",
    "replace": "54 64 157",
}
"""Classes by NVIDIA's catalogue for Ampere and newer, and the archived table for older codes."""
NEVER_DRAIN = "11 13 14 25 31 37 43 45 68 69 82-84 86 88 89 96-105 137 139 142"
SWITCH = {
    "information": "11004 11012 11021-11023 12021 12023 12028 15008 15011 19049 19055 19057 19059 19062 "
    "19065 19068 19071 19084 20001 20012 22013 24001-24003",
    "reset": "11001 11009 11013 11018-11020 12001 12002 12022 12024-12027 12030-12032 14017 15001 15006 "
    "15009 15010 15012 15013 19047 19048 19054 19056 19058 19060 19061 19063 19064 19066 19067 19069 "
    "19070 20034 22012 24004-24007",
    "reboot": "10001-10005 12020 20009 22003 22011 23001-23017",
}


def _codes(text: str) -> set[int]:
    ends = [[int(end) for end in word.split("-")] for word in text.split()]
    return {code for end in ends for code in range(end[0], end[-1] + 1)}


def _word(cls: HealthClass | None) -> str:
    return cls.value if cls else "information"


def test_every_code_has_the_catalogues_class_or_says_why_not() -> None:
    """No code is missing, and none is there that the catalogue does not have."""
    table = load_xid_table()
    known = {code: word for word, text in CATALOGUE.items() for code in _codes(text)}
    assert set(table.xids) == set(known)
    differ = {code for code, entry in table.xids.items() if _word(entry.cls) != known[code]}
    assert differ == {code for code, entry in table.xids.items() if entry.differs} == {147, 148}


def test_codes_of_switches_are_those_of_the_guide() -> None:
    """25 not fatal, 42 fatal for a port or partition, 26 for the fabric."""
    table = load_xid_table()
    assert {code: _word(entry.cls) for code, entry in table.sxids.items()} == {
        code: word for word, text in SWITCH.items() for code in _codes(text)
    }


def test_what_programs_can_write_never_drains() -> None:
    """Each such code is marked, and no marked code fails a node."""
    table = load_xid_table()
    assert {code for code, entry in table.xids.items() if entry.never_drain} == _codes(NEVER_DRAIN)
    assert {entry.level for entry in table.xids.values() if entry.never_drain} == {None}


def test_levels_follow_the_class_but_where_the_table_says_otherwise() -> None:
    """A code with a doubtful or a deferred action warns."""
    table = load_xid_table()
    grave = (HealthClass.RESET, HealthClass.REBOOT, HealthClass.REPLACE)
    soft = {c for c, entry in table.xids.items() if entry.cls in grave and entry.level is Level.WARN}
    assert soft == {109, 156, 157}
    assert {e.level for e in table.xids.values() if e.cls is HealthClass.RESTART} == {Level.WARN}
    assert all(entry.name and entry.do and entry.source for entry in table.xids.values())


def test_what_nvml_asks_for_is_what_the_log_asks_for() -> None:
    """The driver's verdict means the same by number and by word; a number unknown is an action too."""
    table = load_xid_table()
    words = [name_action(number) for number in range(9)]
    asked = [explain_recovery(word, table) for word in words]
    assert [_word(entry.cls) for entry in asked] == [
        *("information", "reset", "reboot", "reset", "reset", "reset", "reboot", "reboot", "reset")
    ]
    assert [entry.level for entry in asked] == [None, Level.FAIL, Level.FAIL, Level.WARN, *[Level.FAIL] * 5]
    assert [word.lower() in table.recovery for word in words] == [*[True] * 8, False]


def test_a_site_changes_single_codes(tmp_path: Path) -> None:
    """The keys it gives; the rest of the entry, and all other codes, stay. The source says so."""
    site = tmp_path / "xid.toml"
    site.write_text(
        '[[xid]]\ncode = [109, 63]\nclass = "reset"\nlevel = "fail"\n'
        '[[xid]]\ncode = 79\ndo = "Call the operator."\n'
        '[[xid]]\ncode = 200\nname = "new one"\nclass = "reboot"\n'
        '[[recovery]]\ntext = "Polish Required"\nclass = "information"\n'
    )
    shipped, table = load_xid_table(), load_xid_table(site)
    assert (table.xids[109].level, table.xids[63].cls) == (Level.FAIL, HealthClass.RESET)
    assert table.xids[109].name == shipped.xids[109].name
    assert (table.xids[79].cls, table.xids[79].do) == (HealthClass.REBOOT, "Call the operator.")
    assert table.xids[200].source == table.xids[79].source == f"site: {site}"
    assert table.recovery["polish required"].level is None
    assert table.xids[48] == shipped.xids[48]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[xid]]\ncode = 31\nclass = "reset"', "xid 31: class = 'reset': programs can write this code"),
        ("[[xid]]\ncode = 31\nnever_drain = false", "xid 31: never_drain = false: programs can write"),
        ('[[xid]]\ncode = 94\nclass = "C"', "xid 94: class = 'C' is none: one of information, "),
        ('[[xid]]\ncode = 94\nclass = ["reset"]', "xid 94: class = ['reset'] is no text of one line"),
        ('[[xid]]\ncode = 31\nlevel = "fail"', "xid 31: level = 'fail' means nothing for its class: take"),
        ('[[xid]]\ncode = 79\nlevel = "drain"', "xid 79: level = 'drain' is none: give \"warn\" or"),
        ("[[xid]]\ncode = 79\nlevell = 1", "xid 79: levell = 1 is not known: one of name, class"),
        ('[[xid]]\ncode = 79\nname = ""', "xid 79: name = '' is no text of one line"),
        ('[[xid]]\ncode = 79\ndo = "a\\nb"', "xid 79: do = 'a\\nb' is no text of one line"),
        ("[[xid]]\ncode = 79\nnever_drain = 1", "xid 79: never_drain = 1 is neither true nor false"),
        ("[[xid]]\ncode = 8\nrepeats = -1", "xid 8: repeats = -1 is no number of bursts"),
        ('[[xid]]\ncode = 200\nclass = "reset"', "xid 200: is new here and has no name: give its name"),
        ('[[xid]]\ncode = 200\nname = "a"', "xid 200: is new here and has no class"),
        ("[[xid]]\ncode = [79, 48]\n[[xid]]\ncode = 79", "xid 79: is there twice: keep one"),
        ('[[xid]]\ncode = "79"', "entry 1 of [[xid]]: code = '79' is none: give code = 79 or a list"),
        ("[[xid]]\ncode = true", "entry 1 of [[xid]]: code = True is none"),
        ("[[xid]]\nclass = 'reset'", "entry 1 of [[xid]]: code = None is none"),
        ("[[sxid]]\ncode = -1", "entry 1 of [[sxid]]: code = -1 is none"),
        ("[[recovery]]\ntext = 1", 'entry 1 of [[recovery]]: text = 1 is none: give text = "None"'),
        ("[xid]\ncode = 79", "[xid] stands in single brackets: write [[xid]]"),
        ("[[xids]]\ncode = 79", "[xids] is no table: write [[xid]], [[sxid]] or [[recovery]]"),
        ("[do]\nreset = 'x'", "[do] is no table"),
        ("[[xid]\n", "line 1, column 6 is no TOML"),
    ],
)
def test_a_mistake_is_one_line_with_file_code_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    """A wrong table takes nodes away or keeps sick ones: it is refused whole."""
    site = tmp_path / "xid.toml"
    site.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_xid_table(site)
    assert str(error.value).startswith(f"{site}: {said}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Whoever names a file means it."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_xid_table(tmp_path / "none.toml")
