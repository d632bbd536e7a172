"""Ranks give each other copies of their shards, and nobody else can make them do or wait for anything."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from ring_unit import SECRET, read_tree, write_shard

from slurm_guard.checkpoint import peer as module
from slurm_guard.checkpoint.greeting import challenge, greet
from slurm_guard.checkpoint.manifest import verify_checkpoint
from slurm_guard.checkpoint.peer import CONNECTIONS, Patience, Peer, find_host
from slurm_guard.checkpoint.ring import read_units
from slurm_guard.checkpoint.schema import MANIFEST
from slurm_guard.checkpoint.wire import Wire
from slurm_guard.errors import PeerError

NAME = "rank-00003/iteration-0000000042"
LONG = Patience()
QUICK = Patience(connect_s=0.5, stall_s=0.5, queue_s=30)
Peers = Callable[..., Peer]
Serve = Callable[[socket.socket, threading.Event], object]


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """Makes the peer of a node's ring."""
    made: list[Peer] = []

    def make(
        node: str = "a", secret: bytes = SECRET, patience: Patience = LONG, host: str = "127.0.0.1"
    ) -> Peer:
        made.append(Peer(str(tmp_path / node / "c-7"), host, secret, patience))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@contextmanager
def serving(serve: Serve) -> Iterator[tuple[str, int]]:
    """A peer of our own making: what it does with the one who calls, and it is told when that is over."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as beside:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection, suppress(PeerError, OSError):
                serve(connection, over)

        beside.submit(accept)
        try:
            yield listener.getsockname()
        finally:
            over.set()


def call(peer: Peer, secret: bytes = SECRET) -> tuple[socket.socket, Wire]:
    """A client of our own making."""
    connection = socket.create_connection(peer.address)
    wire = Wire(connection, 10.0, lambda: False)
    greet(wire, secret, 10.0)
    return connection, wire


def held(tmp_path: Path, node: str) -> list[tuple[int | None, int]]:
    """Rank and iteration of what this node holds; nothing but whole units may be there."""
    ring = tmp_path / node / "c-7"
    units, skipped = read_units(str(ring))
    assert skipped == ()
    assert [verify_checkpoint(unit) for unit in units] == [None] * len(units)
    deadline = time.monotonic() + 5  # what a server gives up goes a moment after its client has
    while (left := list(ring.rglob(".tmp-*"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []
    return [(unit.rank, unit.iteration) for unit in units]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_shard_goes_to_a_partner_and_comes_back(tmp_path: Path, peers: Peers, host: str) -> None:
    """Byte for byte, and only once."""
    written = write_shard(tmp_path / "a" / "c-7")
    a, b = peers("a", host=host), peers("b", host=host)
    assert a.put(b.address, written.directory)
    assert not a.put(b.address, written.directory)
    c = peers("c", host=host)
    assert c.get(b.address, NAME) == str(tmp_path / "c" / "c-7" / NAME)
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b") == read_tree(tmp_path / "c")
    assert c.get(b.address, NAME) == str(tmp_path / "c" / "c-7" / NAME)


def test_the_replica_is_fetched_from_any_holder(tmp_path: Path, peers: Peers) -> None:
    """What every rank holds alike."""
    write_shard(tmp_path / "a" / "c-7", rank=None)
    a, b = peers("a"), peers("b")
    b.get(a.address, "iteration-0000000042")
    assert held(tmp_path, "b") == [(None, 42)]


def test_a_partner_keeps_what_all_ranks_have(tmp_path: Path, peers: Peers) -> None:
    """For the day on which this rank's node is gone, and another has nothing newer."""
    a, b = peers("a"), peers("b")
    for iteration in (10, 20, 30, 40):
        shard = write_shard(tmp_path / "a" / "c-7", iteration)
        a.put(b.address, shard.directory, common=(10, shard.fork))
    assert held(tmp_path, "b") == [(3, 10), (3, 20), (3, 30), (3, 40)]


def test_ranks_tell_rank_0_what_they_have(peers: Peers) -> None:
    """The answer is the newest that all have, or that there is none."""
    a, b = peers("a"), peers("b")
    assert b.tell(a.address, 1, 2, [(10, "f"), (20, "f")]) is None
    assert a.tell(a.address, 0, 2, [(20, "f"), (30, "f")]) == (20, "f")
    assert b.tell(a.address, 1, 2, [(40, "f")]) is None


