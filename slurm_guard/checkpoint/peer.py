"""Copies of a ring's shards on other nodes: each rank serves its node's ring to the other ranks.

Only those who know the secret of this training are served, and only whole replicas and shards come and go.
Nothing that a client does or leaves undone stops the training, the serving of others, or the end of the
process. A fork of the process serves nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurm_guard.checkpoint.greeting import SECRET_BYTES, challenge, greet
from slurm_guard.checkpoint.held import hold_socket
from slurm_guard.checkpoint.ring import trim_units
from slurm_guard.checkpoint.tally import Tally, format_common, format_moments, parse_common, parse_moments
from slurm_guard.checkpoint.transfer import open_unit, parse_unit, receive_unit, send_unit, split_unit
from slurm_guard.checkpoint.wire import WAIT, Wire, close
from slurm_guard.errors import CheckpointError, PeerError
from slurm_guard.model.checkpoint import Moment

Address = tuple[str, int]
"""Host and port."""

TRANSFERS = 8
"""How many are served at once; the others wait."""

CONNECTIONS = 128
"""How many may wait. Beyond, those who have not proven yet that they know the secret are dropped."""

_CLOSE_S = 5.0
_GO = "go"
_log = logging.getLogger("slurm_guard")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a connection and for each proof of the secret, for a piece of a transfer, and
    for the end of those that are served before."""

    connect_s: float = 5.0
    stall_s: float = 30.0
    queue_s: float = 300.0


def _never() -> bool:
    return False


