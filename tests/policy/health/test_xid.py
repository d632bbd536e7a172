"""A line of the driver is understood where it is whole, and never more than it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_guard.model.xid import KernelRecord, PciAddress, XidKind
from slurm_guard.policy.health.xid import parse_pci, parse_xid, parse_xids

GPU = PciAddress(0, 0x3B, 0)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 79),
        ("NVRM: Xid (PCI:0000:3b:00): 79", 79),
        ("NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row (0x1) marked for remapping, reset gpu", 63),
        ("NVRM: Xid (0000:3b:00): 14, Channel 00000001", 14),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", 79),
        ("NVRM: The NVIDIA GPU 0000:3b:00.0 has fallen off the bus and is not responding to commands.", 79),
        ("NVRM: Xid (PCI:00000000:3B:00.0): 31, pid=7, name=a, MMU Fault", 31),
    ],
)
def test_the_code_is_the_first_number_behind_the_address(line: str, code: int) -> None:
    """With and without process, prefix and text."""
    event = parse_xid(line)
    assert event is not None
    assert (event.kind, event.code, event.device) == (XidKind.XID, code, GPU)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        " ",
        " ...",
        " pid=79, name=a",
        " 79 and more",
        " 79,x",
        " 0x4f, text",
        " 7.9, x",
        " -79, x",
        " 79; x",
    ],
)
def test_a_line_without_a_whole_code_has_none(rest: str) -> None:
    """Cut by the ring buffer or of another shape: unparsed is not critical."""
    event = parse_xid("NVRM: Xid (PCI:0000:3b:00):" + rest)
    assert event is not None
    assert event.code is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:3b:0",
        "NVRM: Xid (PCI:0000:3b:00) 79, x",
        "NVRM: Xid (PCI:zzzz:3b:00): 79, x",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 79",
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0x65:79)",
        "python3[79]: NVRM: Xid (PCI:0000:3b:00): 79, x",
        "audit: comm='NVRM: Xid (PCI:0000:3b:00): 79, '",
        "usb 1-1: SerialNumber: NVRM: Xid (PCI:0000:3b:00): 79,",
        " nvidia-nvswitch2: SXid (PCI:0000:c5:00.0): 20034, Fatal",
        "NVRM: SXid (PCI:0000:c5:00.0): 20034, Fatal, x",
    ],
)
def test_what_is_no_event_gives_none(line: str) -> None:
    """Bare numbers are never searched for, and a line has to begin as the driver's do."""
    assert parse_xid(line) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("python3", "python3"),
        ("a, b(c) [x]", "a, b(c) [x]"),
        ("nvc:[driver]", "nvc:[driver]"),
        ("", ""),
        ("<unknown>", ""),
        ("): 79, x", "): 79, x"),
    ],
)
def test_process_and_channel_are_told_apart(name: str, said: str) -> None:
    """A name may hold commas, brackets and numbers: it is no code and no text."""
    event = parse_xid(f"NVRM: Xid (PCI:0000:3b:00): 31, pid=70123, name={name}, Ch 0000000a, intr 00000000.")
    assert event is not None
    assert (event.code, event.pid, event.process, event.channel) == (31, 70123, said, "0000000a")
    assert event.text == "intr 00000000."


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "GPU Reset Required"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "None"),
        ("GPU recovery action changed from None to Node Reboot Required", "Node Reboot Required"),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "OS Reboot"),
        ("pid=1, name=x(None), GPU recovery action changed from None to Node Reboot Required",
         "Node Reboot Required"),
        ("pid=1, name=a, (None), GPU recovery action changed from None to Node Reboot Required",
         "Node Reboot Required"),
        ("something new", ""),
    ],
)  # fmt: skip
def test_what_the_driver_asks_for_is_its_last_word(text: str, asked: str) -> None:
    """The last bracket, or what follows `to`; a process's name cannot stand in for it."""
    event = parse_xid(f"NVRM: Xid (PCI:0000:3b:00): 154, {text}")
    assert event is not None
    assert event.recovery == asked