def test_nobody_tells_what_is_not_understood(peers: Peers) -> None:
    """It is said, and nothing else is harmed."""
    a = peers("a")
    for note in ({"rank": "x"}, {"rank": "0", "world_size": "2"}):
        connection, wire = call(a)
        wire.send_note(do="tell", **note)
        with connection, pytest.raises(PeerError, match="not understood"):
            wire.await_answer()
    a.close()
    with pytest.raises(PeerError, match="it is not known what all ranks have, by 127"):
        peers("b", patience=QUICK).tell(a.address, 1, 2, [])


def test_a_partner_keeps_the_newest_two_and_the_one_that_comes(tmp_path: Path, peers: Peers) -> None:
    """So that it never holds more than three of a rank, and those of other ranks stay."""
    a, b = peers("a"), peers("b")
    a.put(b.address, write_shard(tmp_path / "a" / "c-7", 5, rank=4).directory)
    for iteration in (10, 20, 30, 40):
        a.put(b.address, write_shard(tmp_path / "a" / "c-7", iteration).directory)
    assert held(tmp_path, "b") == [(3, 20), (3, 30), (3, 40), (4, 5)]


def test_a_future_that_was_rolled_back_goes_from_the_partner_too(tmp_path: Path, peers: Peers) -> None:
    """Once the new attempt has come further."""
    a, b = peers("a"), peers("b")
    for iteration, fork in ((80, "a"), (90, "a"), (40, "b"), (50, "b")):
        a.put(b.address, write_shard(tmp_path / fork / "c-7" / ".." / "r", iteration, fork=fork).directory)
    assert held(tmp_path, "b") == [(3, 40), (3, 50)]


def test_what_a_fetched_one_is_put_beside_stays(tmp_path: Path, peers: Peers) -> None:
    """Nothing is dropped before it was resumed from."""
    for iteration in (10, 20):
        write_shard(tmp_path / "b" / "c-7", iteration)
    write_shard(tmp_path / "a" / "c-7", 15)
    a, b = peers("a"), peers("b")
    b.get(a.address, "rank-00003/iteration-0000000015")
    assert held(tmp_path, "b") == [(3, 10), (3, 15), (3, 20)]


def test_what_the_other_does_not_have_is_said(tmp_path: Path, peers: Peers) -> None:
    """In one sentence that names what and where."""
    a, b = peers("a"), peers("b")
    where = f"127.0.0.1:{b.address[1]}"
    with pytest.raises(PeerError, match=f"{NAME} was not fetched from {where}: there is no whole {NAME} in"):
        a.get(b.address, NAME)
    with pytest.raises(PeerError, match=f"{NAME} was not copied to {where}: there is no whole"):
        a.put(b.address, str(tmp_path / "a" / "c-7" / NAME))
    b.close()
    with pytest.raises(PeerError, match=f"was not fetched from {where}: Connection refused"):
        a.get(b.address, NAME)


def test_a_full_disk_is_said(tmp_path: Path, peers: Peers, small_disk: Path) -> None:
    """The training goes on without this copy, and what the partner had stays."""
    (tmp_path / "b").symlink_to(small_disk)
    a, b = peers("a"), peers("b")
    a.put(b.address, write_shard(tmp_path / "a" / "c-7", 10, size=1_000_000).directory)
    written = write_shard(tmp_path / "a" / "c-7")
    with pytest.raises(PeerError, match=rf"{NAME} was not copied to .* cannot write .*: No space left"):
        a.put(b.address, written.directory)
    assert held(tmp_path, "b") == [(3, 10)]


def test_a_wrong_secret_is_answered_with_nothing(tmp_path: Path, peers: Peers) -> None:
    """The connection ends, without a word on why."""
    written = write_shard(tmp_path / "a" / "c-7")
    a, b = peers("a", secret=b"another secret of a training"), peers("b")
    with pytest.raises(PeerError, match=r"was not copied to .*: the connection (ended|broke)"):
        a.put(b.address, written.directory)
    assert held(tmp_path, "b") == []
    with socket.create_connection(b.address) as connection:
        connection.sendall(bytes(64))
        told = b"".join(iter(lambda: connection.recv(4096), b""))
    assert len(told) == len(b"slurm-guard peer 1\n") + 32


