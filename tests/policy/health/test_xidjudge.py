"""The set of events is judged: echoes, the driver's own verdict, and what belongs together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.config.xid import load_xid_table
from slurm_guard.model.health import HealthClass, Level
from slurm_guard.model.xid import KernelRecord, PciAddress, XidEvent, XidKind
from slurm_guard.policy.health.xid import parse_xid
from slurm_guard.policy.health.xidjudge import explain_xid, judge_xids, select_xids

TABLE = load_xid_table()
GPUS = tuple(PciAddress(0, bus, 0) for bus in (0x1B, 0x2B, 0x3B, 0x4B))
RESET = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
REBOOT = "154, GPU recovery action changed from None to Node Reboot Required"
NOTHING = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
P2P = "154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"
NEW = "154, GPU recovery action changed from 0x0 (None) to 0x9 (Polish Required)"


def _event(said: str | int, gpu: int = 0, time_s: float | None = None) -> XidEvent:
    event = parse_xid(f"NVRM: Xid (PCI:{GPUS[gpu]}): {said}")
    assert event is not None
    return XidEvent(
        event.kind,
        event.code,
        event.device,
        event.text,
        KernelRecord("", time_s),
        fatal=event.fatal,
        recovery=event.recovery,
    )


def _switch(said: str) -> XidEvent:
    event = parse_xid(f"nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): {said}")
    assert event is not None
    return event


def _judge(*said: str | int) -> list[str]:
    found = judge_xids([_event(what) for what in said], TABLE)
    return [f"{f.level.value} {f.cls.value if f.cls else '-'} {f.value}" for f in found]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([48, 63, 94, 45], ["warn reset Xid 48"]),
        ([48, 64], ["fail replace Xid 48", "fail replace Xid 64"]),
        ([48, 95], ["fail reset Xid 48", "fail reset Xid 95"]),
        ([48, 95, 63], ["fail reset Xid 48", "fail reset Xid 95"]),
        ([48, 171], ["fail reset Xid 48"]),
        ([79], ["fail reboot Xid 79"]),
        ([79, REBOOT], ["fail reboot Xid 154: Node Reboot Required"]),
        ([45], []),
        ([63], []),
        ([94], ["warn restart Xid 94"]),
        ([13, 31, 43, 45, 68, 69, 137], []),
        ([109], ["warn reset Xid 109"]),
        ([109, RESET], ["fail reset Xid 154: GPU Reset Required"]),
        ([4711], []),
    ],
)
def test_what_belongs_together(said: list[str | int], found: list[str]) -> None:
    """The combinations of one GPU."""
    assert _judge(*said) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([119, NOTHING], []),
        ([119, RESET, NOTHING, 94], ["warn restart Xid 94"]),
        ([NOTHING, 119], ["fail reset Xid 119"]),
        ([119, NOTHING, 119], ["fail reset Xid 119"]),
        ([119, REBOOT], ["fail reboot Xid 154: Node Reboot Required"]),
        ([79, P2P], ["warn reset Xid 154: Drain P2P"]),
        ([64, RESET], ["fail reset Xid 154: GPU Reset Required", "fail replace Xid 64"]),
        ([64, NOTHING], ["fail replace Xid 64"]),
        ([RESET, NOTHING], []),
        ([NEW], ["fail reset Xid 154: Polish Required"]),
        (["154, words that changed"], []),
    ],
)
def test_the_driver_knows_best(said: list[str | int], found: list[str]) -> None:
    """Its verdict counts for what it had seen; that a part is worn out it does not say."""
    assert _judge(*said) == found


def test_what_the_driver_asks_for_now_is_newer_than_the_log() -> None:
    """NVML's recovery action stands behind every event."""
    (found,) = judge_xids([_event(119)], TABLE, asked={GPUS[0]: "None"})
    assert (found.level, found.cls) == (Level.WARN, HealthClass.RESET)
    assert judge_xids([_event(119), _event(RESET)], TABLE, asked={GPUS[0]: "None"}) == ()
    (found,) = judge_xids([_event(RESET), _event(119)], TABLE, asked={GPUS[0]: "None"})
    assert (found.level, found.value) == (Level.WARN, "Xid 119")
    (found,) = judge_xids([_event(31)], TABLE, asked={GPUS[0]: "Node Reboot Required"}, gpus={GPUS[0]: 5})
    assert (found.level, found.cls, found.gpu) == (Level.FAIL, HealthClass.REBOOT, 5)


@pytest.mark.parametrize("cause", [79, 119, 48])
def test_broken_links_of_the_others_are_echoes(cause: int) -> None:
    """One GPU is gone, and each of the others loses its NVLinks to it."""
    events = [_event(cause, 0), *(_event(74, gpu) for gpu in (1, 2, 3)), _event(74, 0)]
    found = judge_xids(events, TABLE, gpus=dict(zip(GPUS, range(4), strict=True)))
    assert {finding.gpu for finding in found} == {0}


