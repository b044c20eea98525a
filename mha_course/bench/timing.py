"""Times that can be compared: all contestants take turns, and ratios are taken within a turn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP = 3
SAMPLE_SECONDS = 0.02  # calls that are shorter are repeated within a sample, up to about this long


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of what the repetitions gave."""

    first_quartile: float
    median: float
    third_quartile: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise repetitions.

    >>> spread([3.0, 1.0, 2.0])
    Spread(first_quartile=1.5, median=2.0, third_quartile=2.5)
    """
    return Spread(*(float(quartile) for quartile in np.quantile(values, (0.25, 0.5, 0.75))))


def ratio(seconds: Sequence[float], base: Sequence[float]) -> Spread:
    """Divide time by time, turn by turn, so that what slows a whole turn down cancels out.

    >>> ratio([2.0, 40.0], [4.0, 80.0])  # the machine was 20 times slower in the second turn
    Spread(first_quartile=0.5, median=0.5, third_quartile=0.5)
    """
    return spread([mine / its for mine, its in zip(seconds, base, strict=True)])


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warm_up: int = WARM_UP,
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    after_turn: Callable[[], None] = lambda: None,
) -> tuple[dict[str, list[float]], int]:
    """Time each run once a turn, the turns in ever new orders.

    Args:
        runs: what is timed, by name.
        repeats: number of turns.
        warm_up: turns before those, which are not counted but say how many calls to take together.
        wait: returns when the device has done all it was given.
        clock: seconds.
        after_turn: called after each turn.

    Returns:
        Seconds a call by name, one number a turn; and how many calls each number is the mean of.
    """

    def sample(run: Callable[[], object], calls: int) -> float:
        wait()
        start = clock()
        for _ in range(calls):
            run()
        wait()
        return (clock() - start) / calls

    shortest = min((sample(run, 1) for _ in range(warm_up) for run in runs.values()), default=0.0)
    calls = max(1, math.ceil(SAMPLE_SECONDS / shortest)) if shortest > 0 else 1
    order, generator = list(runs), random.Random(0)  # noqa: S311 (an order, not a secret)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        generator.shuffle(order)  # nobody always finds the caches as the same neighbour left them
        for name in order:
            seconds[name].append(sample(runs[name], calls))
        after_turn()
    return seconds, calls
