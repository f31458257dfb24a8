"""Places in the windows of a pool: which of them was the first maximum, a byte for each element of y [N, OH, OW, C].

Bytes are held by words, i32 [N, W]: those of a sample, as they lie in memory (the lowest first), are the places of its
elements of y in their order, and up to three more. Kernels see the bytes only. Place r KW + s is row r and column s of
the window, counted from where it begins, inside the image or not.

Conventions that specs of all families share: fields that came later, and the types in which operands lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from compiler.element_types import DType

LATER: Mapping[str, bool] = {"later": True}
"""Marks a field that is younger than its class: the canonical text leaves it out where it holds its default, so that
what was compiled or measured before keeps its name."""

Stored = tuple[DType, ...]
"""The types in which a family's own operands lie in memory, inputs before outputs; empty: in those that the family
says. Where a real is held in half of one, the kernel computes with it widened, and rounds what it writes.
"""


WORD_BYTES = 4
_BYTE = 256


def holds_places(kernel: tuple[int, ...]) -> bool:
    """Whether a byte says which place of such a window it is."""
    return prod(kernel) <= _BYTE


def words_of_sample(size: tuple[int, ...], channels: int) -> int:
    """Words for all places of one sample, of an output of this height and width."""
    return -(-prod(size) * channels // WORD_BYTES)