def test_links_broken_on_all_gpus_but_one_point_at_it() -> None:
    """The far end of all those links is the one that says nothing."""
    events = [_event(74, gpu) for gpu in (0, 1, 3)]
    found = judge_xids(events, TABLE, gpus=dict(zip(GPUS, range(4), strict=True)))
    assert [(f.gpu, f.level) for f in found] == [
        (0, Level.FAIL),
        (1, Level.FAIL),
        (3, Level.FAIL),
        (2, Level.WARN),
    ]
    assert judge_xids(events[:1], TABLE, gpus={GPUS[0]: 0, GPUS[1]: 1})[-1].gpu == 0


@pytest.mark.parametrize(
    ("times_s", "cls"),
    [
        ([0.0, 1.0, 2.0, 3.0], HealthClass.RESTART),
        ([0.0, 200.0, 300.0, 450.0], HealthClass.RESTART),
        ([0.0, 200.0, 400.0], HealthClass.RESET),
        ([None, None, None], HealthClass.RESTART),
    ],
)
def test_a_code_that_comes_again_asks_for_a_reset(times_s: list[float | None], cls: HealthClass) -> None:
    """Bursts count, not lines; without times they are one."""
    (found,) = judge_xids([_event(32, time_s=time_s) for time_s in times_s], TABLE)
    assert (found.level, found.cls) == (Level.WARN, cls)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (["20034, Fatal, Link 30 LTSSM Fault Up"], [("fail", "reset")]),
        (["20034, Non-fatal, Link 30 x"], []),
        (["12028, Non-fatal, x", "12028, Data {0x1}"], []),
        (["20034, Non-fatal, x", "20034, Data {0x1}"], []),
        (["20034, Data {0x1}"], [("fail", "reset")]),
        (["12028, Fatal, x"], [("fail", "reset")]),
        (["23001, Fatal, x"], [("fail", "reboot")]),
        (["4711, Fatal, x"], [("fail", "reset")]),
        (["4711, x"], []),
    ],
)
def test_a_switch_says_itself_whether_it_is_fatal(said: list[str], found: list[tuple[str, str]]) -> None:
    """The word first, the table second; lines with details only do not count beside it."""
    judged = judge_xids([_switch(what) for what in said], TABLE)
    assert [(f.level.value, f.cls and f.cls.value) for f in judged] == found


def test_nvlink_5_is_as_bad_as_its_line_says() -> None:
    """Nonfatal is information; two of its sub-units never are more."""
    assert (
        _judge("149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 05 (0x0)", "147, TREX_EVT Fatal XC0 i0 Link 05")
        == []
    )
    assert _judge("149, NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x0)") == ["fail reset Xid 149"]


def test_the_evidence_says_where_what_and_when() -> None:
    """One line that an administrator accepts as a reason."""
    (found,) = judge_xids([_event("79, GPU has fallen off the bus.", time_s=t) for t in (5.0, 81.2)], TABLE)
    assert found.evidence == (
        "GPU 0000:1b:00: Xid 79: GPU fell off the PCIe bus, 2 lines, newest 81 s after boot: "
        "GPU has fallen off the bus."
    )


def test_only_this_boot_and_only_since() -> None:
    """What has no time cannot be called old."""
    old = XidEvent(XidKind.XID, 79, GPUS[0], record=KernelRecord("", 900.0, boot=0))
    new = [XidEvent(XidKind.XID, 48, GPUS[0], record=KernelRecord("", t, boot=1)) for t in (None, 5.0, 10.0)]
    assert select_xids([old, *new], boot=1) == new
    assert select_xids([old, *new], boot=1, since_s=10.0) == [new[0], new[2]]
    assert select_xids([old, *new]) == [old, *new]


@given(st.lists(st.tuples(st.sampled_from([*TABLE.xids, 7, 4711]), st.integers(0, 3)), max_size=12))
def test_what_programs_write_takes_no_node_away(said: list[tuple[int, int]]) -> None:
    """Beside any other codes: no finding ever comes from a code that is never to drain."""
    for finding in judge_xids([_event(code, gpu) for code, gpu in said], TABLE):
        code = int(finding.value.split()[1].rstrip(":"))
        assert not TABLE.xids[code].never_drain
        assert finding.cls is not None


def test_a_cut_line_is_nothing() -> None:
    """It is shown, and no finding comes of it."""
    cut = XidEvent(XidKind.XID, None, GPUS[0])
    assert judge_xids([cut], TABLE) == ()
    assert explain_xid(cut, TABLE).level is None
