"""Send orders over a real channel to a watchdog on every node; print the round trips in ms."""

import json
import os
import select
import sys
import time

from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.adapters.slurm_env import clean_environment
from slurm_guard.job.channel import Channel
from slurm_guard.model.order import Hello, Look, Looked

ORDERS = 100
LIMIT_S = 30.0


def hear(channel: Channel, kind: type, count: int) -> None:
    """Wait until as many watchdogs have said this."""
    until_s = time.monotonic() + LIMIT_S
    heard = 0
    while heard < count:
        select.select([fd for step in channel.steps for fd in step.readers], [], [], 1.0)
        reports, lost = channel.read()
        heard += sum(isinstance(report, kind) for report in reports)
        if lost or time.monotonic() > until_s:
            sys.exit(f"order: {heard} of {count} watchdogs answered; lost: {lost}")


nodes = SlurmCli().expand(sys.argv[1])
channel = Channel(sys.executable, "bench", clean_environment(os.environ), "", print)
channel.start(nodes)
hear(channel, Hello, len(nodes))
time.sleep(1)
took_ms = []
for number in range(ORDERS):
    began_s = time.monotonic()
    channel.send(Look(number, 5.0))
    hear(channel, Looked, len(nodes))
    took_ms.append((time.monotonic() - began_s) * 1000)
    time.sleep(0.05)
channel.close()
print(json.dumps(took_ms))
