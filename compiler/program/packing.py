"""Offsets for blocks of known size and life: orders of a first-fit, a short search from the best, fillings from below.

Both searches are fixed in length, so packing takes time in proportion to the blocks and gives the same bytes each time.
The most bytes alive at one call are the bound below which no packing gets; packing ends where it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from random import Random

import numpy as np
from numpy.typing import NDArray

from compiler.program.program import ProgramName
from compiler.values import Value

ROUNDS = 12
"""First-fits that the search may try."""
FILLINGS, LOOKS = 40, 60_000
"""Fillings from below that are tried where that leaves a gap, and how often they may look at a block in all."""


@dataclass(frozen=True, slots=True)
class Block:
    """Something that needs arena bytes over a range of calls (both ends included)."""

    key: tuple[ProgramName, Value | int]
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Packing:
    """The offset of each block, the bytes used, and the most that are alive at one time."""

    offsets: Sequence[int]
    used_bytes: int
    bound_bytes: int


def pack(blocks: Sequence[Block]) -> Packing:
    """Offsets (of aligned blocks: aligned) such that blocks alive together do not overlap."""
    alive = _alive(blocks)
    crowd = [int(alive[block.first : block.last + 1].max()) for block in _from_zero(blocks)]
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size_bytes, blocks[i].first),
        lambda i: (-blocks[i].size_bytes * (blocks[i].last - blocks[i].first + 1), blocks[i].first),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size_bytes),
        lambda i: (blocks[i].first, -blocks[i].size_bytes),
        lambda i: (-crowd[i], blocks[i].first - blocks[i].last, -blocks[i].size_bytes),
    )
    bound = int(alive.max(initial=0))
    best, order = Packing([], 0, bound), list(range(len(blocks)))
    for number, key in enumerate(orders):
        order = sorted(range(len(blocks)), key=key)
        packing = Packing(*_first_fit(blocks, order), bound)
        best = packing if not number or packing.used_bytes < best.used_bytes else best
        if best.used_bytes == bound:
            return best
    best = _searched(blocks, best, order)
    return best if best.used_bytes == bound else _from_below(blocks, best)


def peak_bytes(blocks: Sequence[Block]) -> int:
    """Most bytes alive at one time: no packing can be smaller."""
    return int(_alive(blocks).max(initial=0))


def _from_zero(blocks: Sequence[Block]) -> list[Block]:
    """With lives counted from the first call of all."""
    start = min((block.first for block in blocks), default=0)
    return [replace(block, first=block.first - start, last=block.last - start) for block in blocks]


def _alive(blocks: Sequence[Block]) -> NDArray[np.int64]:
    """Bytes alive at each call, from the first."""
    moved = _from_zero(blocks)
    changes = np.zeros(max((block.last for block in moved), default=-1) + 2, np.int64)
    for block in moved:
        changes[block.first] += block.size_bytes
        changes[block.last + 1] -= block.size_bytes
    return np.cumsum(changes)


def _searched(blocks: Sequence[Block], best: Packing, order: list[int]) -> Packing:
    """The best of some rounds of first-fit, each with what stood highest in the one before placed first."""
    for _ in range(ROUNDS):
        packing = Packing(*_first_fit(blocks, order), best.bound_bytes)
        best = packing if packing.used_bytes < best.used_bytes else best
        if best.used_bytes == best.bound_bytes:
            break
        ends = [offset + block.size_bytes for offset, block in zip(packing.offsets, blocks, strict=True)]
        order.sort(key=lambda i: ends[i] != packing.used_bytes)  # the others stay as they are among themselves
    return best


def _from_below(blocks: Sequence[Block], best: Packing) -> Packing:
    """The best of some fillings from below, in which every round weighs the blocks a little otherwise."""
    drawn, size = Random(0), [block.size_bytes * (block.last - block.first + 1) for block in blocks]
    for number in range(min(FILLINGS, LOOKS // len(blocks) ** 2)):
        weights = [block_size * exp(drawn.uniform(-1, 1)) if number else block_size for block_size in size]
        packing = Packing(*_filled(blocks, weights), best.bound_bytes)
        best = packing if packing.used_bytes < best.used_bytes else best
        if best.used_bytes == best.bound_bytes:
            break
    return best


def _filled(blocks: Sequence[Block], weights: Sequence[float]) -> tuple[list[int], int]:
    """Next comes what would lie lowest on those before it, and of equal ones the heaviest; nothing is put below."""
    moved = _from_zero(blocks)
    offsets, unplaced = [0] * len(blocks), list(range(len(blocks)))
    height = np.zeros(max(block.last for block in moved) + 1, np.int64)
    while unplaced:
        lowest = {i: int(height[moved[i].first : moved[i].last + 1].max()) for i in unplaced}
        i = min(unplaced, key=lambda i: (lowest[i], -weights[i]))
        unplaced.remove(i)
        offsets[i] = lowest[i]
        height[moved[i].first : moved[i].last + 1] = lowest[i] + blocks[i].size_bytes
    return offsets, int(height.max())


def _first_fit(blocks: Sequence[Block], order: Sequence[int]) -> tuple[list[int], int]:
    """Each block in turn at the lowest offset that is free while it lives; a few operations on vectors for each."""
    offsets = [0] * len(blocks)
    placed = np.zeros((4, len(blocks)), np.int64)  # offset, end, first and last call; by offset
    used = 0
    for count, i in enumerate(order):
        block = blocks[i]
        starts, ends, firsts, lasts = placed[:, :count]
        meets = np.flatnonzero((firsts <= block.last) & (lasts >= block.first))
        free = np.zeros(len(meets) + 1, np.int64)  # below each of those that it meets, and above them all
        np.maximum.accumulate(ends[meets], out=free[1:])
        fits = np.flatnonzero(starts[meets] - free[:-1] >= block.size_bytes)
        offsets[i] = spot = int(free[fits[0] if len(fits) else -1])
        at = int(np.searchsorted(starts, spot, "right"))
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        placed[:, at] = spot, spot + block.size_bytes, block.first, block.last
        used = max(used, spot + block.size_bytes)
    return offsets, used
