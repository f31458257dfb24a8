"""How a time and a ratio are written: the unit that fits, and as many digits as what is known of them bears."""

from __future__ import annotations

import math

from device_agents.figures.intervals import Interval

TIMES = "\N{MULTIPLICATION SIGN}"
LEAST_DIGITS, MOST_DIGITS = 2, 6
"""Of a time that has an interval, in all."""
ALONE_DIGITS = 3
"""Of a time that has none."""
LEAST_PLACES, MOST_PLACES = 2, 4
"""After the point of a ratio."""
TIME_UNITS = (("s", 6), ("ms", 3), ("us", 0), ("ns", -3))
"""Each is that power of ten of a microsecond."""


def step_time(us: float, interval: Interval | None = None) -> str:
    """Microseconds as `471 ns`, `97.1 us`, `42.31 ms`, `1.20 s`, with the digits that its interval bears, or three."""
    return " ".join(parts_of_time(us, interval))


def parts_of_time(us: float, interval: Interval | None = None) -> tuple[str, str]:
    """The figure, and its unit."""
    places = _places_of_time(us, interval)
    unit, power = _unit(us, places)
    return _fixed(us, places, power), unit


def time_span(us: float, interval: Interval) -> str:
    """`42.1 to 42.6 ms`: the interval of that time, in its unit and with its digits."""
    places = _places_of_time(us, interval)
    unit, power = _unit(us, places)
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


def _places_of_time(us: float, interval: Interval | None) -> int:
    """After the point of microseconds; below 0: digits before it that are not told."""
    if interval is None:
        return places_of_digits(us, ALONE_DIGITS)
    borne = _borne(interval.high - interval.low, MOST_DIGITS)
    return max(places_of_digits(us, LEAST_DIGITS), min(places_of_digits(us, MOST_DIGITS), borne))


def places_of_digits(value: float, digits: int) -> int:
    """After the point of a positive figure that has so many in all; below 0: digits before it that are not told."""
    magnitude = _magnitude(value)
    places = digits - 1 - magnitude
    return places - (_magnitude(round(value, places)) > magnitude)  # 9.996 is 10.0


def _unit(us: float, places: int) -> tuple[str, int]:
    """The largest that leaves 1 or more of the time as it is written."""
    written = round(us, places) * (1 + 1e-9)
    return next(((unit, power) for unit, power in TIME_UNITS if written >= 10.0**power), TIME_UNITS[-1])


def _magnitude(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0 else 0


def _fixed(us: float, places: int, power: int) -> str:
    return f"{round(us, places) / 10.0**power:,.{max(0, places + power)}f}"
