"""How long it takes to judge a record; JSON on stdout: microseconds of CPU, p50 and p99, by function."""

import json
import math
import random
import time
from collections.abc import Callable

from slurm_guard.model.limits import Settings
from slurm_guard.model.reading import Record
from slurm_guard.policy.attempt import Attempt
from slurm_guard.policy.loss.numeric import NumericState, judge_numeric

CALLS = 50_000
WARM_UP = 5_000


def compose(number: int, source: random.Random) -> Record:
    """A loss that falls with noise, a spike now and then, a NaN more seldom."""
    loss = 2 + 8 / math.sqrt(number) + source.gauss(0, 0.1)
    loss = loss * 30 if number % 1_000 < 3 else loss
    return Record(math.nan if number % 5_000 < 2 else loss, iteration=number, grad_norm=1.0)


def measure(call: Callable[[Record, float], object]) -> dict[str, float]:
    """Nearest ranks over CALLS calls, one record an iteration."""
    source, took_ns = random.Random(1), []
    for number in range(1, WARM_UP + CALLS):
        record, now_s = compose(number, source), float(number)
        began_ns = time.thread_time_ns()
        call(record, now_s)
        took_ns.append(time.thread_time_ns() - began_ns)
    took_ns = sorted(took_ns[WARM_UP:])
    return {"p50": took_ns[len(took_ns) // 2] / 1000, "p99": took_ns[len(took_ns) * 99 // 100] / 1000}


settings, state, attempt = Settings(), NumericState(), Attempt.begin(0.0)
told = {
    "judge_numeric": measure(lambda record, now_s: judge_numeric(state, record, settings, now_s)),
    "Attempt.record": measure(lambda record, now_s: attempt.record(record, settings, now_s)),
}
print(json.dumps(told))
