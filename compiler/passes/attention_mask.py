"""The scores of an attention that weigh nothing whatever the inputs are, as far as the constants of its masks tell.

A score weighs nothing if a mask makes it -inf, or if another score of its row stays larger by at least 1e9, so that its
exponential is zero. A large negative number alone does not do it: where such numbers hide a whole row, softmax spreads
it over them, and -inf in place of one of them would spread it over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.graph import Array
from compiler.values import Value

HIDDEN = -1e9
"""A mask of at most this hides: next to a score of ordinary size its exponential is zero."""


@dataclass(frozen=True, slots=True)
class MaskPart:
    """Something added to the scores: `value`; or `hidden_by` in place of them where `value` does not hold."""

    value: Value
    hidden_by: float | None = None


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part as far as constants tell, over [batch or 1, heads or 1, queries or 1, keys or 1].

    `array`: what it adds, if that is known. Else `hidden`: where it surely adds `low`, its least value.
    """

    part: MaskPart
    array: Array | None
    hidden: Array | None = None
    low: float = 0.0


def weightless(parts: Sequence[KnownPart], queries: int, keys: int) -> Array:
    """[..., queries, keys]: True where a score surely weighs nothing."""
    constants = np.zeros((1, 1, queries, keys), np.float32)
    with np.errstate(all="ignore"):
        for mask_part in parts:
            constants = constants if mask_part.array is None else constants + mask_part.array
        infinite = constants == -np.inf
        lower = np.isfinite(constants) & (constants.max(axis=-1, keepdims=True) - constants >= -HIDDEN)
    for mask_part in parts:
        if mask_part.array is None:
            hidden = np.asarray(False if mask_part.hidden is None else mask_part.hidden)
            # Where a part is surely at its least, it is nowhere else in the row lower.
            lower, infinite = lower & hidden, infinite | (hidden & (mask_part.low == -np.inf))
    return np.asarray(infinite | lower)


def is_exact(parts: Sequence[KnownPart], hidden: Array) -> bool:
    """Whether adding what every part adds is what the parts do.

    A part that puts a finite number in place of scores stops their gradient; an added one does not. Both are the same
    where the score weighs nothing.
    """
    return all(
        mask_part.part.hidden_by is None
        or mask_part.part.hidden_by == -np.inf
        or (mask_part.array is not None and bool((hidden | (mask_part.array == 0)).all()))
        for mask_part in parts
    )


def later_keys(queries: int, keys: int) -> Array:
    """[queries, keys]: True for keys after the query's own."""
    return np.triu(np.ones((queries, keys), bool), keys - queries + 1)
