"""The operands of a kernel that may lie in memory as sixteen-bit reals, and the kernel that takes them so.

A kernel computes in f32 all the same. What stays f32 is what is added up in memory, what is summed over many elements,
and statistics of rows; whether a *value* is held in half is decided over all its kernels (`compiler.placement.halves`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compiler.element_types import DType
from compiler.graph import TensorType
from compiler.kernels.access import Access
from compiler.kernels.movement import ElementsSpec, ResampleSpec
from compiler.kernels.spec import (
    AttentionSpec,
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    NormGradSpec,
    PoolSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.program.operands import OperandTypes, operand_types

Held = tuple[DType | None, ...]
"""The type in which each operand lies (inputs, then outputs); None: its own."""


def may_be_half(spec: KernelSpec) -> tuple[bool, ...]:
    """Returns for each operand, inputs before outputs, whether it may be held in half."""
    types = operand_types(spec)
    count = len(types.outputs)
    inputs, outputs = [True] * len(types.inputs), [True] * count
    match spec:
        case MapSpec():
            pass
        case RowSpec():
            outputs = [any(axis == 1 for at in access.index for axis, _ in at.terms) for access in spec.outputs]
        case MatmulSpec():
            outputs = [_whole(spec, number) for number in range(count)]
        case ConvSpec() | DepthwiseSpec():
            outputs = [number == 0 and spec.kind != "weight_grad" for number in range(count)]
        case PoolSpec():
            outputs = [spec.kind not in ("max_grad", "average_grad")] * count
        case GatherSpec() | ElementsSpec():
            outputs = [spec.kind == "gather"] * count
        case ResampleSpec():
            outputs = [spec.kind == "forward"]
        case AttentionSpec(kind="forward"):
            outputs = [True, False]
        case AttentionSpec():
            inputs[4] = False  # statistics of rows
            outputs = [number == 0 and spec.wanted[0] for number in range(count)]  # the others are added to
        case NormGradSpec():
            outputs = [number == 0 and spec.wanted[0] for number in range(count)]
        case ReduceSpec():
            outputs = [False]
        case _:
            return (False,) * (len(inputs) + count)
    allowed, tensors = (*inputs, *outputs), types.inputs + types.outputs
    return tuple(can_be_half and tensor.dtype == "f32" for can_be_half, tensor in zip(allowed, tensors, strict=True))


def _whole(spec: MatmulSpec, number: int) -> bool:
    """An output of a product that is no sum of columns, and no gradient of a weight or its update."""
    return number == 0 and not spec.extra_outputs and not spec.sums


def holding(spec: KernelSpec, types_held: Held) -> KernelSpec:
    """The kernel with operands held in `types_held`."""
    if not any(types_held):
        return spec
    types = operand_types(spec)
    count = len(types.inputs)
    if isinstance(spec, MapSpec | RowSpec):
        return replace(
            spec, inputs=_accesses(spec.inputs, types_held[:count]), outputs=_accesses(spec.outputs, types_held[count:])
        )
    if isinstance(spec, ReduceSpec):
        main_count = len(spec.inputs)
        epilogue_inputs = _accesses(spec.epilogue_inputs, types_held[main_count:count])
        return replace(spec, inputs=_accesses(spec.inputs, types_held[:main_count]), epilogue_inputs=epilogue_inputs)
    return _of_a_family(spec, types_held, types)


def _of_a_family(spec: Any, types_held: Held, types: OperandTypes) -> KernelSpec:
    """Holds a kernel of a family whose operands have an order of their own, with epilogue inputs behind them."""
    epilogue_inputs: tuple[Access, ...] = getattr(spec, "epilogue_inputs", ())
    count = len(types.inputs)
    main_count = count - len(epilogue_inputs)
    tensors = (*types.inputs[:main_count], *types.outputs)
    stored = tuple(
        held_type or tensor.dtype
        for held_type, tensor in zip((*types_held[:main_count], *types_held[count:]), tensors, strict=True)
    )
    more = {"epilogue_inputs": _accesses(epilogue_inputs, types_held[main_count:count])} if epilogue_inputs else {}
    changed: KernelSpec = replace(spec, stored=stored, **more)
    return changed


def _accesses(accesses: tuple[Access, ...], types_held: Held) -> tuple[Access, ...]:
    return tuple(
        access if dtype is None else replace(access, type=TensorType(dtype, access.type.shape))
        for access, dtype in zip(accesses, types_held, strict=True)
    )