class Peer:
    """Serves one ring at `host`, an address of this node, and calls others that do so.

    Raises:
        PeerError: it cannot serve there.
    """

    def __init__(self, ring: str, host: str, secret: bytes, patience: Patience = Patience()) -> None:
        if len(secret) < SECRET_BYTES:
            raise PeerError(f"the secret of the peers has less than {SECRET_BYTES} bytes")
        self._ring = os.path.abspath(ring)
        self._secret = secret
        self._patience = patience
        self._owner = os.getpid()
        self._closing = threading.Event()
        self._slots = threading.BoundedSemaphore(TRANSFERS)
        self._strangers: dict[socket.socket, None] = {}
        self._open: set[socket.socket] = set()
        self._tally = Tally()
        self._listener = _listen(host)
        self.address: Address = self._listener.getsockname()[:2]
        try:
            threading.Thread(target=self._accept, name="slurm-guard peer", daemon=True).start()
        except RuntimeError as error:
            close(self._listener)
            raise PeerError(f"cannot serve copies of checkpoints: {error}") from error
        _peers.add(self)

    def put(
        self,
        address: Address,
        directory: str,
        cancelled: Callable[[], bool] = _never,
        *,
        common: Moment | None = None,
    ) -> bool:
        """Copy the replica or shard in this directory to the ring of another; False if it had it already.

        There the newest two before it stay, and that of the moment `common`, which all ranks have.

        Raises:
            PeerError: where to, and why not.
        """
        ring, unit = split_unit(directory)
        kept = format_common(common)
        with self._told(f"{unit} was not copied to", address), open_unit(ring, unit) as source:
            with self._call(address, cancelled, do="put", unit=str(unit), common=kept) as wire:
                return send_unit(wire, source)

    def get(self, address: Address, name: str, cancelled: Callable[[], bool] = _never) -> str:
        """Fetch the replica or shard of this name, `rank-00003/iteration-0000000042`, from the ring of
        another; its path in the own ring. Where the own has it already, of the same attempt, no file is sent.

        Raises:
            PeerError: where from, and why not.
        """
        unit = parse_unit(name)
        with self._told(f"{unit} was not fetched from", address):
            with self._call(address, cancelled, do="get", unit=str(unit)) as wire:
                return receive_unit(wire, self._ring, unit).directory

    def tell(self, address: Address, rank: int, world_size: int, moments: Iterable[Moment]) -> Moment | None:
        """Tell the peer of rank 0 which moments this rank has; the newest that all ranks told it of.

        Raises:
            PeerError: it gives no answer.
        """
        note = {"rank": str(rank), "world_size": str(world_size), "moments": format_moments(moments)}
        with self._told("it is not known what all ranks have, by", address):
            with self._call(address, _never, do="tell", **note) as wire:
                return parse_common(wire.await_answer())

    def close(self) -> None:
        """Serve nobody any longer, and give up what is in flight. In a fork this does nothing."""
        if os.getpid() != self._owner:
            return
        self._closing.set()
        close(self._listener)
        for connection in list(self._strangers):
            close(connection)
        deadline = time.monotonic() + _CLOSE_S
        while self._open and time.monotonic() < deadline:
            time.sleep(0.01)

    @contextlib.contextmanager
    def _told(self, what: str, address: Address) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise PeerError(f"{what} {address[0]}:{address[1]}: {error}") from error
        except OSError as error:
            raise PeerError(f"{what} {address[0]}:{address[1]}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _call(self, address: Address, cancelled: Callable[[], bool], **request: str) -> Iterator[Wire]:
        if os.getpid() != self._owner or self._closing.is_set():
            raise PeerError("this peer is closed")
        patience = self._patience
        connection = hold_socket(socket.create_connection(address, patience.connect_s))
        self._open.add(connection)
        try:
            wire = Wire(connection, patience.stall_s, lambda: cancelled() or self._closing.is_set())
            greet(wire, self._secret, patience.connect_s)
            wire.send_note(**request)
            if wire.await_answer(queue_s=patience.queue_s) != _GO:
                raise PeerError("its answer is not understood")
            yield wire
        finally:
            close(connection)
            self._open.discard(connection)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection = hold_socket(self._listener.accept()[0])
            except OSError:  # no descriptors left, or closing
                self._closing.wait(0.1)
                continue
            if len(self._open) >= CONNECTIONS:
                self._drop_stranger()
            self._open.add(connection)
            self._strangers[connection] = None
            try:
                threading.Thread(
                    target=self._serve, args=(connection,), name="slurm-guard peer", daemon=True
                ).start()
            except RuntimeError:
                self._forget(connection)

    def _drop_stranger(self) -> None:
        """Let go of the one who has been silent longest: nobody is kept out by those who only wait."""
        for connection in list(self._strangers)[:1]:
            self._strangers.pop(connection, None)
            with contextlib.suppress(OSError):  # its own thread closes it
                connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: socket.socket) -> None:
        self._strangers.pop(connection, None)
        close(connection)
        self._open.discard(connection)

    def _serve(self, connection: socket.socket) -> None:
        """One client, in a thread of its own. Whatever goes wrong is the client's to tell."""
        try:
            wire = Wire(connection, self._patience.stall_s, self._closing.is_set)
            challenge(wire, self._secret, self._patience.connect_s)
            self._strangers.pop(connection, None)
            try:
                self._answer(wire)
            except CheckpointError as error:
                if not self._closing.is_set():  # an end of this process says all
                    wire.apologise(str(error))
            wire.linger()
        except Exception as error:
            _log.debug("slurm-guard: a client was not served: %s", error)
        finally:
            self._forget(connection)

    def _answer(self, wire: Wire) -> None:
        request = wire.receive_note()
        action = request.get("do")
        if action == "tell":
            common = self._note(request)
            wire.answer(_GO)
            wire.answer(format_common(common))
            return
        if action not in ("put", "get"):
            raise PeerError("what is wanted is not understood")
        unit = parse_unit(request.get("unit", ""))
        with self._slot(wire):
            if action == "put":
                common = parse_common(request.get("common", "[]"))
                wire.answer(_GO)
                receive_unit(
                    wire,
                    self._ring,
                    unit,
                    lambda directory: trim_units(directory, unit.iteration - 1, common=common),
                )
            else:
                with open_unit(self._ring, unit) as source:
                    wire.answer(_GO)
                    send_unit(wire, source)

    def _note(self, request: Mapping[str, str]) -> Moment | None:
        try:
            rank, world_size = int(request.get("rank", "")), int(request.get("world_size", ""))
        except ValueError as error:
            raise PeerError("which rank it is is not understood") from error
        return self._tally.note(rank, world_size, parse_moments(request.get("moments", "")))

    @contextlib.contextmanager
    def _slot(self, wire: Wire) -> Iterator[None]:
        until_s = time.monotonic() + self._patience.queue_s
        while not self._slots.acquire(timeout=1.0):
            if self._closing.is_set() or time.monotonic() > until_s:
                raise PeerError("it has too many others to serve")
            wire.answer(WAIT)
        try:
            yield
        finally:
            self._slots.release()


def find_host(master: str) -> str:
    """The address at which this node is to be reached by all who reach `master`. No packet is sent.

    A node that knows itself only by its loopback, as `/etc/hosts` often has it, is reached at the address
    that it has to the rest of the world; where `master` is the loopback in so many words, it is meant.

    Raises:
        OSError: `master` cannot be resolved, or no way leads to it.
    """
    places = [
        (family, place[0]) for family, _, _, _, place in socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)
    ]
    hosts = [host for family, name in places if (host := _find_source(family, str(name)))]
    if not hosts:
        raise OSError(f"no way leads to {master}")
    if master != "localhost" and not _is_loopback(master) and all(map(_is_loopback, hosts)):
        world = (_find_source(socket.AF_INET, "192.0.2.1"), _find_source(socket.AF_INET6, "2001:db8::1"))
        return next((host for host in world if host), hosts[0])
    return next((host for host in hosts if not _is_loopback(host)), hosts[0])


def _find_source(family: int, host: str) -> str:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return ""


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def _listen(host: str) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = hold_socket(socket.socket(family, kind))
        try:
            listener.bind(place)
            listener.listen(CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise PeerError(f"cannot serve copies of checkpoints at {host}: {error.strerror or error}") from error
    return listener


_peers: weakref.WeakSet[Peer] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """End all that is in flight: a thread that works while the interpreter is taken down could abort it."""
    for peer in list(_peers):
        peer.close()
