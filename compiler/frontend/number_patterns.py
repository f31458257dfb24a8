"""Arrays of numbers that no training gives, by their elements alone.

Weights are large: the first elements of most of them show already that they follow no rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.graph import Array

LEAST_WAVES, LEAST_PERIOD = 4, 16
"""The fewest rows, and the shortest, from which waves are recognised."""
IN_PEAK, PEAK = 0.8, 3
"""A wave has this share of its energy within so many frequencies of its strongest one, whatever window it has."""
FIRST, FEW = 64, 8
"""Elements, or columns of a table, that are looked at first."""
LEAST_STEPS = 16
"""The fewest steps of an even row of numbers that are not whole."""
LEAST_PLACES, MOST_STEPS = 6, 0.6
"""The fewest places along a grid of whole and half numbers, and the largest share of equal steps."""
LEAST_SAMPLES = 4
"""The fewest samples of a sine or cosine that is recognised by its values alone."""
LEAST_HIDING = -50.0
"""A number that hides what it is added to in front of a softmax, or one below it."""
EVEN, SMOOTH = 1e-5, 1e-4
"""Relative: how far steps may be from each other, and a sine from the one that its first values tell."""
MOST_DIGITS, NEAR = 4, 4e-7
"""The most digits of a round number, and how far, relatively, float32 may have moved it."""
_NOTHING = 1e-12
"""The share of the largest row's energy below which a row is rounding."""


def _first(array: Array) -> Array:
    return array.reshape(-1)[:FIRST].astype(np.float64)


