"""Plans of contractions in half precision: operands take two bytes, sums four. Nothing is emitted for them yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from compiler.codegen.choice import DEFAULT, choose
from compiler.codegen.conv import plan as conv_plan
from compiler.codegen.conv.plan import ConvPlan
from compiler.codegen.depthwise import plan as depthwise_plan
from compiler.codegen.family import choices_of, emit_kernel, workspace_bytes_of
from compiler.codegen.matmul import plan as matmul_plan
from compiler.codegen.matmul.candidate import candidate_of
from compiler.codegen.matmul.cost import Core, cost
from compiler.codegen.matmul.plan import ranked
from compiler.codegen.tile.precision import Precision
from compiler.codegen.winograd import plan as winograd_plan
from compiler.codegen.winograd.plan import WinogradPlan
from compiler.element_types import DType
from compiler.errors import BuildError
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MatmulSpec
from compiler.targets import CpuTarget, load_cpu
from tests.compiler.codegen.contractions import Contraction, Kind, conv, depthwise
from tests.compiler.codegen.test_plans_scale import IMAGES, Image

Spec = TypeVar("Spec", MatmulSpec, ConvSpec, DepthwiseSpec)
V4, V3, A72 = load_cpu("x86-64-v4"), load_cpu("x86-64-v3"), load_cpu("raspberry-pi-4")
PADS = (1, 1, 1, 1)
KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")


def half(spec: Spec) -> Spec:
    return replace(spec, dtype="f16")


def matmul(m: int, n: int, k: int, dtype: DType = "f16", *, a_transposed: bool = False) -> MatmulSpec:
    return MatmulSpec(1, m, n, k, dtype=dtype, a_transposed=a_transposed)


def half_conv(kind: Kind, image: tuple[int, int, int, int], k: int, *, sums: bool = False) -> ConvSpec:
    return replace(conv(kind, image, k, (3, 3), (1, 1), PADS), dtype="f16", sums=sums)


@pytest.mark.parametrize(("target", "lanes"), [(V4, 32), (V3, 16), (A72, 8)])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_vector_holds_twice_as_many_and_is_summed_in_two(target: CpuTarget, lanes: int, dtype: DType) -> None:
    precision = Precision.of(dtype, target)
    assert (precision.item_bytes, precision.sum_bytes, precision.lanes) == (2, 4, lanes)
    assert (precision.sum_size, precision.line, precision.odd_lines(33)) == (2, 32, 96)
    assert (Precision.of("f32", target).sum_size, Precision.of("f32", target).lanes) == (1, lanes // 2)


@pytest.mark.parametrize("target", [V4, V3, A72])
@pytest.mark.parametrize("spec", [matmul(200, 120, 90), matmul(1280, 320, 900), matmul(24, 40, 12544)], ids=str)
def test_a_products_tile_fits_in_the_registers(target: CpuTarget, spec: MatmulSpec) -> None:
    lanes = target.vector_bits // 16
    for choice in choices_of(spec, target, 2):
        plan = matmul_plan.plan(spec, target, 2, choice)
        vectors = len(plan.columns.tile.widths)
        assert plan.columns.tile.width == vectors * lanes
        assert plan.rows * vectors * 2 + vectors + 1 <= target.vector_registers


def test_no_tile_is_wider_than_its_product() -> None:
    choices = choices_of(matmul(100, 24, 90), V4, 1)[1:]
    assert {choice.integer("vectors", 0) for choice in choices} == {1}


def test_a_vector_of_half_precision_costs_two_multiply_adds() -> None:
    """The same tile in vectors: twice the columns, twice the cycles."""
    way = choose(rows=4, vectors=2, strategy="rows", order="rows", panels="direct", k_block=10_000)

    def cycles(dtype: DType, columns: int) -> float:
        spec, core = matmul(4, columns, 10_000, dtype), Core.of(V4, dtype)
        return cost(spec, core, 1, candidate_of(way, ranked(spec, core, 1)[0]))

    assert 1.5 < cycles("f16", 64) / cycles("f32", 32) <= 2


IN_PLACE = choose(rows=4, vectors=1, strategy="rows", order="columns", panels="direct", k_block=128, copies_a=False)
"""So few steps in a block that its lines of B all stay in the second-level cache, however far apart."""


def cycles_in_place(n: int, core: Core) -> float:
    """The estimate for 64 rows of 4096 steps, B read where it lies."""
    spec = matmul(64, n, 4096)
    return cost(spec, core, 1, candidate_of(IN_PLACE, ranked(spec, core, 1)[0]))


def test_cache_lines_are_counted_in_stored_elements() -> None:
    """Lines of twice as many bytes: half as many of them, 1.5 cycles for each of A's and B's a step."""
    core = Core.of(V4, "f16")
    long_lines = replace(core, precision=replace(core.precision, line_bytes=128))
    saved = cycles_in_place(96, core) - cycles_in_place(96, long_lines)
    assert saved == pytest.approx(1.5 * 4096 * (64 + 96) / 64)


def test_rows_that_meet_in_few_sets_of_the_cache_are_told_by_their_bytes() -> None:
    """1024 elements of two bytes are half of the 64 sets' lines, 512 a quarter: only the former cost 2.4 more each."""
    core = Core.of(V4, "f16")
    conflicts = cycles_in_place(1024, core) - 2 * cycles_in_place(512, core)
    row_tiles, vectors, lines_of_a = 16, 32, 2
    assert conflicts == pytest.approx(4096 * (2.4 * row_tiles * vectors - 1.5 * lines_of_a))


