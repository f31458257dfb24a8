"""Which operands of a kernel may lie in memory as sixteen-bit reals, and the kernel that takes them so.

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
"""For each operand (inputs, then outputs) the type in which it lies, None: as it does."""


def may_be_half(spec: KernelSpec) -> tuple[bool, ...]:
    """For each operand, inputs before outputs, whether it may be held in half."""
    types = operand_types(spec)
    count = len(types.outputs)
    inputs, outputs = [True] * len(types.inputs), [True] * count
    match spec:
        case MapSpec():
            pass
        case RowSpec():
            outputs = [any(axis == 1 for at in one.index for axis, _ in at.terms) for one in spec.outputs]
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
    return tuple(one and tensor.dtype == "f32" for one, tensor in zip(allowed, tensors, strict=True))


def _whole(spec: MatmulSpec, number: int) -> bool:
    """An output of a product that is no sum of columns, and no gradient of a weight or its update."""
    return number == 0 and not spec.extra_outputs and not spec.sums


def holding(spec: KernelSpec, held: Held) -> KernelSpec:
    """The kernel with operands held as `held` says."""
    if not any(held):
        return spec
    types = operand_types(spec)
    count = len(types.inputs)
    if isinstance(spec, MapSpec | RowSpec):
        return replace(spec, inputs=_accesses(spec.inputs, held[:count]), outputs=_accesses(spec.outputs, held[count:]))
    if isinstance(spec, ReduceSpec):
        own = len(spec.inputs)
        beside = _accesses(spec.epilogue_inputs, held[own:count])
        return replace(spec, inputs=_accesses(spec.inputs, held[:own]), epilogue_inputs=beside)
    return _of_a_family(spec, held, types)


def _of_a_family(spec: Any, held: Held, types: OperandTypes) -> KernelSpec:
    """Of a family whose operands have an order of their own, and epilogue inputs behind them."""
    beside: tuple[Access, ...] = getattr(spec, "epilogue_inputs", ())
    count = len(types.inputs)
    own = count - len(beside)
    tensors = (*types.inputs[:own], *types.outputs)
    stored = tuple(one or tensor.dtype for one, tensor in zip((*held[:own], *held[count:]), tensors, strict=True))
    more = {"epilogue_inputs": _accesses(beside, held[own:count])} if beside else {}
    changed: KernelSpec = replace(spec, stored=stored, **more)
    return changed


def _accesses(accesses: tuple[Access, ...], held: Held) -> tuple[Access, ...]:
    return tuple(
        access if dtype is None else replace(access, type=TensorType(dtype, access.type.shape))
        for access, dtype in zip(accesses, held, strict=True)
    )
