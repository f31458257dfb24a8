"""Products on tensor cores, by CUDA's text as C++ on this CPU, in two orders: those of rounded factors in float64.

A played warp takes its factors as the PTX ISA says and sums in f32; how a GPU rounds its sums nobody here has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product as crossed
from typing import Any, cast

import numpy as np
import pytest
from tvm import tirx

from compiler.codegen.artefacts import Launch
from compiler.codegen.grid import cuda, tensor_cores
from compiler.codegen.grid.contraction.plan import Plan, plan, workspace_bytes
from compiler.codegen.grid.contraction.product import Factors, product_of, sums_of
from compiler.codegen.grid.contraction.tile import WarpTile
from compiler.codegen.grid.cuda import cuda_text
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.occupancy import occupancy
from compiler.codegen.tir import tir
from compiler.errors import BuildError
from compiler.graph import Array
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import ConvSpec, MatmulSpec, signature
from compiler.program.operands import operand_types
from compiler.targets import GridTarget, load
from tests.compiler.codegen import test_conv, test_grouped_conv, test_matmul
from tests.compiler.codegen.contractions import RELU6, Kind, conv, distance, expected, random_inputs
from tests.compiler.codegen.grid.by_cuda import run_in_place
from tests.compiler.codegen.grid.representative import CONVOLUTIONS, PRODUCTS
from tests.compiler.codegen.grid.test_contraction import CONVOLUTIONS as ODD_CONVOLUTIONS
from tests.compiler.codegen.grid.test_contraction import KINDS, MATMULS, ORDINARY
from tests.compiler.codegen.grid.test_cuda import run_written
from tests.compiler.codegen.reference import identity, picked
from tests.compiler.codegen.test_halves import HALVES, stored
from tests.compiler.codegen.test_matmul_updates import RULES, Step, operands, product, wanted
from tests.kernel_harness.cuda import CudaKernel
from tests.kernel_harness.launch import build_object
from tests.sample import sample, some, thinned

TARGETS = ("jetson-orin-nano/cuda", "x86-64-v3/cuda")
TARGET = cast(GridTarget, load(TARGETS[0]))
Spec = MatmulSpec | ConvSpec
OWN = {
    "both along their steps": MatmulSpec(1, 40, 24, 48, b_transposed=True, dtype="f32"),
    "both across": MatmulSpec(1, 40, 24, 48, a_transposed=True, dtype="f32"),
    "least of all": MatmulSpec(3, 16, 8, 8, dtype="f32"),
    "wide": MatmulSpec(1, 16, 4000, 30, dtype="f32"),
    "tall": MatmulSpec(1, 4000, 16, 30, dtype="f32"),
}
IS_ROUNDED = 1e-5
"""Relative difference that rounding makes at least, and that f32 never does."""


def in_tf32(array: Array) -> Array:
    """To the nearest of ten bits of mantissa, ties away from zero."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def in_half(array: Array, dtype: str) -> Array:
    return array.astype(HALVES[dtype]).astype(np.float32)  # type: ignore[index]


FACTORS: Mapping[Factors, Callable[[Array], Array]] = {
    "tf32": in_tf32,
    "f16": partial(in_half, dtype="f16"),
    "bf16": partial(in_half, dtype="bf16"),
}
"""How each is rounded, by somebody else."""


def rounded(spec: Spec, factors: Factors = "tf32", place: int = 0) -> Spec:
    """`place`: of two factors of sixteen bits, the one that lies so; 2: both."""
    if factors == "tf32":
        return replace(spec, products="tf32")
    count = len(operand_types(spec).outputs)
    held = [factors if place in (number, 2) else "f32" for number in range(2)] + ["f32"] * count
    return replace(spec, products=cast(Any, factors), stored=tuple(held))


def planned(spec: Spec, factors: Factors = "tf32") -> Plan:
    return plan(product_of(rounded(spec, factors)), TARGET)


