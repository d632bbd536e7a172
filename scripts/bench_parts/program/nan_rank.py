"""A rank that logs iterations, and NaN once the file named on its command line is there."""

import os
import sys
import time

go, rank = sys.argv[1], int(os.environ["SLURM_PROCID"])
iteration = 0
while True:
    time.sleep(0.05)
    iteration += 1
    if rank:
        continue
    if os.path.exists(go):
        print(f"iteration {iteration} loss nan at {time.time():.4f}", flush=True)
    else:
        print(f"iteration {iteration} loss {2 + 1 / iteration:.4f}", flush=True)
