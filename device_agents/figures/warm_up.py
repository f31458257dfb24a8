"""The step from which a process runs at its own pace: worked out from the times, not counted beforehand.

Caches fill, pages are mapped, clocks rise: the first steps of a process take longer. They are one or more stretches,
each slower than what follows, and no stretch is a step or two that something disturbed in the midst of others.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections.abc import Sequence

LEAST_SETTLED = 4
"""Steps that must be left: what has settled is known from them."""
MOST_ALLOWED = 64
"""Steps that the warm-up of a process may take: more would be spent on looking for its end."""
PRICE = 3.0
"""Price of a change, in typical deviations and for each natural logarithm of the number of steps: noise seldom saves
more.
"""
QUIET_FACTOR = 2.1
"""The ratio of the median of normal noise's absolute values to their lower quartile."""
LEAST_DEVIATION = 1e-3
"""The least deviation of the logarithm of a time: clocks are no finer."""


def settled_from(step_us: Sequence[float], *, most: int) -> int:
    """Returns how many steps are warm-up, at most `most`: up to the last change after which steps are faster.

    A change is where two middle values, one before and one after, explain the logarithms of the times better than one
    does, by more than `PRICE`. What follows it is looked at again: a ramp is many changes. `most` itself means that
    the steps may not have settled by then.
    """
    logs = [math.log(us) for us in step_us]
    warm_up_steps = 0
    while warm_up_steps < most and len(logs) - warm_up_steps > LEAST_SETTLED:
        change = _change(logs[warm_up_steps:], min(most - warm_up_steps, len(logs) - warm_up_steps - LEAST_SETTLED))
        if not change:
            break
        warm_up_steps += change
    return warm_up_steps


def allowance(steps: int) -> int:
    """Returns how many steps a process that is to have `steps` settled ones is given for its warm-up, beside them."""
    return min(MOST_ALLOWED, max(LEAST_SETTLED, steps // 3))


def settled(step_us: Sequence[float], steps: int) -> Sequence[float]:
    """Returns so many steps of a process, from the first after its warm-up on; what it has beyond them is left out."""
    warm_up_steps = settled_from(step_us, most=max(0, len(step_us) - steps))
    return step_us[warm_up_steps : warm_up_steps + steps]


def _change(logs: Sequence[float], most: int) -> int:
    """Returns the number of values after which the rest is lower; 0 if no change is worth its price."""
    price = PRICE * deviation(logs) * math.log(len(logs))
    saved, best = 0.0, 0
    before: list[float] = []
    after = sorted(logs)
    whole = spread(after)
    for at in range(1, most + 1):
        moved = logs[at - 1]
        insort(before, moved)
        del after[bisect_left(after, moved)]
        gain = whole - spread(before) - spread(after)
        if gain > saved and statistics.median(before) > statistics.median(after):
            saved, best = gain, at
    return best if saved > price else 0


def spread(ordered: Sequence[float]) -> float:
    """Returns how far the values are from their middle one, together: those above it less those below it."""
    half = len(ordered) // 2
    return sum(ordered[len(ordered) - half :]) - sum(ordered[:half])


def deviation(logs: Sequence[float]) -> float:
    """Returns the typical deviation of one value from the next: by the quieter ones, so that changes and disturbed
    steps hardly count.
    """
    steps = sorted(abs(late - early) for early, late in zip(logs, logs[1:]))
    return max(QUIET_FACTOR * steps[len(steps) // 4], LEAST_DEVIATION)
