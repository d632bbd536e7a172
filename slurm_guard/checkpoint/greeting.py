"""Both sides of a connection prove to each other that they know the secret of this training.

Neither tells it, and what one side proves is of no use on another connection, nor to the other side.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from slurm_guard.checkpoint.wire import Wire
from slurm_guard.errors import PeerError

SECRET_BYTES = 16
"""A shorter secret is none."""

_HELLO = b"slurm-guard peer 1\n"
_NONCE = 32
_PROOF = hashlib.sha256().digest_size


def challenge(wire: Wire, secret: bytes, within_s: float) -> None:
    """The side that was called: it wants the proof first.

    Raises:
        PeerError: the other does not know the secret, or took longer for each step than `within_s`.
    """
    mine = secrets.token_bytes(_NONCE)
    wire.send(_HELLO + mine)
    answer = _receive(wire, _NONCE + _PROOF, within_s)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _prove(secret, b"caller", mine + theirs)):
        raise PeerError("it does not know the secret")
    wire.send(_prove(secret, b"called", mine + theirs))


def greet(wire: Wire, secret: bytes, within_s: float) -> None:
    """The side that calls.

    Raises:
        PeerError: the other is no peer of this training, or took longer for each step than `within_s`.
    """
    hello = _receive(wire, len(_HELLO) + _NONCE, within_s)
    if not hello.startswith(_HELLO):
        raise PeerError("it is no peer of this version")
    theirs, mine = hello[len(_HELLO) :], secrets.token_bytes(_NONCE)
    wire.send(mine + _prove(secret, b"caller", theirs + mine))
    proof = _receive(wire, _PROOF, within_s)
    if not hmac.compare_digest(proof, _prove(secret, b"called", theirs + mine)):
        raise PeerError("it is a peer of another training")


def _prove(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, side + nonces, "sha256")


def _receive(wire: Wire, size: int, within_s: float) -> bytes:
    answer = bytearray(size)
    wire.receive(memoryview(answer), within_s)
    return bytes(answer)
