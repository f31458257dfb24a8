"""Plans every byte: state at fixed places, temporaries of all programs in one static arena.

A value lives from the call that makes it to the last call that reads it; values whose lives overlap get disjoint
ranges. A result may be written over an operand that dies in its call (`compiler.program.in_place`).
What packing (`compiler.program.packing`) makes of it is told beside the bound that the order of the calls sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler.kernels.alignment import aligned
from compiler.program.aliases import storage_of
from compiler.program.in_place import reuse_in_place
from compiler.program.packing import Block, pack
from compiler.program.program import KernelCall, MemoryPlan, Placement, Program, ProgramName, StateTensor
from compiler.values import Value


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
