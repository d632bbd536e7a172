"""How long a heartbeat takes its training; JSON on stdout: microseconds of CPU, p50 and p99."""

import json
import os
import time

CALLS = 50_000
WARM_UP = 5_000

os.environ["SLURM_GUARD_RUN"] = "bench"
from slurm_guard.training import heartbeat  # noqa: E402

took_ns = []
for i in range(1, WARM_UP + CALLS):
    began_ns = time.thread_time_ns()
    heartbeat(iteration=i, loss=2 + 1 / i)
    took_ns.append(time.thread_time_ns() - began_ns)
took_ns = sorted(took_ns[WARM_UP:])
print(json.dumps({"p50": took_ns[len(took_ns) // 2] / 1000, "p99": took_ns[len(took_ns) * 99 // 100] / 1000}))
