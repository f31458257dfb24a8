"""What gradients of a step are judged by: how large they are in float64, and how far PyTorch's in float32 are off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

GRADIENT_FACTOR = 3.0
GRADIENT_FLOOR = 2e-6
"""Sixteen roundings: correct orders of evaluation differ by this much where a small gradient is a sum that cancels."""
VANISHING = 1e-9
"""Of the largest gradient: what is smaller is zero by mathematics."""
UPDATE_FACTOR, UPDATE_FLOOR = 10, 1e-4
STORING = 2.0**-23
"""What storing a weight in float32 takes away, by its length."""


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """Relative L2 distance."""
    scale = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / scale if scale else float(np.linalg.norm(found))


def vanishing(exact: Mapping[str, np.ndarray]) -> set[str]:
    """Gradients that are zero by mathematics and rounding noise by arithmetic, such as an attention key's bias.

    (Softmax does not see a shift of all scores of a query.) A relative distance says nothing there.
    """
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in exact.items()}
    largest = max(norms.values())
    return {name for name, norm in norms.items() if norm < VANISHING * largest}


@dataclass(frozen=True)
class Yardstick:
    """What a step's gradients are judged by: made once for a step, however often something is judged."""

    largest: float
    """The largest norm of an exact gradient."""
    zero: set[str]
    """See `vanishing`."""
    torch_own: Mapping[str, float]
    """How far PyTorch's own gradients in float32 are from the exact ones, in the worst order of evaluation."""

    @classmethod
    def of(cls, exact: Mapping[str, np.ndarray], singles: Sequence[Mapping[str, np.ndarray]]) -> Yardstick:
        """From float64's gradients, and float32's in several orders."""
        return cls(
            max(float(np.linalg.norm(gradient)) for gradient in exact.values()),
            vanishing(exact),
            {name: max(distance(single[name], exact[name]) for single in singles) for name in exact},
        )