def _spread(array: Array) -> Array:
    """Returns elements from everywhere in an array: the first row of a table of words is often zero."""
    return array.reshape(-1)[:: max(1, array.size // FIRST)]


def is_round_number(array: Array) -> bool:
    """Tells whether a number without axes, such as biases and slopes have, is as an author writes it and as no training
    leaves it.
    """
    return array.ndim == 0 and _is_round(float(array))


def _is_round(number: float) -> bool:
    """A number of few digits, or its inverse, root or multiple of pi, as formulas hold: 255, 0.044715, 2**0.5."""
    if number == 0 or not math.isfinite(number) or not 1e-12 < abs(number) < 1e12:
        return True
    if float(np.float32(f"{number:.{MOST_DIGITS}e}")) == number:  # a digit more: that it is exact says enough
        return True
    square = number * number
    forms = (1 / number, number / math.pi, square, 1 / square, square * math.pi)
    return any(math.isclose(float(f"{form:.{MOST_DIGITS - 1}e}"), form, rel_tol=NEAR) for form in forms)


def are_in_order(array: Array) -> bool:
    """Equal steps of a whole number between whole or half numbers, one element after the other."""
    return array.size > 2 and _has_whole_steps(_first(array)) and _has_whole_steps(array.reshape(-1))


def _has_whole_steps(numbers: Array) -> bool:
    if not _are_halves(numbers):
        return False
    steps = np.diff(numbers)
    return bool(steps[0] != 0 and steps[0] == np.round(steps[0]) and (steps == steps[0]).all())


def _are_halves(numbers: Array) -> bool:
    return bool(np.isfinite(numbers).all() and (2 * numbers == np.round(2 * numbers)).all())


def are_even(array: Array) -> bool:
    """Equal steps, many of them, one element after the other."""
    if array.size < LEAST_STEPS:
        return False
    return _has_equal_steps(_first(array)) and _has_equal_steps(array.reshape(-1).astype(np.float64))


def _has_equal_steps(numbers: Array) -> bool:
    if not np.isfinite(numbers).all():
        return False
    steps = np.diff(numbers)
    return bool(steps[0] != 0 and np.abs(steps - steps.mean()).max() <= EVEN * np.abs(numbers).max())


def are_powers(array: Array) -> bool:
    """Equal ratios, one element after the other, such as the slopes of ALiBi and the frequencies of RoPE."""
    if array.size < LEAST_SAMPLES or not (_first(array) > 0).all() or array.min() <= 0:
        return False
    return _has_equal_steps(np.log(_first(array))) and _has_equal_steps(np.log(array.reshape(-1).astype(np.float64)))


def are_places(array: Array) -> bool:
    """Whole and half numbers that mostly go on by one step, such as the places of a grid and its strides."""
    if array.size < LEAST_PLACES or not (_are_halves(_spread(array)) and _are_halves(array)):
        return False
    longest = int(np.argmax(array.shape))
    rows = np.moveaxis(array, longest, -1).reshape(-1, array.shape[longest])
    return array.shape[longest] >= LEAST_PLACES and len(np.unique(array)) > 2 and all(map(_goes_on, rows))


def _goes_on(row: Array) -> bool:
    """Whether one step makes up most of those between neighbours."""
    _, counts = np.unique(np.diff(row), return_counts=True)
    return bool(counts.max() >= MOST_STEPS * (len(row) - 1))


def is_mask(array: Array) -> bool:
    """Zeros and ones, both of them and nothing else."""
    is_binary = all(((part == 0) | (part == 1)).all() for part in (_spread(array), array))
    return is_binary and bool(array.any()) and not bool(array.all())


def hides(array: Array) -> bool:
    """Zeros and one number so low that a softmax leaves nothing of what it is added to."""
    low = array.min(initial=0.0)
    return bool(low <= LEAST_HIDING and (array == 0).any() and ((array == 0) | (array == low)).all())


def is_repeated_filter(array: Array) -> bool:
    """Returns whether an array is the same filter [C, 1, ...] for every channel, of more than one number, such as a
    blur.
    """
    is_depthwise = array.ndim > 2 and array.shape[1] == 1 and len(array) >= LEAST_WAVES
    return is_depthwise and bool((array == array[:1]).all()) and len(np.unique(array[0])) > 1


def are_sines(array: Array) -> bool:
    """A table whose columns are all sines and cosines of one variable each: angles of positions.

    Of such a column the neighbours of an element add up to the same multiple of it everywhere.
    """
    long = [extent for extent in array.shape if extent > 1]
    if len(long) != 2 or long[0] < LEAST_SAMPLES or np.abs(array).max() > 1 + SMOOTH:
        return False
    table = array.reshape(long)
    return _are_sines(table[:, :FEW]) and _are_sines(table)


def _are_sines(table: Array) -> bool:
    table = table.astype(np.float64)
    around, middle = table[:-2] + table[2:], table[1:-1]
    columns = np.arange(table.shape[1])
    largest = np.abs(middle).argmax(0)
    strongest = middle[largest, columns]
    strongest = np.where(np.abs(strongest) < SMOOTH, 1.0, strongest)
    factors = around[largest, columns] / strongest
    varies = np.ptp(table, axis=0) > SMOOTH
    return bool(varies.sum() >= 2 and np.abs(around - factors * middle).max() <= SMOOTH)


def are_waves(array: Array) -> bool:
    """Whether all filters or rows, or both halves (cosines, sines), are waves of rising or falling frequency."""
    rows = _rows(array)
    if rows is None:
        return False
    peaks: list[int] = []
    least = _NOTHING * max(float(np.square(row, dtype=np.float64).sum()) for row in rows[: len(rows) // 2])
    for row in rows:
        peak = _peak(row.astype(np.float64), least * len(row))
        if peak is None:
            return False
        peaks.append(peak)
    half = len(rows) // 2
    halves = (peaks[:half], peaks[half:]) if len(rows) % 2 == 0 and half >= LEAST_WAVES else ((),)
    return _is_monotonic(peaks) or all(map(_is_monotonic, halves))


def are_bands(array: Array) -> bool:
    """Rows or columns of non-negative numbers, each in one run, whose middles rise, and that are zero elsewhere."""
    rows = _rows(array)
    return rows is not None and (_are_bands(rows) or (array.ndim == 2 and _are_bands(array.T)))


def _rows(array: Array) -> Array | None:
    """The filters of a convolution of one channel, or the rows of a matrix along its longer axis."""
    long = [extent for extent in array.shape if extent > 1]
    if len(long) != 2 or min(long) < LEAST_WAVES or max(long) < LEAST_PERIOD:
        return None
    rows = array.reshape(long)
    return rows if array.ndim > 2 or long[0] <= long[1] else rows.T


def _peak(row: Array, least: float) -> int | None:
    """The frequency that a row holds, or None if it holds several; -1 without energy (the sine of frequency 0)."""
    energy = np.abs(np.fft.rfft(row)) ** 2
    whole = float(energy.sum())
    if whole <= least:
        return -1
    peak = int(energy.argmax())
    near = float(energy[max(peak - PEAK, 0) : peak + PEAK + 1].sum())
    return peak if near >= IN_PEAK * whole else None


def _is_monotonic(peaks: Sequence[int]) -> bool:
    numbers = [peak for peak in peaks if peak >= 0]
    return len(set(numbers)) >= LEAST_WAVES and numbers in (sorted(numbers), sorted(numbers, reverse=True))


def _are_bands(rows: Array) -> bool:
    """Rows of non-negative numbers, each in one run, whose middles rise, and that are zero elsewhere."""
    if rows.min() < 0 or np.count_nonzero(rows) > rows.size // 2:
        return False
    middles = []
    for row in rows:
        places = np.flatnonzero(row)
        if places.size and places[-1] - places[0] + 1 != places.size:
            return False
        middles += [float(places.mean())] if places.size else []
    return len(set(middles)) >= LEAST_WAVES and middles == sorted(middles)
