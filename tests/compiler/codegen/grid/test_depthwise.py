"""Depth-wise convolutions on a grid against NumPy float64: columns of an item, phases, parts, epilogues in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from compiler.codegen.grid.depthwise.plan import columns_of, split_of, workspace_bytes
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import GridTarget, load
from tests.compiler.codegen.contractions import RELU6, Kind, depthwise, distance, expected, random_inputs
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.reference import identity, picked
from tests.compiler.codegen.test_depthwise import CASES, KINDS
from tests.kernel_harness.launch import run_kernel
from tests.sample import thinned

TARGET = cast(GridTarget, load(OPENCL))
OWN_CASES: dict[str, tuple[Any, ...]] = {
    **CASES,
    "many columns an item": ((2, 22, 45, 40), (3, 3), (1, 1), (1, 1, 1, 1)),
    "many columns, strided": ((2, 45, 47, 40), (3, 3), (2, 2), (1, 1, 1, 1)),
    "stride above kernel": ((2, 11, 10, 9), (2, 2), (3, 4), (0, 0, 0, 0)),
    "stride and dilation": ((1, 15, 16, 12), (3, 4), (2, 3), (1, 2, 1, 0), (3, 2)),
    "wide kernel": ((1, 6, 20, 5), (2, 19), (1, 1), (0, 9, 1, 9)),
    "many rows, few channels": ((4, 40, 9, 3), (3, 3), (1, 1), (1, 1, 1, 1)),
}


def check(spec: DepthwiseSpec) -> None:
    """With the sums of d_y, of a weight gradient."""
    inputs = random_inputs(spec)
    got, *sums = run_kernel(spec, inputs, target=OPENCL)
    assert distance(got, expected(spec, inputs)) <= 6e-7
    assert len(sums) == spec.sums
    for one in sums:
        assert distance(one, inputs[1].astype(np.float64).sum((0, 1, 2))) <= 6e-7


@pytest.mark.parametrize("case", thinned(OWN_CASES, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: Kind, case: str) -> None:
    check(replace(depthwise(kind, *OWN_CASES[case]), sums=kind == "weight_grad"))


def test_weights_alone() -> None:
    check(depthwise("weight_grad", *CASES["strided"]))


def test_the_cases_are_of_every_sort() -> None:
    """Items of several columns and of one, weight gradients in parts and not."""
    forward, gradients = ([depthwise(kind, *case) for case in OWN_CASES.values()] for kind in KINDS[::2])
    assert {len(columns_of(spec)) for spec in forward} >= {1, 4}
    assert {split_of(spec, TARGET).parts > 1 for spec in gradients} == {True, False}
    assert {split_of(spec, TARGET).down > 1 for spec in gradients} == {True, False}
    for spec in gradients:
        assert bool(workspace_bytes(spec, TARGET, 1)) == (split_of(spec, TARGET).parts > 1)


def test_long_sums() -> None:
    check(replace(depthwise("weight_grad", (4, 112, 112, 8), (3, 3), (2, 2), (1, 1, 1, 1)), sums=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("image", [(2, 13, 12, 20), (1, 5, 4, 7)], ids=str)
def test_epilogues_in_place(kind: Kind, image: tuple[int, int, int, int]) -> None:
    """min(max(sum, 0), 6) a[c] + b[axis 1] + residual, where the residual lies."""
    spec = depthwise(kind, image, (3, 3), (2, 2), (1, 1, 1, 1))
    shape = {
        "forward": (spec.n, spec.oh, spec.ow, spec.c),
        "input_grad": (spec.n, spec.h, spec.w, spec.c),
        "weight_grad": (3, 3, spec.c),
    }[kind]
    added = Binary("add", Ref(2), Ref(3))
    spec = replace(
        spec,
        epilogue=Binary("add", Binary("mul", RELU6, Ref(1)), added),
        epilogue_inputs=(picked((spec.c,), len(shape) - 1), picked((shape[1],), 1), identity(*shape)),
        sums=kind == "weight_grad",
    )
    inputs = random_inputs(spec)
    got, *_ = run_in_place(spec, inputs, [4])
    assert distance(got, expected(spec, inputs)) <= 6e-7
