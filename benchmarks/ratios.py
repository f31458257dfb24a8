"""How many times as long one side's steps take as another's; NumPy is all that this needs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np


def ratio_of_rounds(slow: Sequence[Sequence[float]], fast: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """(median, low, high) of slow / fast over the rounds that both took part in, each round a pair of medians.

    The interval is a 95% bootstrap over the rounds.
    """
    pairs = zip(slow, fast, strict=False)
    ratios = np.array([statistics.median(one) / statistics.median(other) for one, other in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(np.median(ratios)), float(low), float(high)
