"""Attention for a grid, in all its cuts, against the operators' float64 meaning and PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from compiler.codegen.grid.attention.plan import CUTS, Cut, cut_for, workspace_bytes
from compiler.errors import BuildError
from compiler.graph import Array, Attrs
from compiler.kernels.spec import AttentionSpec
from compiler.ops import OPERATORS
from compiler.program.operands import operand_types
from compiler.targets import GridTarget, load
from tests.compiler.codegen.test_attention import BLIND, by_torch, check, draw, single
from tests.kernel_harness.launch import build_object, run_kernel
from tests.kernel_harness.opencl import run_on_device
from tests.sample import thinned

TARGET = "x86-64-v3/opencl"
LARGE, SMALL, BROAD = CUTS
SPECS = {
    "large blocks: groups of heads, causal, a mask of its own for each score": (
        AttentionSpec("forward", 2, 4, 2, 70, 90, 9, 7, 0.4, True, (2, 4, 70, 90), dtype="f32"),
        LARGE,
    ),
    "large blocks, all whole": (AttentionSpec("forward", 1, 2, 1, 128, 64, 64, 32, 0.125, dtype="f32"), LARGE),
    "small blocks: odd widths, one mask for all heads": (
        AttentionSpec("forward", 2, 3, 3, 21, 75, 5, 33, 0.5, False, (1, 1, 21, 75), dtype="f32"),
        SMALL,
    ),
    "small blocks, causal: queries that see nothing": (
        AttentionSpec("forward", 1, 4, 2, 30, 10, 8, 8, 0.5, True, dtype="f32"),
        SMALL,
    ),
    "broad sums: a mask of one number for each key": (
        AttentionSpec("forward", 1, 2, 1, 33, 40, 256, 130, 0.06, False, (1, 2, 1, 40), dtype="f32"),
        BROAD,
    ),
    "one key, a width of one, a mask of one number for each query": (
        AttentionSpec("forward", 2, 2, 1, 17, 1, 1, 3, 1.0, False, (2, 1, 17, 1), dtype="f32"),
        SMALL,
    ),
}


def machine() -> GridTarget:
    return cast(GridTarget, load(TARGET))


def gradient_operands(spec: AttentionSpec) -> tuple[list[Array], list[Array]]:
    """The operands of the gradient (y and stats by the meaning), and those of attention."""
    q, k, v, *mask = draw(spec)
    attrs = {"scale": spec.scale, "causal": spec.causal}
    y, stats = OPERATORS["attention"].evaluate([q, k, v, *mask], attrs)
    d_y = np.random.default_rng(2).normal(size=y.shape)
    return [q, k, v, y, stats, d_y, *mask], [q, k, v, *mask]


def gradients(
    spec: AttentionSpec, operands: Sequence[Array], wanted: Sequence[bool] = (True,) * 3
) -> tuple[Array, ...]:
    attrs: Attrs = {"scale": spec.scale, "causal": spec.causal, "wanted": tuple(wanted)}
    return OPERATORS["attention_grad"].evaluate(operands, attrs)


@pytest.mark.parametrize("name", thinned(SPECS, 3))
def test_both_directions(name: str) -> None:
    spec, cut = SPECS[name]
    assert cut_for(machine(), positions=spec.queries, widths=(spec.value_width,)) == cut
    operands, inputs = gradient_operands(spec)
    check(run_kernel(spec, single(*inputs), target=TARGET), (operands[3], operands[4]))
    got = run_kernel(replace(spec, kind="backward"), single(*operands), target=TARGET)
    check(got, gradients(spec, operands))


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_what_is_wanted_is_written(wanted: tuple[bool, bool, bool]) -> None:
    spec = replace(SPECS["large blocks: groups of heads, causal, a mask of its own for each score"][0], wanted=wanted)
    spec = replace(spec, kind="backward")
    operands, _ = gradient_operands(spec)
    check(run_kernel(spec, single(*operands), target=TARGET), gradients(spec, operands, wanted))
    assert bool(workspace_bytes(spec, machine(), 1)) is (wanted != (False, False, True))


@pytest.mark.thorough
def test_rows_that_see_nothing_are_as_pytorch_has_them() -> None:
    """Zeros where -inf hides every key; an even spread, with its gradient, where the lowest number does."""
    spec = BLIND["causal and masked"]
    inputs = [array.astype(np.float32).astype(np.float64) for array in draw(spec)]
    d_y = np.random.default_rng(2).normal(size=(spec.batch, spec.queries, spec.heads, spec.value_width))
    want = by_torch(spec, inputs, d_y)
    y, stats = run_kernel(spec, single(*inputs), target=TARGET)
    q, k, v, mask = inputs
    got = run_kernel(replace(spec, kind="backward"), single(q, k, v, y, stats, d_y, mask), target=TARGET)
    assert not y[:, 4].any()
    check((y, *got), tuple(want))


def test_a_number_that_is_none_stays_in_its_rows() -> None:
    spec, _ = SPECS["small blocks: odd widths, one mask for all heads"]
    q, k, v, mask = draw(spec)
    want, _ = OPERATORS["attention"].evaluate([q, k, v, mask], {"scale": spec.scale, "causal": False})
    q[0, 3, 1, 0] = np.nan
    y, _ = run_kernel(spec, single(q, k, v, mask), target=TARGET)
    assert np.isnan(y[0, 3, 1]).all()
    assert int(np.isnan(y).sum()) == spec.value_width
    seen = ~np.isnan(y)
    np.testing.assert_allclose(y[seen], want[seen], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_long_sums_keep_their_digits(kind: str) -> None:
    """Values of one sign: an error that grew with the keys or the queries would show."""
    long = 4096
    spec = AttentionSpec("forward", 1, 1, 1, *((20, long) if kind == "forward" else (long, 20)), 8, 8, 0.3, dtype="f32")
    q, k, v = (array.astype(np.float32).astype(np.float64) for array in draw(spec))
    y, stats = OPERATORS["attention"].evaluate([q, k, v + 4], {"scale": 0.3, "causal": False})
    if kind == "forward":
        got = run_kernel(spec, single(q, k, v + 4), target=TARGET)
        np.testing.assert_allclose(got[0], y, rtol=1e-6)
        return
    d_y = (np.random.default_rng(2).random(y.shape) + 1).astype(np.float32).astype(np.float64)
    operands = [q, k, v + 4, y, stats, d_y]
    spec = replace(spec, kind="backward", wanted=(False, False, True))
    (d_v,) = run_kernel(spec, single(*operands), target=TARGET)
    np.testing.assert_allclose(d_v, gradients(spec, operands, spec.wanted)[0], rtol=1e-6)


def test_a_device_of_small_groups() -> None:
    """Its groups and their shared memory are kept to, and the numbers are the same."""
    target = replace(machine(), items=64, shared_bytes=SMALL.shared_bytes)
    spec, _ = SPECS["large blocks: groups of heads, causal, a mask of its own for each score"]
    operands, inputs = gradient_operands(spec)
    check(run_on(target, spec, single(*inputs)), (operands[3], operands[4]))
    keys_only = replace(spec, kind="backward", wanted=(False, False, True))
    check(run_on(target, keys_only, single(*operands)), gradients(spec, operands, keys_only.wanted))


def run_on(target: GridTarget, spec: AttentionSpec, inputs: list[Array]) -> tuple[Array, ...]:
    built, types = build_object(spec, target), operand_types(spec)
    assert all(launch.items <= target.items for launch in built.launches)
    return run_on_device(built, (types.inputs, types.outputs), inputs)


def test_what_is_asked_of_a_device() -> None:
    tiny = replace(machine(), shared_bytes=4096)
    with pytest.raises(BuildError, match="attention takes groups of 64 items"):
        cut_for(tiny, positions=100, widths=(8,))


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("width", [1, 3, 16, 65, 256])
def test_every_column_is_one_item_s(cut: Cut, width: int) -> None:
    columns = [
        c * cut.wide + x
        for first, count in cut.pieces(width)
        for c in range(first, first + count)
        for x in range(cut.wide)
    ]
    assert len(columns) == len(set(columns))
    assert set(range(width)) <= set(columns)
    assert cut.block * cut.depth(width) % cut.items == 0


@pytest.mark.parametrize("target", ["x86-64-v3/opencl", "x86-64-v3/cuda"])
def test_products_of_scores_are_f32(target: str) -> None:
    spec = AttentionSpec("forward", 1, 1, 1, 4, 4, 4, 4, 1.0, products="bf16", dtype="f32")
    with pytest.raises(BuildError, match=r"multiplies in bf16|no products bf16"):
        build_object(spec, load(target))
