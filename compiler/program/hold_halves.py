"""Holds what lies between kernels in sixteen bits: activations, and the gradients of activations.

Rewrites: types of values, and the operands of the calls that read and write them. Requires: fused calls in graph
order. Ensures: the same calls, each still computing in f32. What a value is held in is decided over all its kernels:
parameters and their gradients, optimizer state, inputs, outputs, labels, statistics, and what an update reads stay as
they are, and so does whatever is made from these alone. Why: half the memory, and half the traffic to it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.graph import TensorType
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.kernels.spec import MapSpec
from compiler.program.aliases import Alias
from compiler.program.halves import holding, may_be_half
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import PassResult
from compiler.values import Value


def hold_halves(program: Program, *, dtype: DType) -> PassResult[Program]:
    """The program with activations held in `dtype`, one of sixteen bits."""
    owners = _half_owners(program)
    if not owners:
        return PassResult(program, modified=False)
    scale = ELEMENT_TYPES["f32"].item_bytes // ELEMENT_TYPES[dtype].item_bytes
    types = dict(program.types)
    for value, tensor in program.types.items():
        if program.root(value) in owners:
            types[value] = TensorType(dtype, tensor.shape)
    aliases = {
        value: Alias(alias.value, alias.offset_bytes // scale) if program.root(value) in owners else alias
        for value, alias in program.aliases.items()
    }
    calls = tuple(_held_call(program, call, owners, dtype) for call in program.calls)
    return PassResult(replace(program, calls=calls, types=types, aliases=aliases), modified=True)


def _half_owners(program: Program) -> frozenset[Value]:
    """The owners of storage that is held in half."""
    owners = frozenset(_able(program))
    while True:
        remaining = _made_of_activations(program, owners)
        if remaining == owners:
            return owners
        owners = remaining


def _able(program: Program) -> set[Value]:
    """The owners of storage in which every kernel could do with half, and that nobody else looks at."""
    able = {program.root(value) for call in program.calls for value in call.outputs}
    fixed = (*program.inputs, *program.outputs, *program.updates, *program.state)
    able -= {program.root(value) for value in fixed}
    scale = 2 * ALIGNMENT_BYTES
    able -= {program.root(value) for value, alias in program.aliases.items() if alias.offset_bytes % scale}
    able -= {program.root(value) for value, tensor in program.types.items() if tensor.dtype != "f32"}
    for call in program.calls:
        operands = (*call.inputs, *call.outputs)
        may = may_be_half(call.spec) if call.phase != "update" else (False,) * len(operands)
        able -= {program.root(value) for value, may_hold in zip(operands, may, strict=True) if not may_hold}
    return able


def _made_of_activations(program: Program, able: frozenset[Value]) -> frozenset[Value]:
    """Returns those that only kernels make which read an activation, or multiply: an element-wise function of
    parameters or statistics is none.
    """
    activations = set(able) | {program.root(value) for value in program.inputs}
    makers: dict[Value, list[KernelCall]] = defaultdict(list)
    for call in program.calls:
        for value in call.outputs:
            makers[program.root(value)].append(call)
    return frozenset(
        root
        for root in able
        if all(
            not isinstance(call.spec, MapSpec) or any(program.root(value) in activations for value in call.inputs)
            for call in makers[root]
        )
    )


def _held_call(program: Program, call: KernelCall, owners: frozenset[Value], dtype: DType) -> KernelCall:
    operands = (*call.inputs, *call.outputs)
    chosen = tuple(dtype if program.root(value) in owners else None for value in operands)
    if not any(chosen):
        return call

    def saved(values: tuple[Value, ...]) -> int:
        return sum(program.types[value].size_bytes // 2 for value in values if program.root(value) in owners)

    return replace(
        call,
        spec=holding(call.spec, chosen),
        bytes_read=max(call.bytes_read - saved(call.inputs), 0),
        bytes_written=max(call.bytes_written - saved(call.outputs), 0),
    )