def test_nobody_is_believed_who_does_not_know_the_secret(tmp_path: Path, peers: Peers) -> None:
    """At the address of a node that is gone another's program may listen."""
    secret = b"the secret of another training"
    with serving(lambda c, _: challenge(Wire(c, 5.0, lambda: False), secret, 5.0)) as address:
        with pytest.raises(PeerError, match="the connection ended"):
            peers("a").get(address, NAME)

    def accept_all(connection: socket.socket, _: threading.Event) -> None:
        connection.sendall(b"slurm-guard peer 1\n" + bytes(32))
        connection.recv(64, socket.MSG_WAITALL)
        connection.sendall(bytes(32))

    with serving(accept_all) as address, pytest.raises(PeerError, match="a peer of another training"):
        peers("a").get(address, NAME)
    with serving(lambda c, _: c.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n" * 9)) as address:
        with pytest.raises(PeerError, match="no peer of this version"):
            peers("a").get(address, NAME)
    with pytest.raises(PeerError, match="less than 16 bytes"):
        peers("a", secret=b"short")


@pytest.mark.parametrize("action", ["get", "put"])
@pytest.mark.parametrize(
    "unit", ["../../secret", "/etc", "rank-00003/../../b", "rank-00003", ".", "", "iteration-1", f"{NAME}\0"]
)
def test_no_other_path_can_be_asked_for(peers: Peers, action: str, unit: str) -> None:
    """Neither read nor written, whoever asks."""
    connection, wire = call(peers())
    with connection:
        wire.send_note(do=action, unit=unit)
        with pytest.raises(PeerError, match="no name of a checkpoint in a ring"):
            wire.await_answer()


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff\xfe",
        b"[" * 4000,
        b"[]",
        b'{"do": 7, "unit": "x"}',
        b'{"do": "rm", "unit": "%s"}' % NAME.encode(),
    ],
)
def test_what_is_no_request_is_refused(peers: Peers, block: bytes) -> None:
    """And the next one is served."""
    peer = peers()
    for _ in range(2):
        connection, wire = call(peer)
        with connection:
            wire.send_block(block)
            with pytest.raises(PeerError, match="not understood"):
                wire.await_answer()


def test_a_request_that_is_too_long_is_not_read(peers: Peers) -> None:
    """Its length says so."""
    connection, wire = call(peers())
    with connection:
        wire.send((4097).to_bytes(4, "big"))
        with pytest.raises(PeerError, match="more came than was announced"):
            wire.await_answer()


def _stop_reading(connection: socket.socket, over: threading.Event) -> None:
    """As a host that is swapping itself to death does."""
    wire = Wire(connection, 30.0, lambda: False)
    challenge(wire, SECRET, 5.0)
    wire.receive_note()
    wire.answer("go")
    wire.receive_block(1 << 20)
    wire.answer("send")
    over.wait()


def _wait_for_ever(connection: socket.socket, over: threading.Event) -> None:
    wire = Wire(connection, 30.0, lambda: False)
    challenge(wire, SECRET, 5.0)
    wire.receive_note()
    while not over.wait(0.05):
        wire.answer("wait")


@pytest.mark.parametrize(("serve", "why"), [(_stop_reading, "stalled"), (_wait_for_ever, "too many others")])
def test_a_hung_peer_is_given_up(tmp_path: Path, peers: Peers, serve: Serve, why: str) -> None:
    """After a bounded time, at whatever point it hangs."""
    written = write_shard(tmp_path / "a" / "c-7", size=30_000_000)
    peer = peers(patience=Patience(0.5, 0.5, 0.5))
    with serving(serve) as address, pytest.raises(PeerError, match=why):
        peer.put(address, written.directory)


def test_a_peer_that_accepts_and_says_nothing_is_given_up(tmp_path: Path, peers: Peers) -> None:
    """The kernel accepts also for a process that is stopped."""
    written = write_shard(tmp_path / "a" / "c-7")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(PeerError, match="stalled"):
            peers(patience=QUICK).put(silent.getsockname(), written.directory)


