"""Matrix products and dense convolutions on a grid, against NumPy float64: tails, parts, epilogues, updates."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as crossed
from typing import Any, cast

import numpy as np
import pytest

from compiler.codegen.grid.contraction.operand import joined
from compiler.codegen.grid.contraction.plan import Plan, can_update, plan, workspace_bytes
from compiler.codegen.grid.contraction.product import phases, product_of, sums_of
from compiler.errors import BuildError
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.targets import GridTarget, load
from tests.compiler.codegen import test_conv, test_grouped_conv, test_matmul
from tests.compiler.codegen.contractions import RELU6, Kind, conv, distance, expected, random_inputs
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.reference import identity, picked
from tests.compiler.codegen.test_matmul_updates import RULES, Step, operands, product, wanted
from tests.kernel_harness.launch import build_object, run_kernel
from tests.sample import sample, thinned

TARGET = cast(GridTarget, load(OPENCL))
KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")


def check(spec: MatmulSpec | ConvSpec, tolerance: float = 6e-7) -> None:
    inputs = random_inputs(spec)
    got, *sums = run_kernel(spec, inputs, target=OPENCL)
    assert distance(got, expected(spec, inputs)) <= tolerance
    for one in sums:
        wide = inputs[1].astype(np.float64)
        rows = wide.reshape(-1, one.size) if not getattr(spec, "b_transposed", False) else wide.reshape(one.size, -1).T
        assert distance(one, rows.sum(axis=0)) <= tolerance


def planned(spec: MatmulSpec | ConvSpec) -> Plan:
    return plan(product_of(spec), TARGET)


MATMULS = {
    "one sum": MatmulSpec(1, 1, 1, 1, dtype="f32"),
    "a vector times a matrix": MatmulSpec(1, 1, 200, 333, dtype="f32"),
    "a vector times rows": MatmulSpec(1, 1, 70, 333, b_transposed=True, dtype="f32"),
    "a matrix times a vector": MatmulSpec(1, 150, 1, 70, dtype="f32"),
    "outer": MatmulSpec(1, 33, 70, 1, dtype="f32"),
    "eight rows": MatmulSpec(1, 8, 130, 300, b_transposed=True, dtype="f32"),
    "whole tiles": MatmulSpec(1, 256, 256, 64, dtype="f32"),
    "largest tiles": MatmulSpec(1, 520, 530, 150, dtype="f32"),
    "tails, both transposed": MatmulSpec(1, 37, 45, 67, True, True, dtype="f32"),
    "in blocks": MatmulSpec(1, 300, 260, 301, a_transposed=True, dtype="f32"),
    "in parts": MatmulSpec(1, 30, 70, 2039, a_transposed=True, dtype="f32"),
    "one sum in parts": MatmulSpec(1, 1, 1, 20011, dtype="f32"),
    "batch": MatmulSpec(6, 33, 47, 64, dtype="f32"),
    "batch in parts": MatmulSpec(3, 9, 17, 1000, b_transposed=True, dtype="f32"),
    "batch over a shared b": MatmulSpec(5, 21, 64, 80, b_batched=False, dtype="f32"),
    "batch over a shared a": MatmulSpec(5, 21, 64, 80, a_batched=False, dtype="f32"),
    "batch, a transposed": MatmulSpec(5, 21, 64, 80, a_transposed=True, b_batched=False, dtype="f32"),
    "batch of one product": MatmulSpec(3, 20, 30, 40, a_batched=False, b_batched=False, dtype="f32"),
}


@pytest.mark.parametrize("name", thinned(MATMULS, 6))
def test_products(name: str) -> None:
    check(MATMULS[name])


ORDINARY = ("stem", "strided, one-sided pads", "stride above kernel", "dilated and strided")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", thinned(ORDINARY, 2))
def test_convolutions(kind: Kind, case: str) -> None:
    check(conv(kind, *test_conv.CASES[case]))


CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "stride and dilation with a common divisor": ((2, 13, 15, 5), 7, (3, 2), (2, 4), (2, 1, 2, 3), (2, 6)),
    "1x1 strided": ((2, 9, 8, 20), 24, (1, 1), (2, 3), (0, 0, 0, 0)),
    "channels of whole tiles": ((1, 9, 9, 32), 48, (3, 3), (1, 1), (1, 1, 1, 1)),
    "nothing but pads under a tap": ((1, 2, 2, 3), 4, (3, 3), (1, 1), (4, 4, 4, 4), (3, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", thinned(CONVOLUTIONS, 2))
def test_odd_convolutions(kind: Kind, case: str) -> None:
    check(conv(kind, *CONVOLUTIONS[case]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", sample(["narrow, uneven", "strided"], {"narrow, uneven"}))
def test_groups(kind: Kind, case: str) -> None:
    check(conv(kind, *test_grouped_conv.CASES[case]))


def test_every_way_is_reached() -> None:
    plans = {name: planned(spec) for name, spec in MATMULS.items()}
    assert {name for name, found in plans.items() if found.parts > 1} >= {"in parts", "one sum in parts"}
    assert plans["in blocks"].parts == 1
    assert plans["in blocks"].blocks > 1
    assert (plans["largest tiles"].tile.m, plans["largest tiles"].tile.n) == (64, 64)
    assert plans["batch in parts"].parts > 1
    assert plans["whole tiles"].parts == 1


@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 30, 70, 2039, a_transposed=True, sums=True, dtype="f32"),
        MatmulSpec(1, 3, 5, 7, a_transposed=True, b_transposed=True, sums=True, dtype="f32"),
        replace(conv("weight_grad", (2, 13, 12, 6), 10, (3, 3), (2, 1), (1, 1, 1, 1)), sums=True),
        replace(conv("weight_grad", (4, 30, 30, 6), 10, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 2), sums=True),
    ],
)
def test_sums(spec: MatmulSpec | ConvSpec) -> None:
    """The epilogue is not theirs."""
    check(replace(spec, epilogue=RELU6), tolerance=3e-6)


def test_sums_are_split_too() -> None:
    spec = MatmulSpec(1, 64, 64, 20000, a_transposed=True, sums=True, dtype="f32")
    sums = sums_of(spec)
    parts = plan(sums, TARGET).parts
    assert parts > 1
    assert workspace_bytes(spec, TARGET, 1) >= 4 * parts * sums.sums
    check(spec, tolerance=2e-6)


@pytest.mark.parametrize(("name", "change"), thinned(test_matmul.EPILOGUE_CASES, 2))
@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 20, 44, 2100, a_transposed=True, dtype="f32"),
        MatmulSpec(3, 18, 21, 16, b_batched=False, dtype="f32"),
    ],
)
def test_epilogues(name: str, change: object, spec: MatmulSpec) -> None:
    check(change(spec), tolerance=3e-6)  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", sample([1, 2], {"2"}))
def test_epilogues_of_convolutions(kind: Kind, groups: int) -> None:
    spec = conv(kind, (2, 13, 12, 20), 44, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), groups)
    shape = product_of(spec).extents
    inputs = (identity(*shape), picked((shape[3],), 3), picked((shape[1], shape[2]), 1, 2))
    expr = Binary("add", Binary("mul", Binary("add", RELU6, Ref(1)), Ref(2)), Ref(3))
    check(replace(spec, epilogue=expr, epilogue_inputs=inputs), tolerance=3e-6)


@pytest.mark.parametrize(("change", "step"), RULES, ids=["momentum", "adam"])
@pytest.mark.parametrize("shape", sample([(37, 150, 40), (24, 40, 2100), (5, 600, 30)], {"(24, 40, 2100)"}))
def test_updates_in_place(shape: tuple[int, int, int], change: object, step: Step) -> None:
    """Weight and state share storage with the outputs, as in a training step; also where sums are of parts."""
    spec = change(product(*shape))  # type: ignore[operator]
    assert (planned(spec).parts > 1) == (shape[2] > 1000)
    assert can_update(product(*shape), TARGET)
    given = operands(spec)
    got = run_in_place(spec, given, range(2, 3 + len(spec.extra_outputs)))
    for number, (one, want) in enumerate(zip(got, wanted(spec, given, step), strict=True)):
        assert distance(one[0], want) <= 3e-6, f"output {number}"


@pytest.mark.parametrize("image", [(2, 9, 9, 13), (2, 40, 40, 4)])
def test_weights_of_a_convolution_in_place(image: tuple[int, int, int, int]) -> None:
    spec = conv("weight_grad", image, 21, (3, 3), (1, 1), (1, 1, 1, 1))
    spec = replace(spec, epilogue=Binary("sub", Ref(1), Ref(0)), epilogue_inputs=(identity(*spec.weight),))
    inputs = random_inputs(spec)
    (got,) = run_in_place(spec, inputs, [2])
    assert distance(got, expected(spec, inputs)) <= 6e-7


@pytest.mark.parametrize("transposed", list(crossed([False, True], [False, True])))
def test_what_is_no_number_stays_in_its_row_and_column(transposed: tuple[bool, bool]) -> None:
    """What tiles have beyond the operands touches no sum."""
    m, n, k = 67, 35, 21
    spec = MatmulSpec(1, m, n, k, *transposed, dtype="f32")
    a, b = random_inputs(spec)
    a[0][(-1, m - 1) if transposed[0] else (m - 1, -1)] = np.nan
    b[0][(n - 1, -1) if transposed[1] else (-1, n - 1)] = np.inf
    (got,) = run_kernel(spec, [a, b], target=OPENCL)
    assert np.isfinite(got[0, : m - 1, : n - 1]).all()
    assert not np.isfinite(got[0, m - 1]).any()
    assert not np.isfinite(got[0, :, n - 1]).any()


@pytest.mark.parametrize(("m", "reads_on"), [(64, False), (65, True)])
def test_no_operand_is_read_beyond_its_end(m: int, reads_on: bool) -> None:
    """Which no result shows: what a tile has beyond an operand's rows is its last row again."""
    text = build_object(MatmulSpec(1, m, 64, 64, dtype="f32"), TARGET).artefacts[0].content.decode()
    assert (f", (int){m - 1})" in text) == reads_on


