"""How long calls take, in turns: what `calibrate` and the benchmarks have in common."""

import itertools
import time
from collections.abc import Callable
from typing import Any

WARM_UPS, SHORTEST = 3, 5e-3  # calls; seconds that a repetition lasts
SETTLED = 0.02  # seconds of untimed calls before it, one at least: threads of another library spin until then


def in_turns(calls: dict[Any, Callable[[], Any]], runs: int) -> dict[Any, list[float]]:
    """Seconds a call in every repetition, of calls that wait for what they compute.

    What is timed comes after itself, as in a loop, and not after another call's gigabyte.
    """
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    times: dict[Any, list[float]] = {name: [] for name in calls}
    orders = itertools.cycle([list(calls), list(calls)[::-1]])
    for _, order in zip(range(runs), orders, strict=False):
        for name in order:
            repeats = 1 + int(untimed(calls[name]) * SHORTEST / SETTLED)
            start = time.perf_counter()
            for _ in range(repeats):
                calls[name]()
            times[name].append((time.perf_counter() - start) / repeats)
    return times


def untimed(call: Callable[[], Any]) -> int:
    """Call until it has settled; how often that was."""
    number, start = 0, time.perf_counter()
    while time.perf_counter() - start < SETTLED:
        call()
        number += 1
    return number
