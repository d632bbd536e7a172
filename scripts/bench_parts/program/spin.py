"""A rank that computes for so many seconds and writes the mean of its iterations in ms into a file."""

import os
import sys
import time

seconds, path = float(sys.argv[1]), sys.argv[2]
WARM_UP_S = 4.0  # the watchdog has come up by then
began_s = time.monotonic()
first_s, count, iteration = 0.0, 0, 0
while True:
    now_s = time.monotonic()
    if now_s - began_s >= seconds:
        break
    if now_s - began_s >= WARM_UP_S:
        first_s = first_s or now_s
        count += 1
    iteration += 1
    total = 0
    for number in range(100_000):
        total += number * number
    if iteration % 10 == 0:
        print(f"iteration {iteration} loss {2 + 1 / iteration:.4f}", flush=True)
with open(f"{path}.{os.environ['SLURM_PROCID']}", "w") as file:
    file.write(str((time.monotonic() - first_s) / count * 1000))
