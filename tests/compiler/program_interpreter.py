"""Runs planned programs call by call in NumPy, on arenas of exactly the planned bytes.

Independent of code generation: a spec's meaning comes from `tests.compiler.codegen.reference` and from the operators'
NumPy rules. Every value is poisoned as soon as the plan says it is dead, so a wrong order, a wrong life or a wrong
offset shows as NaN in the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.fusion.epilogues import output_extents
from compiler.graph import Array
from compiler.kernels.access import Access
from compiler.kernels.movement import MovementSpec
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
    RecurrenceSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.ops import OPERATORS
from compiler.program.operands import operand_types
from compiler.program.program import KernelCall, MemoryPlan, Program, StateTensor
from compiler.values import Value
from tests.compiler.codegen import reference
from tests.compiler.codegen.movement_reference import run_movement


class Machine:
    """Memory of one binary: three regions of the planned sizes."""

    def __init__(self, plan: MemoryPlan, state: Sequence[StateTensor], arrays: Mapping[Value, Array]) -> None:
        self.plan = plan
        self.regions = {
            "weights": np.zeros(plan.weights_bytes, np.uint8),
            "optimizer": np.zeros(plan.optimizer_bytes, np.uint8),
            "arena": np.full(plan.arena_bytes, 0xFF, np.uint8),
        }
        self.state = state
        self.arrays = arrays

    def view(self, program: Program, name: Value) -> Array:
        """The value's storage as an array of its type."""
        place, tensor = self.plan.placements[program.name, name], program.types[name]
        raw = self.regions[place.region][place.offset_bytes : place.offset_bytes + tensor.size_bytes]
        return raw.view(ELEMENT_TYPES[tensor.dtype].numpy).reshape(tensor.shape)

    def load_state(self, program: Program) -> None:
        """Parameters and constants as the graph holds them; optimizer state stays zero."""
        for tensor in self.state:
            if tensor.role != "optimizer":
                self.view(program, tensor.value)[...] = self.arrays[tensor.value]

    def run(self, program: Program, feeds: Mapping[Value, Array]) -> dict[Value, Array]:
        """Execute all calls; returns copies of the program's outputs."""
        for name, array in feeds.items():
            if (program.name, name) in self.plan.placements:
                self.view(program, name)[...] = array
        for position, call in enumerate(program.calls):
            self._execute(program, call)
            self._poison(program, position)
        return {name: self.view(program, name).copy() for name in program.outputs}

    def _execute(self, program: Program, call: KernelCall) -> None:
        inputs = [self.view(program, name).copy() for name in call.inputs]
        outputs = [self.view(program, name) for name in call.outputs]
        if isinstance(call.spec, MapSpec):
            initial = [_shaped(o, access) for o, access in zip(outputs, call.spec.outputs, strict=True)]
            results = reference.run_map(call.spec, _operands(call.spec.inputs, inputs), initial)
        else:
            results = run_spec(call.spec, inputs)
        for output, result in zip(outputs, results, strict=True):
            output[...] = np.asarray(result).reshape(output.shape)

    def _poison(self, program: Program, position: int) -> None:
        for (name, value), (_, last) in self.plan.live.items():
            if name == program.name and last == position:
                place = self.plan.placements[name, value]
                self.regions["arena"][place.offset_bytes : place.offset_bytes + place.size_bytes] = 0xFF


def _shaped(array: Array, access: Access) -> Array:
    return array.reshape(access.type.shape)


def _operands(accesses: Sequence[Access], arrays: Sequence[Array]) -> list[Array]:
    return [_shaped(array, access) for access, array in zip(accesses, arrays, strict=True)]


def run_spec(spec: KernelSpec, inputs: Sequence[Array]) -> list[Array]:
    """Outputs of a spec, in float64."""
    if isinstance(spec, RowSpec):
        return reference.run_row(spec, _operands(spec.inputs, inputs))
    if isinstance(spec, ReduceSpec):
        accesses = (*spec.inputs, *spec.epilogue_inputs)
        return [reference.run_reduce(spec, _operands(accesses, inputs))]
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in inputs]
    if isinstance(spec, GatherSpec):
        return _gather(spec, wide)
    if isinstance(spec, MovementSpec):
        return run_movement(spec, wide)
    if isinstance(spec, AttentionSpec):
        return _attention(spec, wide)
    if isinstance(spec, RecurrenceSpec):
        return _recurrence(spec, wide)
    if isinstance(spec, NormGradSpec):
        return _norm_grad(spec, wide)
    assert not isinstance(spec, MapSpec), "a map is a reduction over nothing"
    count = len(wide) - len(spec.epilogue_inputs)
    extents = output_extents(spec)
    assert extents is not None
    first, *further = _contraction(spec, wide[:count])
    base = first.reshape(extents)
    extra = [
        reference.reading(access, _shaped(array, access), extents)
        for access, array in zip(spec.epilogue_inputs, wide[count:], strict=True)
    ]
    sums = [wide[1].reshape(-1, extents[-1]).sum(axis=0)] if getattr(spec, "sums", False) else []
    exprs = (spec.epilogue, *getattr(spec, "extra_outputs", ()))
    return [*(reference.value(expr, [base, *extra], extents=extents) for expr in exprs), *sums, *further]


