"""The writing of times and ratios, the same everywhere: a time with three digits, its interval with as many as it
bears.
"""

from __future__ import annotations

import math

from device_agents.figures.intervals import Interval

TIMES = "\N{MULTIPLICATION SIGN}"
DIGITS, MOST_DIGITS = 3, 6
"""Digits of a time, and at most of its interval's ends."""
LOSS_DIGITS = 4
"""Digits of a loss: losses differ late."""
HUGE = 1e15
"""The size from which a figure is written with its power of ten."""
LEAST_PLACES, MOST_PLACES = 2, 4
"""The fewest and the most places after the point of a ratio."""
TIME_UNITS = (("s", 6), ("ms", 3), ("us", 0), ("ns", -3))
"""Units of time, each with its power of ten of a microsecond."""


def step_time(us: float) -> str:
    """Microseconds as `471 ns`, `97.1 us`, `42.3 ms`, `1.20 s`."""
    return " ".join(parts_of_time(us))


def parts_of_time(us: float) -> tuple[str, str]:
    """The figure, and its unit."""
    places = places_of_digits(us, DIGITS)
    unit, power = _unit(us, places)
    return _fixed(us, places, power), unit


def time_span(us: float, interval: Interval) -> str:
    """`42.29 to 42.34 ms`: the interval of that time, in its unit."""
    least, most = (places_of_digits(us, digits) for digits in (DIGITS, MOST_DIGITS))
    places = max(least, min(most, _borne(interval.high - interval.low, MOST_DIGITS)))
    unit, power = _unit(us, least)
    return f"{_fixed(interval.low, places, power)} to {_fixed(interval.high, places, power)} {unit}"


def faster_or_slower(ratio: float, interval: Interval) -> str:
    """`1.84x faster (1.70 to 2.00x)`: of an interval without 1 in it."""
    is_faster = interval.high < 1.0
    times = 1 / ratio if is_faster else ratio
    span = Interval(1 / interval.high, 1 / interval.low) if is_faster else interval
    word = "faster" if is_faster else "slower"
    return f"{times:.{places_of_ratio(span)}f}{TIMES} {word} ({ratio_span(span)})"


def ratio_span(interval: Interval) -> str:
    """`0.997 to 1.004x`."""
    places = places_of_ratio(interval)
    return f"{interval.low:.{places}f} to {interval.high:.{places}f}{TIMES}"


def places_of_ratio(interval: Interval) -> int:
    """Digits after its point."""
    return max(LEAST_PLACES, min(MOST_PLACES, _borne(interval.high - interval.low, MOST_PLACES)))


def _borne(width: float, most: int) -> int:
    """Digits after the point: the last one is a third of the width, or less."""
    return -math.floor(math.log10(width / 3)) if width > 0 else most


def rounded(value: float, digits: int = DIGITS) -> str:
    """A figure with so many digits in all: `1.94`, `37.2`, `77,400`, `0.0004213`."""
    if value == 0:
        return "0"
    if abs(value) >= HUGE:
        return f"{value:.{digits - 1}e}"
    places = places_of_digits(abs(value), digits)
    return f"{round(value, places):,.{max(0, places)}f}"


def places_of_digits(value: float, digits: int) -> int:
    """Returns the places after the point of a positive figure that has so many digits in all; below 0: digits before it
    that are left out.
    """
    magnitude = _magnitude(value)
    places = digits - 1 - magnitude
    return places - (_magnitude(round(value, places)) > magnitude)  # 9.996 is 10.0


def _unit(us: float, places: int) -> tuple[str, int]:
    """The largest that leaves 1 or more of the time as it is written."""
    rounded_us = round(us, places) * (1 + 1e-9)
    return next(((unit, power) for unit, power in TIME_UNITS if rounded_us >= 10.0**power), TIME_UNITS[-1])


def _magnitude(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0 else 0


def _fixed(us: float, places: int, power: int) -> str:
    return f"{round(us, places) / 10.0**power:,.{max(0, places + power)}f}"