def test_a_call_can_be_given_up(tmp_path: Path, peers: Peers) -> None:
    """A save that is cancelled at the end of the process does not wait for a silent partner."""
    written = write_shard(tmp_path / "a" / "c-7")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(PeerError, match="given up"):
        peers().put(silent.getsockname(), written.directory, cancelled=lambda: True)


def test_a_client_that_stops_in_the_middle_leaves_nothing(tmp_path: Path, peers: Peers) -> None:
    """Its place is free again after the stall."""
    written = write_shard(tmp_path / "a" / "c-7")
    b = peers("b", patience=QUICK)
    connection, wire = call(b)
    with connection:
        wire.send_note(do="put", unit=NAME)
        assert wire.await_answer() == "go"
        wire.send_block(Path(written.directory, MANIFEST).read_bytes())
        assert wire.await_answer() == "send"
        wire.send(b"some bytes")
        with pytest.raises(PeerError, match="it stalled"):
            wire.await_answer()
    assert held(tmp_path, "b") == []


def test_those_who_only_wait_keep_nobody_out(tmp_path: Path, peers: Peers) -> None:
    """However many connect and say nothing: the oldest of them go."""
    written = write_shard(tmp_path / "a" / "c-7", size=1000)
    a, b = peers("a"), peers("b")
    silent = [socket.create_connection(b.address) for _ in range(CONNECTIONS * 2)]
    assert a.put(b.address, written.directory)
    for connection in silent:
        connection.close()