@pytest.mark.parametrize("spec", [MatmulSpec(1, 260, 280, 4000, dtype="f32"), MatmulSpec(1, 1, 2, 50000, dtype="f32")])
def test_long_sums_are_sums_of_short_ones(spec: MatmulSpec) -> None:
    inputs = [np.abs(array) for array in random_inputs(spec)]
    (got,) = run_kernel(spec, inputs, target=OPENCL)
    assert distance(got, expected(spec, inputs)) <= 5e-7


@pytest.mark.parametrize("items", [64, 128, 256])
@pytest.mark.parametrize("shared_bytes", [4096, 8192, 32768])
def test_tiles_fit_the_device(items: int, shared_bytes: int) -> None:
    small = replace(TARGET, items=items, shared_bytes=shared_bytes)
    for m, n in crossed([1, 5, 17, 1000], repeat=2):
        tile = plan(product_of(MatmulSpec(1, m, n, 100, dtype="f32")), small).tile
        assert 64 <= tile.items <= items
        assert 4 * tile.elements <= shared_bytes
        assert tile.k * tile.m % tile.items == tile.k * tile.n % tile.items == 0


@pytest.mark.parametrize(("kernel", "stride", "dilation", "pad"), list(crossed([1, 3], [1, 2, 4], [1, 2, 6], [0, 3])))
def test_phases_reach_every_pixel_once_and_all_its_taps(kernel: int, stride: int, dilation: int, pad: int) -> None:
    extent = 11
    found = phases(extent, kernel, stride, dilation, pad)
    pixels, pairs = [], set()
    for tap, between, i in crossed(range(found.taps), range(found.between), range(found.positions)):
        pixel = dilation * tap + between + stride * (i + found.first) - pad
        pixels.append(pixel)
        for step in range(found.steps if between == 0 else 0):
            output = i + found.first - dilation // found.between * step
            pairs.add((pixel, tap + found.taps * step, output))
    inside = [pixel for pixel in pixels if 0 <= pixel < extent]
    assert sorted(inside) == list(range(extent))
    wanted = {
        (output * stride + tap * dilation - pad, tap, output) for tap in range(kernel) for output in range(-20, 40)
    }
    assert (
        {one for one in wanted if 0 <= one[0] < extent}
        <= pairs
        <= wanted | {one for one in pairs if one[1] >= kernel or not 0 <= one[0] < extent}
    )


def test_axes_are_joined_where_all_forms_run_evenly() -> None:
    assert joined((2, 3, 4), [(12, 4, 1)]).extents == (24,)
    assert joined((2, 3, 4), [(12, 4, 1), (0, 1, 0)]).extents == (2, 3, 4)
    assert joined((2, 3, 4), [(12, 4, 1), (1, 0, 0)]).extents == (2, 12)
    assert joined((2, 1, 4), [(8, 99, 2)]).forms == ((2,),)
    assert joined((1, 1), [(5, 7)]).forms == ((),)


@pytest.mark.parametrize("products", ["bf16", "f16", "i8", "tf32"])
def test_products_of_other_types(products: Any) -> None:
    with pytest.raises(BuildError, match=f"MatmulSpec multiplies in {products}, which {TARGET.name} does not"):
        build_object(MatmulSpec(1, 8, 8, 8, dtype="f32", products=products), TARGET)


def test_only_the_gradient_of_a_matrix_becomes_its_update() -> None:
    assert not can_update(MatmulSpec(1, 8, 8, 8, dtype="f32"), TARGET)
    assert not can_update(conv("weight_grad", (1, 4, 4, 2), 3, (3, 3), (1, 1), (1, 1, 1, 1)), TARGET)
