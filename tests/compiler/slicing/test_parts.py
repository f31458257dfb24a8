"""Kernels along an axis, part by part of the batch: the parts' results one behind the other are the whole's."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import Array
from compiler.kernels.movement import ElementsSpec, MovementSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.program.operands import operand_types
from compiler.slicing.cut import part_of
from tests.compiler.codegen.movement_reference import run_movement

PARTS = 3
SPECS: dict[str, MovementSpec] = {
    "gather": ElementsSpec("gather", 6, 5, 4, 7, dtype="f32"),
    "gather by sample": ElementsSpec("gather", 6, 5, 4, 7, dtype="f32", per_inner=False),
    "gather alike": ElementsSpec("gather", 6, 5, 4, 7, dtype="f32", per_outer=False),
    "add": ElementsSpec("add", 6, 5, 4, 7, dtype="f32"),
    "add alike": ElementsSpec("add", 6, 5, 4, 7, dtype="f32", per_outer=False),
    "max": ElementsSpec("max", 6, 5, 4, 7, dtype="f32"),
    "last": ElementsSpec("last", 6, 5, 4, 7, dtype="f32"),
    "resample": ResampleSpec("forward", 6, 5, 4, 7, 2, dtype="f32"),
    "resample's gradient": ResampleSpec("gradient", 6, 5, 4, 7, 2, dtype="f32"),
    "running sum": ScanSpec("sum", 6, 5, 4, dtype="f32", reverse=True),
    "recurrence": ScanSpec("linear", 6, 5, 4, dtype="f32"),
    "select": SelectSpec(6, 5, 4, 2, dtype="f32"),
}


def operands(spec: MovementSpec) -> list[Array]:
    generator = np.random.default_rng(3)
    return [
        generator.integers(0, 5, tensor.shape)
        if tensor.dtype in ("i64", "i32")
        else generator.normal(size=tensor.shape)
        for tensor in operand_types(spec).inputs
    ]


@pytest.mark.parametrize("name", SPECS)
def test_parts_make_the_whole(name: str) -> None:
    spec = SPECS[name]
    part = part_of(spec, PARTS)
    assert part is not None
    assert not part.sums
    given = operands(spec)
    (whole,) = run_movement(spec, given)
    pieces = []
    for number in range(PARTS):
        taken = [
            np.split(array.reshape(-1), PARTS)[number] if cut else array
            for array, cut in zip(given, part.cut, strict=True)
        ]
        shaped = [
            array.reshape(tensor.shape) for array, tensor in zip(taken, operand_types(part.spec).inputs, strict=True)
        ]
        pieces.append(run_movement(part.spec, shaped)[0])  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_an_index_for_all_samples_is_no_batch() -> None:
    assert part_of(ElementsSpec("last", 1, 5, 4, 7, dtype="f32"), PARTS) is None
