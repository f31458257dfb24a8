"""Plans every byte: state at fixed places, temporaries of all programs in one static arena.

A value lives from the call that makes it to the last call that reads it; values whose lives overlap get disjoint
ranges. A map may write over an operand that dies in it and is read at the same point.
What packing (`compiler.program.packing`) makes of it is told beside the bound that the order of the calls sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compiler.errors import DoesNotFit
from compiler.kernels.affine import is_identity
from compiler.kernels.alignment import aligned
from compiler.kernels.spec import MapSpec
from compiler.program.aliases import Alias, storage_of
from compiler.program.packing import Block, pack
from compiler.program.program import KernelCall, MemoryPlan, Placement, Program, ProgramName, StateTensor
from compiler.targets import Target
from compiler.values import Value


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
    check_limit(plan, limit_bytes)
    return programs, plan


def _stored_bytes(size_bytes: int) -> int:
    """Of a value, an empty one too: each has a place of its own."""
    return aligned(max(size_bytes, 1))


def _stack(state: Sequence[StateTensor], roles: tuple[str, ...]) -> tuple[dict[Value, tuple[int, int]], int]:
    """State tensors one after the other, what is mapped from a file first: value -> (offset, size)."""
    places: dict[Value, tuple[int, int]] = {}
    offset = 0
    for tensor in sorted(state, key=lambda own: own.mapped_order):
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


def check_limit(plan: MemoryPlan, limit_bytes: int | None) -> None:
    """Refuses a step that needs more than the user's limit. Raises: DoesNotFit."""
    if limit_bytes is not None and plan.needed_bytes > limit_bytes:
        advice = f"{_parts(plan)}: lower the batch, or train fewer or later layers"
        raise DoesNotFit(plan.needed_bytes, limit_bytes, advice, where="spec.memory_limit_bytes")


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
