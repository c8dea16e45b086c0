"""When requests are sent."""

from __future__ import annotations

import random


def poisson_schedule(rate_per_s: float, num_requests: int, seed: str) -> list[float]:
    """Seconds from the start at which requests arrive: independent users, `rate_per_s` of them on average.

    Each gap is exponential with mean 1 / rate; the first request comes at 0.
    """
    random_gaps = random.Random(f"{seed} arrivals {rate_per_s:g}")
    times_s = [0.0]
    while len(times_s) < num_requests:
        times_s.append(times_s[-1] + random_gaps.expovariate(rate_per_s))
    return times_s[:num_requests]
