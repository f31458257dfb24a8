"""Plans every byte: state at fixed places, temporaries of all programs in one static arena.

A value lives from the call that makes it to the last call that reads it; values whose lives overlap get disjoint
ranges. A result may be written over an operand that dies in its call (`compiler.program.in_place`).
What packing (`compiler.program.memory`) makes of it is told beside the bound that the order of the calls sets.

Offsets for blocks of known size and life: orders of a first-fit, a short search from the best, fillings from below.

Both searches are fixed in length, so packing takes time in proportion to the blocks and gives the same bytes each time.
The most bytes alive at one call are the bound below which no packing gets; packing ends where it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from random import Random

import numpy as np
from numpy.typing import NDArray

from compiler.kernels.alignment import aligned
from compiler.program.aliases import storage_of
from compiler.program.in_place import reuse_in_place
from compiler.program.program import KernelCall, MemoryPlan, Placement, Program, ProgramName, StateTensor
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
    """Returns the blocks with lives counted from the first call of all."""
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
    """Places each block in turn at the lowest offset that is free while it lives; a few operations on vectors for
    each.
    """
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


def plan_memory(
    programs: Sequence[Program],
    state: Sequence[StateTensor],
    workspace_bytes: Callable[[KernelCall], int],
) -> tuple[tuple[Program, ...], MemoryPlan]:
    """Places every value of every program; returns the programs with in-place aliases added."""
    stays = {tensor.value for tensor in state}
    programs = tuple(reuse_in_place(program, {*stays, *map(program.root, program.outputs)}) for program in programs)
    weights, weights_bytes = _stack(state, ("parameter", "constant"))
    optimizer, optimizer_bytes = _stack(state, ("optimizer", "accumulator"))
    fixed = {name: Placement("weights", *place) for name, place in weights.items()}
    fixed |= {name: Placement("optimizer", *place) for name, place in optimizer.items()}
    placements: dict[tuple[ProgramName, Value], Placement] = {}
    workspaces: dict[tuple[ProgramName, int], Placement] = {}
    live: dict[tuple[ProgramName, Value], tuple[int, int]] = {}
    arena_bytes = bound_bytes = 0
    for program in programs:
        blocks = _blocks(program, fixed, workspace_bytes)
        packed = pack(blocks)
        arena_bytes, bound_bytes = max(arena_bytes, packed.used_bytes), max(bound_bytes, packed.bound_bytes)
        for block, offset in zip(blocks, packed.offsets, strict=True):
            place = Placement("arena", offset, block.size_bytes)
            name, key = block.key
            if isinstance(key, int):
                workspaces[name, key] = place
            else:
                placements[name, key] = place
                live[name, key] = (block.first, block.last)
        _place_aliases(program, fixed, placements)
    plan = MemoryPlan(placements, workspaces, live, weights_bytes, optimizer_bytes, arena_bytes, bound_bytes)
    return programs, plan


def _stored_bytes(size_bytes: int) -> int:
    """Returns the bytes that a value is stored in, an empty one too: each has a place of its own."""
    return aligned(max(size_bytes, 1))


def _stack(state: Sequence[StateTensor], roles: tuple[str, ...]) -> tuple[dict[Value, tuple[int, int]], int]:
    """State tensors one after the other, what is mapped from a file first: value -> (offset, size)."""
    places: dict[Value, tuple[int, int]] = {}
    offset = 0
    for tensor in sorted(state, key=lambda state_tensor: state_tensor.mapped_order):
        if tensor.role in roles:
            places[tensor.value] = (offset, tensor.type.size_bytes)
            offset += _stored_bytes(tensor.type.size_bytes)
    return places, offset


def _blocks(
    program: Program, fixed: Mapping[Value, Placement], workspace_bytes: Callable[[KernelCall], int]
) -> list[Block]:
    spans: dict[Value, tuple[int, int]] = {program.root(name): (-1, -1) for name in program.inputs}
    for position, call in enumerate(program.calls):
        for name in (*call.inputs, *call.outputs):
            root = program.root(name)
            first = spans.get(root, (position, position))[0]
            spans[root] = (first, position)
    for name in program.outputs:
        root = program.root(name)
        spans[root] = (spans[root][0], len(program.calls))
    blocks = [
        Block((program.name, root), _stored_bytes(program.types[root].size_bytes), first, last)
        for root, (first, last) in spans.items()
        if root not in fixed
    ]
    for position, call in enumerate(program.calls):
        needed = workspace_bytes(call)
        if needed:
            blocks.append(Block((program.name, position), _stored_bytes(needed), position, position))
    return blocks


def _place_aliases(
    program: Program, fixed: Mapping[Value, Placement], placements: dict[tuple[ProgramName, Value], Placement]
) -> None:
    for name, place in fixed.items():
        placements[program.name, name] = place
    used = {name for call in program.calls for name in (*call.inputs, *call.outputs)} | set(program.outputs)
    for name in used:
        shared = storage_of(program.aliases, name)
        owner = placements.get((program.name, shared.value))
        if shared.value != name and owner is not None:
            start = owner.offset_bytes + shared.offset_bytes
            placements[program.name, name] = Placement(owner.region, start, program.types[name].size_bytes)
