"""Every operator record's lowering, compiled and run on its examples, against the record's `evaluate` in float64."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.ops import OPERATORS
from compiler.ops.record import Example, Operator, View
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.compiler.ops.draw import draw_inputs
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target


def kernel_of(record: Operator, example: Example) -> KernelSpec | None:
    """The kernel of an example; None where the operator only renames storage."""
    outputs = record.infer(example.inputs, example.attrs)
    spec = record.lower(example.inputs, outputs, example.attrs)
    return None if isinstance(spec, View) else spec


CASES = [
    (record, example) for record in OPERATORS.values() for example in record.examples if kernel_of(record, example)
]
"""Where the operator does more than rename storage."""


def run_in_place(spec: KernelSpec, record: Operator, inputs: list[Array]) -> list[Array]:
    """The outputs, with those that take over an input's storage doing so."""
    kernel = Kernel(spec, load(native_target()), 2)
    types = operand_types(spec)
    storages = kernel.storages()
    for storage, tensor, array in zip(storages, types.inputs, inputs, strict=False):
        storage.view(tensor)[...] = array.reshape(tensor.shape)
    first = len(types.inputs)
    for output, source in record.in_place.items():
        if output < len(types.outputs):  # an optimizer without state has fewer outputs
            storages[first + output] = storages[source]
    kernel.call(storages)
    return [
        storage.view(tensor).copy()
        for storage, tensor in zip(storages[first : first + len(types.outputs)], types.outputs, strict=True)
    ]


@pytest.mark.parametrize(("record", "example"), CASES, ids=[f"{r.name}-{n}" for n, (r, _) in enumerate(CASES)])
def test_the_kernel_computes_what_the_operator_means(record: Operator, example: Example) -> None:
    spec = kernel_of(record, example)
    assert spec is not None
    inputs = draw_inputs(example)
    wide = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    wanted = record.evaluate(wide, example.attrs)
    narrow = [array.astype(np.float32) if array.dtype == np.float64 else array for array in inputs]
    for got, want in zip(run_in_place(spec, record, narrow), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=3e-5, atol=3e-5)