def check(spec: Spec, tolerance: float = 6e-7, factors: Factors = "tf32", place: int = 0) -> None:
    made, as_factor = rounded(spec, factors, place), FACTORS[factors]
    first, second, *others = inputs = random_inputs(spec)
    if factors in HALVES:
        first, second = (as_factor(a) if place in (i, 2) else a for i, a in enumerate((first, second)))
    given = [
        stored(array, tensor) if tensor.dtype in HALVES else array
        for array, tensor in zip((first, second, *others), operand_types(made).inputs, strict=True)
    ]
    got, *sums = CudaKernel(made, TARGET).run(*given)
    assert distance(got, expected(spec, [as_factor(first), as_factor(second), *others])) <= tolerance
    assert distance(got, expected(spec, inputs)) > IS_ROUNDED
    for one in sums:
        wide = second.astype(np.float64)
        rows = wide.reshape(-1, one.size) if not getattr(spec, "b_transposed", False) else wide.reshape(one.size, -1).T
        assert distance(one, rows.sum(axis=0)) <= tolerance, "they are of what is not rounded"


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("name", thinned([*MATMULS, *OWN], 8))
def test_products(name: str) -> None:
    check((MATMULS | OWN)[name])


@pytest.mark.parametrize("factors", HALVES)
@pytest.mark.parametrize("name", thinned([*MATMULS, *OWN], 6))
def test_products_of_sixteen_bits(name: str, factors: Factors) -> None:
    check((MATMULS | OWN)[name], factors=factors, place=len(name) % 3)


@pytest.mark.parametrize("factors", HALVES)
@pytest.mark.parametrize("place", sample(range(3), {"2"}))
@pytest.mark.parametrize("transposed", list(crossed([False, True], [False, True])))
def test_either_factor_or_both_lie_in_sixteen_bits(transposed: tuple[bool, bool], place: int, factors: Factors) -> None:
    check(MatmulSpec(1, 67, 35, 77, *transposed, dtype="f32"), factors=factors, place=place)


