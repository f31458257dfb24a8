"""Plans of the families without register tiles in half precision: operands take two bytes, what is summed up four.

No kernel computes in it yet (`test_halves` has what lies in it only); `test_precision` has the contractions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.codegen.attention import plan as attention
from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import can_update, workspace_bytes_of
from compiler.codegen.gather import plan as gather
from compiler.codegen.map import plan as maps
from compiler.codegen.norm_grad import plan as norm_grad
from compiler.codegen.pool import plan as pool
from compiler.codegen.reduce import plan as reduce
from compiler.codegen.row import plan as row
from compiler.element_types import DType
from compiler.graph import TensorType
from compiler.kernels.access import Access, axis, identity, row_matrix
from compiler.kernels.expressions import Binary, Expr, Ref, Stat, Unary
from compiler.kernels.spec import (
    AttentionSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    NormGradSpec,
    PoolSpec,
    ReduceSpec,
    RowSpec,
)
from compiler.program.operands import operand_types
from compiler.targets import CpuTarget, load_cpu

V4, A72 = load_cpu("x86-64-v4"), load_cpu("raspberry-pi-4")
TARGETS = [(V4, 16), (A72, 4)]
"""With the f32 elements that fill a vector."""


def workspace(spec: KernelSpec, target: CpuTarget = V4, threads: int = 4) -> int:
    return workspace_bytes_of(spec, target, threads, DEFAULT)


def attention_spec(kind: str, dtype: DType, **fields: object) -> AttentionSpec:
    return AttentionSpec(kind, 2, 4, 4, 96, 128, 64, 64, 0.125, dtype=dtype, **fields)  # type: ignore[arg-type]


def row_spec(width: int, dtype: DType) -> RowSpec:
    """A softmax, which keeps the exponentials of its row."""
    rows = row_matrix(TensorType(dtype, (32, width)), 32, width)
    shifted: Expr = Unary("exp", Binary("sub", Ref(0), Stat(0)))
    stages: tuple[tuple[str, Expr], ...] = (("max", Ref(0)), ("sum", shifted))
    return RowSpec(32, width, (rows,), stages, (rows,), (Binary("div", shifted, Stat(1)),))  # type: ignore[arg-type]


def transpose(dtype: DType) -> MapSpec:
    out = TensorType(dtype, (64, 256))
    turned = Access(TensorType(dtype, (256, 64)), (axis(1), axis(0)))
    return MapSpec((64, 256), (turned,), (identity(out),), (Ref(0),))


def column_sums(dtype: DType) -> ReduceSpec:
    terms = identity(TensorType(dtype, (50_000, 24)))
    return ReduceSpec((50_000, 24), (0,), "sum", (terms,), Ref(0), Access(TensorType(dtype, (24,)), (axis(1),)))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("target", "lanes"), TARGETS)
def test_vectors_of_operands_hold_twice_as_many(target: CpuTarget, lanes: int, dtype: DType) -> None:
    image = PoolSpec("max", 1, 8, 8, 256, 4, 4, (2, 2), (2, 2), (0, 0, 0, 0), dtype=dtype)
    table = GatherSpec("scatter_add", 1, 100, 256, 32, dtype=dtype)
    for half in (
        pool.plan(image, target, 1).precision.lanes,
        attention.plan(attention_spec("forward", dtype), target, 1).lanes,
    ):
        assert half == 2 * lanes
    for single in (maps.plan(transpose(dtype), target, 1).lanes, gather.plan(table, target, 1).lanes):
        assert single == lanes, "what is not reused is computed in f32"
    assert pool.plan(image, target, 1).parts == 1
    few = replace(image, h=1, oh=1)
    assert pool.plan(few, target, 4).parts == 256 // (2 * lanes)
    assert pool.plan(replace(few, dtype="f32"), target, 4).parts == 256 // lanes


@pytest.mark.parametrize(("target", "lanes"), TARGETS)
def test_vectors_of_sums_hold_as_many_as_ever(target: CpuTarget, lanes: int) -> None:
    assert reduce.plan(column_sums("f16"), target, 4) == replace(
        reduce.plan(column_sums("f32"), target, 4), space=reduce.plan(column_sums("f16"), target, 4).space
    )
    assert reduce.plan(column_sums("f16"), target, 4).lanes == lanes
    assert row.plan(row_spec(64, "f16"), target, 4).precision.sum_lanes == lanes
    assert norm_grad.plan(NormGradSpec(64, 96, 1e-5, True, dtype="f16"), target, 4).precision.sum_lanes == lanes


def test_partial_sums_are_f32() -> None:
    parts = reduce.plan(column_sums("f16"), V4, 4).parts
    assert parts > 1
    assert workspace(column_sums("f16")) == workspace(column_sums("f32")) == 4 * parts * 24
    norm = NormGradSpec(256, 96, 1e-5, True, dtype="f16")
    assert workspace(norm) == workspace(replace(norm, dtype="f32")) == 4 * 2 * 4 * 96


def test_a_transpose_uses_whole_cache_lines() -> None:
    widths = {dtype: maps.plan(transpose(dtype), V4, 1).pieces[0].space.extents[-2] for dtype in ("f16", "f32")}
    assert widths == {"f16": 32, "f32": 16}


def test_whole_numbers_come_along_with_the_real_type() -> None:
    mixed = MapSpec(
        (512,),
        (identity(TensorType("bool", (512,))), identity(TensorType("f16", (512,)))),
        (identity(TensorType("f32", (512,))),),
        (Binary("mul", Unary("to_f32", Ref(0)), Unary("to_f32", Ref(1))),),
    )
    assert maps.plan(mixed, V4, 1).lanes == 16
    indices = GatherSpec("gather", 1, 100, 64, 32, dtype="i64")
    assert gather.plan(indices, V4, 1).lanes == 16


def test_a_row_is_kept_while_its_sums_fit_on_the_stack() -> None:
    for dtype in ("f16", "f32"):
        is_stored = {width: bool(row.plan(row_spec(width, dtype), V4, 1).stored) for width in (4096, 4097)}
        assert is_stored == {4096: True, 4097: False}


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_attention_copies_in_two_bytes_and_scores_in_four(kind: str) -> None:
    spec = attention_spec(kind, "f16")
    plan = attention.plan(spec, V4, 4)
    full = attention.plan(replace(spec, dtype="f32"), V4, 4)
    assert (plan.block_rows, plan.score_stride) == (full.block_rows, full.score_stride)
    starts = attention.layout(spec, plan).starts
    padded = plan.columns(plan.scores, spec.keys, padded=True).padded
    assert starts["scores"] - starts["keys_across"] == -(-2 * spec.width * padded // 64) * 16
    following = "values" if kind == "forward" else "values_across"
    assert starts[following] - starts["scores"] == -(-4 * plan.block_rows * plan.score_stride // 64) * 16
    assert workspace(spec) < workspace(replace(spec, dtype="f32"))


def test_statistics_of_attention_are_f32() -> None:
    y, stats = operand_types(attention_spec("forward", "f16")).outputs
    assert (y.dtype, stats.dtype) == ("f16", "f32")


def test_a_table_in_half_precision_may_be_updated_by_its_gradient() -> None:
    table = GatherSpec("scatter_add", 1, 100, 16, 32, dtype="f16")
    assert can_update(table, V4)
    assert not can_update(replace(table, dtype="i64"), V4)
    update = replace(
        table, epilogue=Binary("sub", Ref(1), Ref(0)), epilogue_inputs=(identity(TensorType("f16", (100, 16))),)
    )
    assert workspace(update) == 4 * (100 + 32), "positions, counted in f32 whatever the table holds"
