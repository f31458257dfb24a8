"""Offsets for blocks of known size and life: several orders of a first-fit, then a short search from the best of them.

The search is fixed in length, so packing takes time in proportion to the blocks and gives the same bytes each time. The
most bytes alive at one call are the bound below which no packing gets; packing ends where it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.program.program import ProgramName
from compiler.values import Value

ROUNDS = 12
"""First-fits that the search may try."""


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


def peak_bytes(blocks: Sequence[Block]) -> int:
    """Most bytes alive at one time: no packing can be smaller."""
    events = sorted([(block.first, 1, block.size_bytes) for block in blocks] + [
        (block.last + 1, 0, -block.size_bytes) for block in blocks
    ])  # fmt: skip
    peak = now = 0
    for _, _, change in events:
        now += change
        peak = max(peak, now)
    return peak


def pack(blocks: Sequence[Block]) -> Packing:
    """Offsets (of aligned blocks: aligned) such that blocks alive together do not overlap."""
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size_bytes, blocks[i].first),
        lambda i: (-blocks[i].size_bytes * (blocks[i].last - blocks[i].first + 1), blocks[i].first),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size_bytes),
        lambda i: (blocks[i].first, -blocks[i].size_bytes),
    )
    bound = peak_bytes(blocks)
    best, best_order = Packing([], 0, bound), list(range(len(blocks)))
    for number, key in enumerate(orders):
        order = sorted(range(len(blocks)), key=key)
        found = Packing(*_first_fit(blocks, order), bound)
        if not number or found.used_bytes < best.used_bytes:
            best, best_order = found, order
        if best.used_bytes == bound:
            return best
    return _searched(blocks, best, best_order)


def _searched(blocks: Sequence[Block], best: Packing, order: list[int]) -> Packing:
    """Rounds of first-fit, each with what stood highest in the last one placed first."""
    for _ in range(ROUNDS):
        found = Packing(*_first_fit(blocks, order), best.bound_bytes)
        if found.used_bytes < best.used_bytes:
            best = found
        if best.used_bytes == best.bound_bytes:
            break
        ends = [offset + block.size_bytes for offset, block in zip(found.offsets, blocks, strict=True)]
        highest = [i for i in order if ends[i] == found.used_bytes]
        moved = set(highest)
        order = highest + [i for i in order if i not in moved]
    return best


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