@pytest.mark.parametrize("factors", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", sample(["stem", "dilated and strided"], {"dilated and strided"}))
def test_convolutions_of_sixteen_bits(kind: Kind, case: str, factors: Factors) -> None:
    check(conv(kind, *test_conv.CASES[case]), factors=factors, place=KINDS.index(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", sample(ORDINARY, {"strided, one-sided pads"}))
def test_convolutions(kind: Kind, case: str) -> None:
    check(conv(kind, *test_conv.CASES[case]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", thinned(ODD_CONVOLUTIONS, 2))
def test_odd_convolutions(kind: Kind, case: str) -> None:
    check(conv(kind, *ODD_CONVOLUTIONS[case]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", sample(["narrow, uneven", "strided"], {"strided"}))
def test_groups(kind: Kind, case: str) -> None:
    check(conv(kind, *test_grouped_conv.CASES[case]))


@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec(1, 30, 70, 2039, a_transposed=True, sums=True, dtype="f32"),
        MatmulSpec(1, 33, 25, 27, a_transposed=True, b_transposed=True, sums=True, dtype="f32"),
        replace(conv("weight_grad", (2, 13, 12, 6), 10, (3, 3), (2, 1), (1, 1, 1, 1)), sums=True),
    ],
)
def test_sums_are_not_of_rounded_numbers(spec: Spec) -> None:
    check(replace(spec, epilogue=RELU6), tolerance=3e-6)


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
def test_epilogues_of_convolutions(kind: Kind) -> None:
    spec = conv(kind, (2, 13, 12, 20), 44, (3, 3), (2, 2), (1, 1, 1, 1))
    shape = product_of(spec).extents
    inputs = (identity(*shape), picked((shape[3],), 3), picked((shape[1], shape[2]), 1, 2))
    expr = Binary("add", Binary("mul", Binary("add", RELU6, Ref(1)), Ref(2)), Ref(3))
    check(replace(spec, epilogue=expr, epilogue_inputs=inputs), tolerance=3e-6)


@pytest.mark.parametrize(("change", "step"), RULES, ids=["momentum", "adam"])
@pytest.mark.parametrize("shape", [(37, 150, 40), (24, 40, 2100)])
def test_updates_in_place(shape: tuple[int, int, int], change: object, step: Step) -> None:
    """Weight and state share storage with the outputs; also where sums are of parts."""
    spec: MatmulSpec = replace(change(product(*shape)), products="tf32")  # type: ignore[operator]
    assert (planned(spec).parts > 1) == (shape[2] > 1000)
    given = operands(spec)
    taken = list(range(2, 2 + len(given) - 3))
    got = run_in_place(spec, given, taken)
    factors = [in_tf32(array) for array in given[:2]]
    for one, other in zip(got, wanted(spec, [*factors, *given[2:]], step), strict=True):
        assert distance(one, other) <= 2e-6


@pytest.mark.parametrize("transposed", list(crossed([False, True], [False, True])))
def test_what_is_no_number_stays_in_its_row_and_column(transposed: tuple[bool, bool]) -> None:
    m, n, k = 67, 35, 21
    spec = MatmulSpec(1, m, n, k, *transposed, dtype="f32")
    a, b = random_inputs(spec)
    a[0][(-1, m - 1) if transposed[0] else (m - 1, -1)] = np.nan
    b[0][(n - 1, -1) if transposed[1] else (-1, n - 1)] = np.inf
    (got,) = CudaKernel(rounded(spec), TARGET).run(a, b)
    assert np.isfinite(got[0, : m - 1, : n - 1]).all()
    assert not np.isfinite(got[0, m - 1]).any()
    assert not np.isfinite(got[0, :, n - 1]).any()


def test_factors_are_rounded_to_the_nearest_and_ties_away_from_zero() -> None:
    half, ten = np.float32(2.0**-11), np.float32(2.0**-10)
    below = np.nextafter(1 + half, np.float32(0))
    numbers = np.array([1 + half, below, -1 - half, 1 + ten + half, 3e38, -1e-38, 2.0**-140, 0], np.float32)
    spec = rounded(MatmulSpec(1, 16, 8, 8, dtype="f32"))
    (got,) = CudaKernel(spec, TARGET).run(np.tile(numbers, (1, 16, 1)), np.eye(8, dtype=np.float32)[None])
    np.testing.assert_array_equal(got[0], np.tile(in_tf32(numbers), (16, 1)))
    assert got[0, 0, :4].tolist() == [1 + ten, 1, -1 - ten, 1 + 2 * ten]


def test_long_sums_are_sums_of_short_ones() -> None:
    spec = MatmulSpec(1, 64, 64, 4000, dtype="f32")
    inputs = [in_tf32(np.abs(array)) for array in random_inputs(spec)]
    (got,) = CudaKernel(rounded(spec), TARGET).run(*inputs)
    assert distance(got, expected(spec, inputs)) <= 5e-7


# ------------------------------------------------------------------------------------------------------- tiles and text


def test_every_way_is_reached() -> None:
    plans = {name: planned(spec) for name, spec in (MATMULS | OWN).items()}
    assert {name for name, found in plans.items() if found.parts > 1} >= {"in parts", "batch in parts"}
    assert plans["in blocks"].blocks > 1
    assert {(one.tile.m, one.tile.n) for one in plans.values()} >= {
        (64, 64),
        (64, 32),
        (32, 64),
        (16, 64),
        (64, 16),
        (16, 16),
    }


def test_sums_are_split_by_themselves() -> None:
    spec = rounded(MatmulSpec(1, 64, 64, 20000, a_transposed=True, sums=True, dtype="f32"))
    sums = sums_of(spec)
    parts = plan(sums, TARGET).parts
    assert parts > 1
    assert not isinstance(plan(sums, TARGET).tile, WarpTile)
    assert workspace_bytes(spec, TARGET, 1) >= 4 * parts * sums.sums


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("items", [64, 128, 256])
@pytest.mark.parametrize("shared_bytes", [4096, 8192, 49152])
def test_tiles_fit_the_device(items: int, shared_bytes: int, factors: Factors) -> None:
    small = replace(TARGET, items=items, shared_bytes=shared_bytes)
    for m, n in crossed([1, 5, 17, 40, 1000], repeat=2):
        tile = plan(product_of(rounded(MatmulSpec(1, m, n, 100, dtype="f32"), factors)), small).tile
        assert isinstance(tile, WarpTile)
        assert 64 <= tile.items <= items
        assert tile.items % 32 == tile.own_m % 16 == tile.own_n % 8 == tile.k % (8 * tile.per_word) == 0
        assert tile.items >= max(tile.m, tile.n), "each item has a place on a side that neighbours bring together"
        assert 4 * tile.elements <= shared_bytes
        assert tile.k * tile.m % tile.items == tile.k * tile.n % tile.items == 0


@pytest.mark.parametrize(("width", "pad", "is_turned"), [*((w, 8, False) for w in (16, 32, 64)), (16, 4, True)])
def test_what_a_warp_reads_at_once_is_in_different_banks(width: int, pad: int, is_turned: bool) -> None:
    """4 words of 8 rows or columns; turned, it is the width of the steps."""
    stride = width + pad
    banks = {
        (place * stride + step if is_turned else step * stride + place) % 32 for step in range(4) for place in range(8)
    }
    assert len(banks) == 32


@pytest.mark.parametrize("factors", ["tf32", "bf16"])
@pytest.mark.parametrize("left_out", range(3))
def test_each_barrier_of_a_product_is_missed(left_out: int, factors: Factors, monkeypatch: pytest.MonkeyPatch) -> None:
    """A played warp waits for its own items only."""

    def without_one(emitted: Grid, symbol: str, *, capability: str) -> tuple[str, tuple[Launch, ...]]:
        text, launches = cuda_text(emitted, symbol, capability=capability)
        parts = text.split("__syncthreads();")
        assert len(parts) == 4
        return "__syncthreads();".join(parts[: left_out + 1]) + "__syncthreads();".join(parts[left_out + 1 :]), launches

    monkeypatch.setattr(cuda, "cuda_text", without_one)
    spec, generator = rounded(MatmulSpec(1, 150, 140, 70, dtype="f32"), factors), np.random.default_rng(0)
    kernel = CudaKernel(spec, TARGET)
    given = [generator.normal(size=tensor.shape).astype(np.float32) for tensor in kernel.types.inputs]
    given = [stored(a, t) if t.dtype in HALVES else a for a, t in zip(given, kernel.types.inputs, strict=True)]
    with pytest.raises(AssertionError, match="output 0 depends on the order"):
        kernel.run(*given)


def test_a_product_that_some_items_of_a_warp_do_not_come_by_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(here: Here) -> None:
        sums, one = here.block.local(4), tir.literal(1.0, "float32")
        is_there = tirx.NE(here.item, tir.index(40))
        here.block.when(is_there, lambda inner: tensor_cores.multiply(inner, "tf32", sums, 0, [one] * 4, [one] * 2))

    with pytest.raises(AssertionError, match="wait at a barrier that others do not come by"):
        run_written(monkeypatch, write)


AT_SIZE: dict[str, Spec] = {**PRODUCTS, **CONVOLUTIONS, **OWN}
LEAST_OCCUPANCY = 1 / 6
"""As for other kernels, but for convolutions whose items keep many places: two groups of a Jetson's SM."""


WORDS = {
    "tf32": ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "cvt.rna.tf32.f32"),
    "f16": ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "cvt.rn.f16.f32"),
    "bf16": ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",),
}


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("name", thinned(AT_SIZE, 3))
def test_kernels_fit_both_generations(name: str, factors: Factors) -> None:
    for target in (cast(GridTarget, load(one)) for one in TARGETS):
        built = build_object(rounded(AT_SIZE[name], factors), target)
        words = built.artefacts[1].content.decode()
        assert all(word in words for word in WORDS[factors])
        for launch in some(built.launches):
            assert launch.resources.spill_bytes == 0
            assert occupancy(launch, target.capability) >= LEAST_OCCUPANCY, f"{launch.entry}: {launch.resources}"


def test_products_of_f32_have_no_word_of_it() -> None:
    for spec in (MATMULS["in blocks"], CONVOLUTIONS["stem"]):
        words: Sequence[str] = [one.content.decode(errors="replace") for one in build_object(spec, TARGET).artefacts]
        assert not any("tf32" in word for word in words)
        assert signature(spec) != signature(rounded(spec))


@pytest.mark.parametrize(
    "spec", [MATMULS["tails, both transposed"], CONVOLUTIONS["point-wise"]], ids=["matmul", "conv"]
)
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4-bf16", "raspberry-pi-5", "x86-64-v3/opencl"])
def test_other_targets_refuse_them(name: str, spec: Spec) -> None:
    with pytest.raises(BuildError, match=f"Spec multiplies in tf32, which {name} does not"):
        build_object(rounded(spec), load(name))


def test_generations_before_tensor_cores_of_tf32() -> None:
    assert not replace(TARGET, capability="sm_75").multiplies("tf32")
    assert replace(TARGET, capability="sm_80").multiplies("tf32")
    assert all(TARGET.multiplies(one) for one in HALVES)
    assert not TARGET.multiplies("i8")