def test_a_row_that_a_load_reaches_is_counted_in_bytes() -> None:
    """Rows of A 6000 bytes apart: 65520 reach ten of them; at 12000 bytes only five, and then the least there is."""

    def most_rows(dtype: DType) -> int:
        spec = matmul(160, 8, 3000, dtype)
        return max(matmul_plan.plan(spec, A72, 1, choice).rows for choice in choices_of(spec, A72, 1))

    assert (most_rows("f16"), most_rows("f32")) == (11, 8)


@pytest.mark.parametrize("target", [V4, V3, A72])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_a_convolutions_tile_fits_in_the_registers(kind: Kind, image: Image, target: CpuTarget) -> None:
    spec = half(conv(kind, *image, (3, 3), (1, 1), PADS))
    plans: list[ConvPlan | WinogradPlan] = [conv_plan.plan(spec, target, 2)]
    if winograd_plan.applies(spec, plans[0].precision):
        plans.append(winograd_plan.plan(spec, target, 2, 4))
    for plan in plans:
        vectors = -(-plan.columns.tile.width // (target.vector_bits // 16))
        assert plan.rows * vectors * 2 + vectors + 1 <= target.vector_registers


def test_a_product_packs_what_it_stores_and_sums_what_it_accumulates() -> None:
    steps, columns = 100, 128
    shared = choose(rows=3, vectors=2, strategy="rows", order="rows", panels="shared", k_block=steps)
    assert workspace_bytes_of(matmul(1000, columns, steps), V4, 2, shared) == 2 * steps * columns
    split = choose(rows=3, vectors=2, strategy="split", order="columns", panels="private", k_block=50)
    assert workspace_bytes_of(matmul(96, columns, 5000), V4, 2, split) == 2 * (2 * 50 * columns + 4 * 97 * columns)
    copied = choose(rows=3, vectors=2, strategy="rows", order="columns", panels="direct", k_block=600, copies_a=True)
    tile = 57 * 32  # three rows of 600 steps, in an odd number of lines of 32 elements
    assert matmul_plan.plan(matmul(96, columns, 600), V4, 2, copied).a_block_elements == 32 * tile


def test_sums_do_not_wait_in_an_output_that_cannot_hold_them() -> None:
    blocks = choose(rows=3, vectors=2, strategy="rows", order="columns", panels="direct", k_block=300)
    assert matmul_plan.plan(matmul(96, 128, 600, "f32"), V4, 2, blocks).waiting == "output"
    assert matmul_plan.plan(matmul(96, 128, 600), V4, 2, blocks).waiting == "workspace"
    assert workspace_bytes_of(matmul(96, 128, 600), V4, 2, blocks) == 4 * 96 * 128


def test_twice_as_large_an_operand_stays_in_the_cache() -> None:
    """B takes three quarters of what it may in f16, one and a half times as much in f32."""
    k, n = 256, V4.l2_bytes // 2 * 3 // 4 // (2 * 256)
    assert matmul_plan.plan(matmul(4000, n, k), V4, 1).order == "rows"
    assert matmul_plan.plan(matmul(4000, n, k, "f32"), V4, 1).order == "columns"


def test_stored_panels_are_whole_vectors() -> None:
    spec = replace(matmul(64, 1024, 1024), b_transposed=True)
    width = matmul_plan.panel_width(spec, V4, 1)
    assert width > 0
    assert width % 32 == 0
    assert matmul_plan.panel_width(replace(spec, n=1040), V4, 1) == 0  # 1040 = 32 * 32 + 16
    assert matmul_plan.panel_width(replace(spec, n=1040, dtype="f32"), V4, 1) > 0


@pytest.mark.parametrize("kind", ["forward", "input_grad"])
@pytest.mark.parametrize("target", [V4, V3, A72])
def test_a_convolution_packs_weights_and_copies_rows_as_they_are_stored(kind: Kind, target: CpuTarget) -> None:
    spec = half_conv(kind, (2, 20, 20, 24), 80)
    plan = conv_plan.plan(spec, target, 2)
    channels, outputs = (24, 80) if kind == "forward" else (80, 24)
    lanes = target.vector_bits // 16
    padded = outputs + (-outputs % lanes if outputs % lanes > lanes // 2 else -outputs % (lanes // 2))
    assert plan.band.copied
    assert plan.columns.tile.width % lanes == 0 or not plan.columns.full
    assert plan.columns.padded == padded
    band = plan.band.images * plan.band.rows * 22 * channels
    assert conv_plan.workspace_bytes(spec, target, 2) == 2 * (9 * channels * padded + plan.slots * band)


def test_a_band_of_half_as_many_bytes_holds_twice_the_rows() -> None:
    target = replace(V4, l2_bytes=1 << 17)
    spec = half_conv("forward", (1, 64, 64, 40), 64)
    rows = [conv_plan.plan(replace(spec, dtype=dtype), target, 1).band.out_rows for dtype in ("f16", "f32")]
    assert rows == [10, 4]  # bands of at most 12 and of 6 rows with those above and below, evened out


def test_a_weight_gradient_is_summed_in_f32() -> None:
    spec = half_conv("weight_grad", (4, 14, 14, 24), 40, sums=True)
    plan = conv_plan.plan(spec, V4, 2)
    assert (plan.split, plan.sums) == ("units", 2)
    copies = 2 * plan.slots * plan.band.elements
    assert conv_plan.workspace_bytes(spec, V4, 2) == copies + 4 * 2 * (9 * 24 * 40 + 40)


def test_large_weight_gradients_are_not_added_up_in_an_output_that_cannot_hold_them() -> None:
    spec = half_conv("weight_grad", (2, 6, 6, 340), 340)
    plan, exact = (conv_plan.plan(replace(spec, dtype=dtype), V4, 2) for dtype in ("f16", "f32"))
    assert (plan.split, plan.sums, exact.split, exact.sums) == ("weights", 1, "weights", 0)
    copies = 2 * plan.slots * plan.band.elements
    assert conv_plan.workspace_bytes(spec, V4, 2) == copies + 4 * 9 * 340 * 340


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [V4, V3, A72])
def test_winograd_transforms_what_is_stored_and_keeps_results_as_sums(kind: Kind, target: CpuTarget) -> None:
    spec = half_conv(kind, (4, 28, 28, 64), 96, sums=kind == "weight_grad")
    plan = winograd_plan.plan(spec, target, 2, 4)
    at = winograd_plan.layout(spec, plan)
    channels, lines = 96 if kind == "input_grad" else 64, 64 // 2
    assert plan.columns.tile.width % (target.vector_bits // 16) == 0 or not plan.columns.full
    assert at.row == (-(-channels // lines) | 1) * lines
    assert at.plane >= plan.block * at.row
    rows = plan.steps if kind == "weight_grad" else plan.part
    assert 2 * at.result_plane >= 4 * rows * plan.columns.tile.width
    assert 2 * (at.patch - at.results) == 36 * 2 * at.result_plane
    assert conv_plan.workspace_bytes(spec, target, 2, choose(winograd=4)) == 2 * at.elements


def test_winograd_sums_blocks_of_a_weight_gradient_in_f32() -> None:
    spec = half_conv("weight_grad", (8, 28, 28, 64), 96, sums=True)
    target = replace(V4, l2_bytes=1 << 16, l3_bytes=1 << 18)
    plan = winograd_plan.plan(spec, target, 1, 4)
    at = winograd_plan.layout(spec, plan)
    assert plan.blocks > 1
    assert winograd_plan.needs_sums(spec, plan)
    assert 2 * (at.private - at.sums) == 4 * 9 * 64 * 96
    assert 2 * (at.stride - at.d_y_sums) >= 4 * 2 * 96
    exact = replace(spec, dtype="f32")
    assert not winograd_plan.needs_sums(exact, winograd_plan.plan(exact, target, 1, 4))


def test_winograd_takes_channels_in_whole_vectors() -> None:
    spec = half_conv("forward", (4, 28, 28, 48), 48)
    assert len(choices_of(replace(spec, dtype="f32"), V4, 2)) > 1
    assert choices_of(spec, V4, 2) == (DEFAULT,)
    assert len(choices_of(spec, V3, 2)) > 1


@pytest.mark.parametrize("target", [V4, V3, A72])
def test_a_depthwise_convolution_has_wider_vectors_and_two_registers_for_a_sum(target: CpuTarget) -> None:
    spec = half(depthwise("forward", (2, 28, 28, 96), (3, 3), (1, 1), PADS))
    plan = depthwise_plan.default_plan(spec, target, 2)
    assert plan.lanes == target.vector_bits // 16
    assert plan.columns * 2 + 3 + 2 <= target.vector_registers
    assert depthwise_plan.workspace_bytes(spec, target, 2) == 0


def test_a_depthwise_weight_gradient_is_summed_in_f32() -> None:
    spec = replace(depthwise("weight_grad", (2, 28, 28, 96), (3, 3), (1, 1), PADS), dtype="f16", sums=True)
    plan = depthwise_plan.default_plan(spec, V3, 2)
    assert depthwise_plan.workspace_bytes(spec, V3, 2) == 4 * plan.slots * 10 * 96
    assert not plan.all_taps  # 20 registers of 16
    assert depthwise_plan.default_plan(replace(spec, dtype="f32"), V3, 2).all_taps


def test_images_of_half_as_many_bytes_come_from_the_cache() -> None:
    channels = V4.l2_bytes // (2 * 14 * 14) * 3 // 4 // 4 * 4
    spec = depthwise("forward", (1, 14, 14, channels // 2), (3, 3), (1, 1), PADS)
    assert depthwise_plan.default_plan(spec, V4, 1).ahead
    assert not depthwise_plan.default_plan(half(spec), V4, 1).ahead


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i64"])
@pytest.mark.parametrize(
    "spec",
    [
        matmul(8, 8, 8),
        *(conv(kind, (1, 8, 8, 16), 16, (3, 3), (1, 1), PADS) for kind in KINDS),
        *(depthwise(kind, (1, 8, 8, 16), (3, 3), (1, 1), PADS) for kind in KINDS),
    ],
    ids=lambda spec: f"{type(spec).__name__} {getattr(spec, 'kind', '')}",
)
def test_only_f32_is_emitted(spec: Contraction, dtype: DType) -> None:
    with pytest.raises(BuildError, match=rf"{type(spec).__name__} computes in f32, not in {dtype}") as caught:
        emit_kernel(replace(spec, dtype=dtype), V4, 1, DEFAULT)
    assert f"dtype='{dtype}'" in caught.value.where
