"""One GPU probe; prints how many milliseconds it took. probe_once.py fork|new"""

import sys
import time

from slurm_guard.adapters.gpu_health import NvmlHealth

health = NvmlHealth(8.0, forked=sys.argv[1] == "fork")
began_s = time.perf_counter()
reading = health.read()
took_s = time.perf_counter() - began_s
if len(reading.gpus) != 8 or any(gpu.gone for gpu in reading.gpus):
    sys.exit(f"not 8 healthy GPUs: {reading}")
print(took_s * 1000)
