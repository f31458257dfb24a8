"""Holds frozen weights as the whole numbers that they are (`compiler.step.frozen`): a byte for each.

Rewrites: types of values, and the operands of the calls that read them. Requires: weights of whole numbers from -127 to
127, which nothing writes. Ensures: the same calls with the same results; each widens what it reads to f32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import InternalError
from compiler.graph import TensorType
from compiler.program.aliases import Alias
from compiler.program.halves import Held, holding, may_be_half
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import PassResult
from compiler.values import Value


def hold_integers(program: Program, *, held: Collection[Value]) -> PassResult[Program]:
    """The program with the state tensors `held` as bytes."""
    held_values = {value for value in program.types if program.root(value) in held}
    if not held_values:
        return PassResult(program, modified=False)
    scale = ELEMENT_TYPES["f32"].item_bytes
    types = {
        value: TensorType("i8", tensor.shape) if value in held_values else tensor
        for value, tensor in program.types.items()
    }
    aliases = {
        value: Alias(alias.value, alias.offset_bytes // scale) if value in held_values else alias
        for value, alias in program.aliases.items()
    }
    calls = tuple(_held_call(program, call, held_values) for call in program.calls)
    return PassResult(replace(program, calls=calls, types=types, aliases=aliases), modified=True)


def _held_call(program: Program, call: KernelCall, held_values: Collection[Value]) -> KernelCall:
    operands = (*call.inputs, *call.outputs)
    chosen: Held = tuple("i8" if value in held_values else None for value in operands)
    if not any(chosen):
        return call
    if any(element_type and not may for element_type, may in zip(chosen, may_be_half(call.spec), strict=True)):
        raise InternalError(f"{type(call.spec).__name__} cannot read a frozen weight in bytes", where=call.layer)
    saved = sum(program.types[value].size * 3 for value in call.inputs if value in held_values)
    return replace(call, spec=holding(call.spec, chosen), bytes_read=max(call.bytes_read - saved, 0))
