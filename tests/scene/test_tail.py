"""The tail of the output: the last lines, bounded, without the secrets that are known."""

from __future__ import annotations

from slurm_guard.scene.redact import find_secrets
from slurm_guard.scene.tail import LIMIT_BYTES, Tail


def test_the_last_lines_come_in_order_however_they_arrived() -> None:
    """Pieces cut anywhere, a last line without its end included."""
    tail = Tail()
    for piece in (b"one\ntw", b"o\nthr", b"ee\nfour"):
        tail.add(piece)
    assert tail.last_lines(3) == b"two\nthree\nfour"


def test_a_flood_without_a_newline_keeps_the_newest_bytes() -> None:
    """Memory is bounded, whatever is printed."""
    tail = Tail()
    for _ in range(6):
        tail.add(b"a" * (1 << 20))
    tail.add(b"end")
    kept = tail.last_lines(1)
    assert len(kept) == LIMIT_BYTES
    assert kept.endswith(b"aend")


def test_what_the_job_calls_secret_is_hidden_wherever_it_is_printed() -> None:
    """By the environment and by the command line; of one secret within another the longer goes first."""
    environment = {"HF_TOKEN": "abcdef", "API_KEY": "abcdefgh", "DB_URL": "pg://me:word@h", "LANG": "C.UTF-8"}
    tail = Tail(
        find_secrets(environment, ["t.py", "--password", "hunter22", "--api-key=another", "--lr", "1"])
    )
    tail.add(b"abcdefgh abcdef pg://me:word@h hunter22 another C.UTF-8 1 t.py\n")
    hidden = b"<redacted>"
    assert tail.last_lines(1).split() == [
        hidden,
        hidden,
        b"pg://<redacted>@h",
        hidden,
        hidden,
        b"C.UTF-8",
        b"1",
        b"t.py",
    ]