def test_more_clients_than_places_are_served_in_turn(
    tmp_path: Path, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who waits is told so, once a second, and served when a place is free."""
    monkeypatch.setattr(module, "TRANSFERS", 1)
    written = write_shard(tmp_path / "a" / "c-7")
    a, b = peers("a"), peers("b")
    connection, wire = call(b)
    with connection:
        wire.send_note(do="put", unit="iteration-0000000007")
        assert wire.await_answer() == "go"
        other, waiting = call(b)
        with other:
            waiting.send_note(do="get", unit=NAME)
            assert waiting.receive_note() == {"say": "wait"}
        with ThreadPoolExecutor(1) as beside:
            put = beside.submit(a.put, b.address, written.directory)
            time.sleep(0.1)
            connection.close()
            assert put.result()
    assert held(tmp_path, "b") == [(3, 42)]


def test_one_unit_can_come_twice_at_once(tmp_path: Path, peers: Peers) -> None:
    """From two who both do not know of the other: one of them is kept."""
    for node in "abcd":
        write_shard(tmp_path / node / "c-7")
    target = peers("z")
    callers = [peers(node) for node in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        puts = [
            pool.submit(caller.put, target.address, str(tmp_path / node / "c-7" / NAME))
            for caller, node in zip(callers, "abcd", strict=True)
        ]
        assert any(put.result() for put in puts)
    assert held(tmp_path, "z") == [(3, 42)]


def test_many_ranks_are_served_at_once(tmp_path: Path, peers: Peers) -> None:
    """Shards come while others go."""
    a, b = peers("a"), peers("b")
    for rank in range(24):
        write_shard(tmp_path / "ab"[rank % 2] / "c-7", rank=rank, size=200_000)

    def bring(rank: int) -> object:
        name = f"rank-{rank:05d}/iteration-0000000042"
        return a.get(b.address, name) if rank % 2 else a.put(b.address, str(tmp_path / "a" / "c-7" / name))

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(bring, range(24)))
    assert held(tmp_path, "a") == [(rank, 42) for rank in range(24)]
    assert held(tmp_path, "b") == [(rank, 42) for rank in range(24)]


def run(program: str, *arguments: object) -> str:
    """What this program prints; it must end well."""
    argv = [sys.executable, "-X", "faulthandler", "-c", program, *map(str, arguments)]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


FORK = """
import os, socket, sys
from slurm_guard.checkpoint.peer import Peer
from slurm_guard.errors import PeerError

peer = Peer(sys.argv[1], "127.0.0.1", b"x" * 32)
told, tell = os.pipe()
go, say_go = os.pipe()
if os.fork() == 0:
    os.close(say_go)
    peer.close()
    try:
        peer.put(peer.address, sys.argv[2])
    except PeerError as error:
        os.write(tell, str(error).encode())
    os.read(go, 1)
    os._exit(0)
os.close(go)
text = os.read(told, 1000).decode()
socket.create_connection(peer.address).close()  # it serves on, whatever the fork did
peer.close()
try:
    socket.create_connection(peer.address)
except ConnectionRefusedError:
    print(text)
"""


def test_a_fork_neither_serves_nor_calls(tmp_path: Path) -> None:
    """A DataLoader worker that outlives its rank must not keep clients waiting at its port."""
    written = write_shard(tmp_path / "a" / "c-7")
    assert "this peer is closed" in run(FORK, tmp_path / "b", written.directory)


LEAVE = """
import sys, threading, time
from slurm_guard.checkpoint.peer import Peer

peer = Peer(sys.argv[1], "127.0.0.1", bytes.fromhex(sys.argv[2]))
address, directory = ("127.0.0.1", int(sys.argv[3])), sys.argv[4]

def go_on(call):
    while True:
        try:
            call()
        except Exception:
            return

for call in (
    lambda: peer.put(address, directory),
    lambda: peer.get(address, "rank-00001/iteration-0000000001"),
    lambda: peer.put(peer.address, directory),
):
    threading.Thread(target=go_on, args=(call,), daemon=True).start()
time.sleep(float(sys.argv[5]))
"""


@pytest.mark.parametrize("rounds", [10, pytest.param(50, marks=pytest.mark.long)])
def test_the_process_can_end_at_any_moment(tmp_path: Path, peers: Peers, rounds: int) -> None:
    """In the middle of sending, receiving and serving: without a crash, and without half a unit."""
    write_shard(tmp_path / "b" / "c-7", 1, rank=1, size=20_000_000)
    b = peers("b")
    for number in range(rounds):
        write_shard(tmp_path / "a" / "c-7", 100 + number, size=20_000_000)
        directory = tmp_path / "a" / "c-7" / f"rank-00003/iteration-{100 + number:010d}"
        run(LEAVE, tmp_path / f"c{number}", SECRET.hex(), b.address[1], directory, number * 0.1 / rounds)
        held(tmp_path, "b")


def test_an_address_is_found_by_the_way_to_the_master() -> None:
    """No packet is sent, and a name is as good as a number."""
    assert find_host("127.0.0.1") == "127.0.0.1"
    assert find_host("localhost") in ("127.0.0.1", "::1")
    assert find_host("::1") == "::1"
    with pytest.raises(OSError, match=r"not known|resolution|no way"):
        find_host("no-such-host.invalid")


def test_a_node_that_knows_itself_as_loopback_is_found_by_its_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian's /etc/hosts has 127.0.1.1 for the own name: others cannot reach that."""
    place = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: place)
    found: dict[str, str] = {"127.0.1.1": "127.0.0.1", "192.0.2.1": "10.1.2.3"}
    monkeypatch.setattr(module, "_find_source", lambda _, host: found.get(host, ""))
    assert find_host("gpu07") == "10.1.2.3"
    assert find_host("127.0.1.1") == "127.0.0.1"
    del found["192.0.2.1"]
    assert find_host("gpu07") == "127.0.0.1"


@pytest.mark.parametrize("rounds", [40, pytest.param(200, marks=pytest.mark.long)])
def test_kills_of_either_end_leave_nothing_bad(tmp_path: Path, rounds: int) -> None:
    """kill -9 of the sender or the receiver at random moments: what had come stays, what had not is gone."""
    program = Path(__file__).with_name("killed_peer.py")
    memory = Path("/dev/shm")
    base = memory / f"slurm-guard-test-{os.getpid()}" if memory.is_dir() else tmp_path / "base"
    base.mkdir(mode=0o700)
    try:
        ended = subprocess.run(
            [sys.executable, program, base, str(rounds), "1"], check=False, capture_output=True, text=True
        )
    finally:
        subprocess.run(["rm", "-rf", base], check=True)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["bad"] == []
    assert told["rounds"] >= rounds
    # Else nothing was tried: many kills must hit a transfer, and some transfers must have come to their end.
    assert told["cut"] > rounds / 5
    assert told["left"] > rounds / 20
    assert told["whole"] > rounds / 10
