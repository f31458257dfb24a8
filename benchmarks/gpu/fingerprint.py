"""Sixty-four numbers of an array, by which its distance from another is known without carrying either.

Each element is added, with a random sign, to one of the numbers. The length of the difference of two fingerprints is
that of the difference of the arrays, give or take a tenth.

Source: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002 (the count sketch); the
signs are as independent as the bit generator's bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.seeded import raw

NUMBERS = 64
OFF = 1.5
"""By so much a distance of fingerprints may be too large by chance: more than five deviations of it."""
Fingerprint = NDArray[np.float64]


def fingerprint(name: str, array: NDArray[Any]) -> Fingerprint:
    """Of an array's elements in order; `name` chooses the signs."""
    count = array.size
    bits = np.unpackbits(raw(f"signs {name}", -(-count // 64)).astype("<u8").view(np.uint8), count=count)
    rows = np.zeros(-(-count // NUMBERS) * NUMBERS)
    np.multiply(array.reshape(-1), 1.0 - 2.0 * bits, out=rows[:count])
    found: Fingerprint = rows.reshape(-1, NUMBERS).sum(axis=0)
    return found