@pytest.mark.parametrize(
    ("line", "code", "device", "fatal", "link"),
    [
        ("nvidia-nvswitch2: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
         20034, PciAddress(0, 0xC5, 0), True, 30),
        ("nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress (First)",
         12028, PciAddress(0, 0xC5, 0), False, 32),
        ("nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 12028, Data {0x00000001}",
         12028, PciAddress(0, 0xC5, 0), None, None),
        ("NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x004505c6 0x00000000)",
         149, PciAddress(9, 1, 0), True, 5),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC1 i3 Link -1 (0x0)",
         145, PciAddress(0x18, 1, 0), False, -1),
    ],
)  # fmt: skip
def test_links_and_the_word_fatal(
    line: str, code: int, device: PciAddress, fatal: bool | None, link: int | None
) -> None:
    """Switches and NVLink 5 say it themselves."""
    event = parse_xid(line)
    assert event is not None
    assert (event.code, event.device, event.fatal, event.link) == (code, device, fatal, link)


def test_addresses_of_all_spellings_are_one() -> None:
    """NVML writes 8 digits and capitals, sysfs a function, the log neither."""
    spelt = ["00000009:3B:00.0", "0009:3b:00.0", "PCI:0009:3b:00", "0009:3b:00"]
    assert {parse_pci(text) for text in spelt} == {PciAddress(9, 0x3B, 0)}
    assert [parse_pci(text) for text in ("", "3b:00.0", "0009:3b:00.0x", "g009:3b:00")] == [None] * 4


def test_a_sentence_over_several_records_is_one_event() -> None:
    """Old drivers say that a GPU is gone in three records; two sentences that begin alike stay apart."""
    gone = [
        "NVRM: The NVIDIA GPU 0000:3b:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [(e.code, e.device) for e in parse_xids(map(KernelRecord, gone))] == [(79, GPU)]
    other = [*gone[:2], "NVRM: a", "NVRM: b", gone[2]]
    assert list(parse_xids(map(KernelRecord, other))) == []


def test_the_uuid_of_a_gpu_goes_with_its_events() -> None:
    """The driver names it once, before its first event."""
    uuid = "GPU-0a1b2c3d-1111-2222-3333-444455556666"
    lines = [f"NVRM: GPU at PCI:0000:3b:00: {uuid}"]
    lines += [f"NVRM: Xid (PCI:0000:{bus}:00): 79, x" for bus in ("3b", "4b")]
    assert [event.uuid for event in parse_xids(map(KernelRecord, lines))] == [uuid, ""]


_PIECES = st.sampled_from(
    [
        *("NVRM: ", "Xid (", "PCI:", "0000:3b:00", "): ", "79", ", ", "154", "pid=", "name=", "Ch 0000000a"),
        *(
            "GPU recovery action changed from ",
            " to ",
            "(",
            ")",
            "\x00",
            "\n",
            "٣",
            "²",
            "Fatal",
            "Link ",
            "-1",
        ),
        *("nvidia-nvswitch2: SXid (", "The NVIDIA GPU ", "fallen off the bus"),
    ]
)


@given(st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=14))
def test_no_line_raises(pieces: list[str]) -> None:
    """Whatever stands in a log."""
    text = "".join(pieces)
    list(parse_xids([KernelRecord(text), KernelRecord("NVRM: Xid (PCI:0000:3b:00): " + text)]))
    parse_pci(text)


@given(st.text(max_size=15).filter(lambda name: "\n" not in name))
def test_no_process_name_changes_the_code(name: str) -> None:
    """A name has at most 15 bytes, and its process chooses them."""
    said = f"pid=5, name={name}, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    event = parse_xid(f"NVRM: Xid (PCI:0000:3b:00): 154, {said}")
    assert event is not None
    assert (event.code, event.device, event.recovery) == (154, GPU, "Node Reboot Required")


@given(st.integers(0, 200))
def test_no_cut_makes_a_line_worse(length: int) -> None:
    """A cut 48 or 154 is another code or none, never one that is graver than what the line says."""
    whole = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)"
    event = parse_xid(whole[:length])
    assert event is None or event.code in (None, 1, 15, 154)
