"""How fast a log is read, and how right, with the simple way beside it; one JSON object on stdout.

read_log.py rates | right CASES | follow FILE | growth BYTES
"""

import json
import math
import os
import random
import sys
import time

from slurm_guard.policy.log.line import LineReader

PIECE = 1 << 16
RECORDS = (
    "{{'loss': {loss}, 'grad_norm': 1.0234, 'learning_rate': 4.9e-05, 'epoch': 0.{i:04d}}}\n",
    "iter {i}: loss {loss}, time 1355.12ms, mfu 41.23%\n",
    " iteration {i:8d}/  500000 | elapsed time per iteration: 9 | lm loss: {loss}E+00 | grad norm: 1 |\n",
    "Epoch: [0]  [{i:5d}/50000]  eta: 0:20:01  lr: 0.000100  loss: {loss} (8.91)  time: 0.48  data: 0.0002\n",
    "step {i} | loss: {loss} | lr 9.0000e-04 | norm: 0.4010 | dt: 7360.12ms | tok/sec: 71232.11\n",
)
NOISE = (
    "[2026-01-15 10:20:30,{i}] [INFO] [config.py:{i}:print]   {word} ................. True\n",
    "gpu07:{i}:7001 [3] NCCL INFO Channel 02/0 : 3[{i}] -> 4[4] [send] via NET/IB/0/{word}\n",
    "  warnings.warn('The given {word} is not writable, and PyTorch does not support {word}')\n",
    "gpu07: 00017-of-{i}.parquet of /data/{word}/{word} comes from the cache of {word}\n",
)
WORST = {
    "binary, lines of 1 MB": os.urandom(1 << 20).translate(bytes(range(256)), b"\r\n") + b"\n",
    "200,000 brackets a line": b"loss: " + b"[" * 200_000 + b"\n",
    "carriage returns alone": b"\r" * (1 << 20),
}


def compose(lines: int, noise: int, words: int = 200_000) -> bytes:
    """So many lines with a record, of several formats, each with so many others before it.

    The others hold one of so many words: with few of them they differ in their digits only.
    """
    source, made = random.Random(1), []
    letters = "abcdefghijklmnopqrstuvwxyz_"
    known = ["".join(source.choices(letters, k=source.randrange(3, 20))) for _ in range(words)]
    for i in range(1, lines + 1):
        for n in range(noise):
            other = NOISE[(i + n) % len(NOISE)]
            made.append(other.format(i=source.randrange(10**6), word=source.choice(known)))
        made.append(RECORDS[i % len(RECORDS)].format(i=i, loss=f"{2 + 1 / i:.4f}"))
    return "".join(made).encode()


def rate(data: bytes, least_s: float = 1.0) -> float:
    """Bytes of such data read in a second of this process's CPU."""
    reader, done, began_s = LineReader(), 0, time.process_time()
    while (took_s := time.process_time() - began_s) < least_s:
        for start in range(0, len(data), PIECE):
            reader.feed(data[start : start + PIECE])
        done += len(data)
    return done / took_s


def rates() -> dict[str, object]:
    """Lines with records, lines without, and what is worst."""
    mixed = compose(20_000, 0)
    return {
        "lines_a_minute": rate(mixed) / (len(mixed) / 20_000) * 60,
        "repeating_mb_s": rate(compose(1, 100_000, words=50)) / 1e6,
        "other_mb_s": rate(compose(1, 100_000)) / 1e6,
        "worst_mb_s": {name: rate(line * 8) / 1e6 for name, line in WORST.items()},
    }


def simple_losses(text: str) -> list[float]:
    """The simple way: split at "loss:", and the next word is the number."""
    losses = []
    for part in text.split("loss:")[1:]:
        try:
            losses.append(float(part.split()[0]))
        except (ValueError, IndexError):
            continue
    return losses


def right(path: str) -> dict[str, int]:
    """Of the labelled lines, how many losses we and the simple way read right."""
    found = {"lines": 0, "ours": 0, "simple": 0}
    with open(path, encoding="utf-8") as file:
        cases = [json.loads(line) for line in file if line.strip()]
    for case in cases:
        records = LineReader().feed(case["line"].encode() + b"\n")
        ours = [record.loss for record in records if record.loss is not None]
        found["lines"] += 1
        found["ours"] += is_label(ours, case["loss"])
        found["simple"] += is_label(simple_losses(case["line"]), case["loss"])
    return found


def is_label(losses: list[float], label: object) -> bool:
    """Whether the newest of them is the labelled one."""
    if label is None or not losses:
        return label is None and not losses
    wanted = float(str(label))
    return losses[-1] == wanted or (math.isnan(losses[-1]) and math.isnan(wanted))


def follow(path: str, polls: int = 100, megabytes: int = 50) -> dict[str, float]:
    """CPU seconds that it takes to follow a log that grows, by us and in the simple way, poll by poll."""
    piece = compose(200, 4)
    piece *= max(1, (megabytes << 20) // polls // len(piece))
    reader, at = LineReader(), 0
    took = {"ours": 0.0, "simple": 0.0, "mb": len(piece) * polls / 1e6}
    for _ in range(polls):
        with open(path, "ab") as log:
            log.write(piece)
        began_s = time.process_time()
        with open(path, "rb", buffering=0) as log:
            log.seek(at)
            while chunk := log.read(PIECE):
                reader.feed(chunk)
                at += len(chunk)
        middle_s = time.process_time()
        with open(path, errors="replace") as text:
            simple_losses(text.read())
        took["ours"] += middle_s - began_s
        took["simple"] += time.process_time() - middle_s
    return took


def growth(size: int) -> dict[str, int]:
    """KiB of this process after a twentieth of so many bytes, and after all of them."""
    reader, seen, early = LineReader(), 0, 0
    block = compose(2_000, 50, words=50) + b"".join(WORST.values())
    while seen < size:
        for start in range(0, len(block), PIECE):
            reader.feed(block[start : start + PIECE])
        seen += len(block)
        if not early and seen > size // 20:
            early = resident_kib()
    return {"early_kib": early, "late_kib": resident_kib(), "bytes": seen}


def resident_kib() -> int:
    """What this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


WAYS = {"rates": rates, "right": right, "follow": follow, "growth": lambda size: growth(int(size))}
print(json.dumps(WAYS[sys.argv[1]](*sys.argv[2:])))  # type: ignore[operator]
