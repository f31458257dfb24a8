"""Plans every byte: state at fixed places, temporaries of all programs in one static arena.

A value lives from the call that makes it to the last call that reads it; values whose lives overlap get disjoint
ranges. A map may write over an operand that dies in it and is read at the same point.
The packing tries several orders of a first-fit and keeps the smallest; `peak_bytes` of live values is the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.errors import DoesNotFit
from compiler.kernels.affine import is_identity
from compiler.kernels.alignment import aligned
from compiler.kernels.spec import MapSpec
from compiler.program.aliases import Alias, storage_of
from compiler.program.program import KernelCall, MemoryPlan, Placement, Program, ProgramName, StateTensor
from compiler.targets import Target
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Block:
    """Something that needs arena bytes over a range of calls (both ends included)."""

    key: tuple[ProgramName, Value | int]
    size_bytes: int
    first: int
    last: int


def plan_memory(
    programs: Sequence[Program],
    state: Sequence[StateTensor],
    workspace_bytes: Callable[[KernelCall], int],
    limit_bytes: int | None,
) -> tuple[tuple[Program, ...], MemoryPlan]:
    """Places every value of every program; returns the programs with in-place aliases added.

    Raises: DoesNotFit if arena, weights and optimizer state together pass `limit_bytes`.
    """
    programs = tuple(_reuse_in_place(program, state) for program in programs)
    weights, weights_bytes = _stack(state, ("parameter", "constant"))
    optimizer, optimizer_bytes = _stack(state, ("optimizer", "accumulator"))
    fixed = {name: Placement("weights", *place) for name, place in weights.items()}
    fixed |= {name: Placement("optimizer", *place) for name, place in optimizer.items()}
    placements: dict[tuple[ProgramName, Value], Placement] = {}
    workspaces: dict[tuple[ProgramName, int], Placement] = {}
    live: dict[tuple[ProgramName, Value], tuple[int, int]] = {}
    arena_bytes = 0
    for program in programs:
        blocks = _blocks(program, fixed, workspace_bytes)
        offsets, used = pack(blocks)
        arena_bytes = max(arena_bytes, used)
        for block, offset in zip(blocks, offsets, strict=True):
            place = Placement("arena", offset, block.size_bytes)
            name, key = block.key
            if isinstance(key, int):
                workspaces[name, key] = place
            else:
                placements[name, key] = place
                live[name, key] = (block.first, block.last)
        _place_aliases(program, fixed, placements)
    plan = MemoryPlan(placements, workspaces, live, weights_bytes, optimizer_bytes, arena_bytes)
    _check_limit(plan, limit_bytes)
    return programs, plan


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


def pack(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Offsets (of aligned blocks: aligned) such that blocks alive together do not overlap, and the bytes used."""
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size_bytes, blocks[i].first),
        lambda i: (-blocks[i].size_bytes * (blocks[i].last - blocks[i].first + 1), blocks[i].first),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size_bytes),
        lambda i: (blocks[i].first, -blocks[i].size_bytes),
    )
    bound = peak_bytes(blocks)
    best: tuple[list[int], int] | None = None
    for order in orders:
        found = _first_fit(blocks, sorted(range(len(blocks)), key=order))
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == bound:
            break
    return best if best is not None else ([], 0)


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


def _stored_bytes(size_bytes: int) -> int:
    """Of a value, an empty one too: each has a place of its own."""
    return aligned(max(size_bytes, 1))


def _stack(state: Sequence[StateTensor], roles: tuple[str, ...]) -> tuple[dict[Value, tuple[int, int]], int]:
    """State tensors one after the other: value -> (offset, size)."""
    places: dict[Value, tuple[int, int]] = {}
    offset = 0
    for tensor in state:
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


def _check_limit(plan: MemoryPlan, limit_bytes: int | None) -> None:
    if limit_bytes is not None and plan.needed_bytes > limit_bytes:
        advice = f"{_parts(plan)}: lower the batch, or train fewer or later layers"
        raise DoesNotFit(plan.needed_bytes, limit_bytes, advice)


def check_budget(plan: MemoryPlan, target: Target) -> None:
    """Refuses a step, planned without a limit, that the target's memory does not hold.

    Raises: DoesNotFit, with the ways out.
    """
    budget = target.budget_bytes
    if plan.needed_bytes <= budget:
        return
    advice = (
        f"{_parts(plan)}; {target.title} has {target.memory_bytes:,} bytes, of which "
        f"{target.memory_bytes - budget:,} are left to its system. Set the spec's memory_limit_bytes to {budget:,}, "
        "and forward kernels are repeated rather than their results kept, as far as that helps; lower the batch; train "
        "fewer or later layers; on a device with more memory, set memory_limit_bytes to what is free there"
    )
    raise DoesNotFit(plan.needed_bytes, budget, advice)


def _parts(plan: MemoryPlan) -> str:
    return f"arena {plan.arena_bytes:,}, weights {plan.weights_bytes:,}, optimizer {plan.optimizer_bytes:,}"


# ---------------------------------------------------------------------------------------------------- in-place reuse


def _reuse_in_place(program: Program, state: Sequence[StateTensor]) -> Program:
    """Let a map write over an input that dies in it."""
    aliases = dict(program.aliases)
    program = replace(program, aliases=aliases)
    persistent = {tensor.value for tensor in state} | {program.root(name) for name in program.outputs}
    last_use: dict[Value, int] = {}
    for position, call in enumerate(program.calls):
        for name in call.inputs:
            last_use[program.root(name)] = position
    for position, call in enumerate(program.calls):
        source = _reusable_input(program, call, position, last_use, persistent)
        if source is None:
            continue
        output = call.outputs[0]
        aliases[output] = Alias(source)
        root = program.root(source)
        last_use[root] = max(position, last_use.get(output, position))
    return program


def _reusable_input(
    program: Program, call: KernelCall, position: int, last_use: Mapping[Value, int], persistent: set[Value]
) -> Value | None:
    spec = call.spec
    if not isinstance(spec, MapSpec) or len(call.outputs) != 1 or call.outputs[0] in program.aliases:
        return None
    if call.outputs[0] in persistent or not is_identity(spec.outputs[0], spec.extents):
        return None
    roots = [program.root(name) for name in call.inputs]
    for name, root, access in zip(call.inputs, roots, spec.inputs, strict=True):
        same_size = access.type.size_bytes == spec.outputs[0].type.size_bytes
        dies = last_use.get(root) == position and root not in persistent and root not in program.inputs
        if same_size and dies and roots.count(root) == 1 and is_identity(access, spec.extents):
            return name
    return None