def _contraction(spec: MatmulSpec | ConvSpec | DepthwiseSpec | PoolSpec, inputs: Sequence[Array]) -> list[Array]:
    if isinstance(spec, MatmulSpec):
        return [_matmul(spec, *inputs)]
    x, y = (spec.n, spec.h, spec.w, spec.c), (spec.n, spec.oh, spec.ow, getattr(spec, "k", spec.c))
    if isinstance(spec, PoolSpec):
        return _pool(spec, x, inputs)
    w = spec.weight if isinstance(spec, ConvSpec) else (*spec.kernel, spec.c)
    attrs: dict[str, Any] = {"strides": spec.strides, "pads": spec.pads, "dilations": spec.dilations}
    shapes = {"forward": (x, w), "input_grad": (y, w), "weight_grad": (x, y)}[spec.kind]
    if spec.kind != "forward":
        attrs["shape"] = x if spec.kind == "input_grad" else w
    family = "conv2d" if isinstance(spec, ConvSpec) else "depthwise"
    name = (
        {"conv2d": "conv2d", "depthwise": "depthwise_conv2d"}[family]
        if spec.kind == "forward"
        else f"{family}_{spec.kind}"
    )
    operands = [array.reshape(shape) for array, shape in zip(inputs, shapes, strict=True)]
    return list(OPERATORS[name].evaluate(operands, attrs))


_POOLS = {
    "max": "max_pool",
    "average": "average_pool",
    "max_grad": "max_pool_grad",
    "average_grad": "average_pool_grad",
    "max_places": "max_pool_places",
    "places_grad": "max_places_grad",
}


def _pool(spec: PoolSpec, x: tuple[int, ...], inputs: Sequence[Array]) -> list[Array]:
    attrs: dict[str, Any] = {"kernel": spec.kernel, "strides": spec.strides, "pads": spec.pads}
    if spec.kind.startswith("average"):
        attrs["count_pads"] = spec.count_pads
    if spec.kind in ("average_grad", "places_grad"):
        attrs["shape"] = x
    shapes = [tensor.shape for tensor in operand_types(replace(spec, epilogue_inputs=())).inputs]
    operands = [array.reshape(shape) for array, shape in zip(inputs, shapes, strict=True)]
    return list(OPERATORS[_POOLS[spec.kind]].evaluate(operands, attrs))


def _matmul(spec: MatmulSpec, a: Array, b: Array) -> Array:
    a_shape = (spec.k, spec.m) if spec.a_transposed else (spec.m, spec.k)
    b_shape = (spec.n, spec.k) if spec.b_transposed else (spec.k, spec.n)
    left = a.reshape(spec.batch if spec.a_batched else 1, *a_shape)
    right = b.reshape(spec.batch if spec.b_batched else 1, *b_shape)
    left = left.swapaxes(1, 2) if spec.a_transposed else left
    right = right.swapaxes(1, 2) if spec.b_transposed else right
    return np.broadcast_to(left @ right, (spec.batch, spec.m, spec.n))


def _gather(spec: GatherSpec, inputs: Sequence[Array]) -> list[Array]:
    if spec.kind == "gather":
        table, index = inputs
        return [np.take(table.reshape(spec.outer, spec.rows, spec.inner), index.reshape(-1), axis=1)]
    index, d_y, *state = inputs
    result = np.zeros((spec.rows, spec.outer, spec.inner))
    np.add.at(result, index.reshape(-1), d_y.reshape(spec.outer, spec.count, spec.inner).transpose(1, 0, 2))
    gradient = result.transpose(1, 0, 2)
    if not state:
        return [gradient]
    extents = (spec.rows, spec.inner)
    extra = [
        reference.reading(access, _shaped(array, access), extents)
        for access, array in zip(spec.epilogue_inputs, state, strict=True)
    ]
    exprs = (spec.epilogue, *spec.extra_outputs)
    return [reference.value(expr, [gradient[0], *extra], extents=extents) for expr in exprs]


def _attention(spec: AttentionSpec, inputs: Sequence[Array]) -> list[Array]:
    attrs: dict[str, Any] = {"scale": spec.scale, "causal": spec.causal}
    if spec.kind == "backward":
        attrs["wanted"] = spec.wanted
    operands = [array.reshape(t.shape) for array, t in zip(inputs, operand_types(spec).inputs, strict=True)]
    name = "attention" if spec.kind == "forward" else "attention_grad"
    return list(OPERATORS[name].evaluate(operands, attrs))


def _recurrence(spec: RecurrenceSpec, inputs: Sequence[Array]) -> list[Array]:
    operands = [array.reshape(t.shape) for array, t in zip(inputs, operand_types(spec).inputs, strict=True)]
    name = "recurrence" if spec.kind == "forward" else "recurrence_grad"
    return list(OPERATORS[name].evaluate(operands, {"cell": spec.cell, "reverse": spec.reverse}))


def _norm_grad(spec: NormGradSpec, inputs: Sequence[Array]) -> list[Array]:
    attrs: dict[str, Any] = {"epsilon": spec.epsilon, "centred": spec.centred, "wanted": spec.wanted}
    extents = (spec.rows, spec.width)
    x, weight, d_y = inputs[0].reshape(extents), inputs[1].reshape(-1), inputs[2].reshape(extents)
    results = list(OPERATORS["layer_norm_grad"].evaluate([x, weight, d_y], attrs))
    if spec.wanted[0]:
        extra = [
            reference.reading(access, _shaped(array, access), extents)
            for access, array in zip(spec.epilogue_inputs, inputs[3:], strict=True)
        ]
        results[0] = reference.value(spec.epilogue, [results[0], *extra], extents=extents)
    return results
