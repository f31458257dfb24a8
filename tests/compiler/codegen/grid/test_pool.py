"""Pooling on a grid against PyTorch float64: windows over edges, overlaps, places, ties, NaN, epilogues in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.graph import Array
from compiler.kernels.expressions import Binary, Const, Ref
from compiler.kernels.spec import PoolSpec
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.reference import identity, picked
from tests.compiler.codegen.test_pool import bytes_of, draw, first_places, reference, spec_of
from tests.kernel_harness.launch import run_kernel
from tests.sample import sample, thinned

Shape = tuple[Any, ...]
# n, h, w, c, kernel, strides, pads (top, left, bottom, right)
SHAPES: list[Shape] = [
    (2, 12, 12, 16, (2, 2), (2, 2), (0, 0, 0, 0)),
    (2, 13, 11, 24, (3, 3), (2, 2), (1, 1, 1, 1)),
    (1, 7, 9, 5, (3, 2), (1, 2), (1, 0, 1, 1)),
    (3, 7, 7, 70, (7, 7), (1, 1), (0, 0, 0, 0)),
    (3, 5, 5, 3, (5, 5), (1, 1), (2, 2, 2, 2)),
    (1, 6, 6, 1, (2, 2), (3, 3), (0, 0, 0, 0)),
]
WIDE: Shape = (2, 20, 21, 3, (17, 18), (1, 1), (0, 0, 0, 0))
"""Windows of more places than a byte holds."""
KINDS = ("max", "max_grad", "average", "average_grad", "max_places", "places_grad")


def run(spec: PoolSpec, *inputs: Array) -> tuple[Array, ...]:
    return run_kernel(spec, inputs, target=OPENCL)


def operands(spec: PoolSpec) -> list[Array]:
    """What a kernel of its kind takes."""
    x, d_y = draw(spec.n, spec.h, spec.w, spec.c), draw(spec.n, spec.oh, spec.ow, spec.c, seed=1)
    if spec.kind == "places_grad":
        return [run(replace(spec, kind="max_places", epilogue=Ref(0), epilogue_inputs=()), x)[1], d_y]
    return {"max_grad": [x, d_y], "average_grad": [d_y]}.get(spec.kind, [x])


@pytest.mark.parametrize("shape", thinned([*SHAPES, WIDE], 4))
def test_maxima_and_their_gradient(shape: Shape) -> None:
    spec = spec_of("max_grad", shape)
    x, d_y = operands(spec)
    np.testing.assert_array_equal(run(spec_of("max", shape), x)[0], reference(spec, x).astype(np.float32))
    np.testing.assert_allclose(run(spec, x, d_y)[0], reference(spec, x, d_y), atol=4e-6)


@pytest.mark.parametrize("shape", thinned(SHAPES, 3))
@pytest.mark.parametrize("count_pads", sample([False, True], {"False"}))
def test_means_and_their_gradient(shape: Shape, count_pads: bool) -> None:
    spec = spec_of("average", shape, count_pads)
    (x,), d_y = operands(spec), draw(shape[0], spec.oh, spec.ow, shape[3], seed=1)
    np.testing.assert_allclose(run(spec, x)[0], reference(spec, x), atol=1e-6)
    want = reference(spec, x, d_y)
    np.testing.assert_allclose(run(spec_of("average_grad", shape, count_pads), d_y)[0], want, atol=1e-6)


@pytest.mark.parametrize("shape", thinned(SHAPES, 2))
def test_places_give_the_same_gradient(shape: Shape) -> None:
    x, d_y = operands(spec_of("max_grad", shape))
    y, words = run(spec_of("max_places", shape), x)
    np.testing.assert_array_equal(y, run(spec_of("max", shape), x)[0])
    (d_x,) = run(spec_of("places_grad", shape), words, d_y)
    np.testing.assert_array_equal(d_x, run(spec_of("max_grad", shape), x, d_y)[0])
    np.testing.assert_allclose(d_x, reference(spec_of("max", shape), x, d_y), atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 7, 6, 5, (3, 3), (2, 1), (1, 1, 1, 1)), (1, 8, 8, 35, (2, 4), (2, 4), (0,) * 4)])
@pytest.mark.parametrize("odd", [0.0, -np.inf, np.nan])
def test_places_of_ties_and_odd_numbers(shape: Shape, odd: float) -> None:
    """A sample's last word of the first shape holds fewer than four places: the rest of it is 0."""
    spec, random = spec_of("max_places", shape), np.random.default_rng(0)
    x = random.integers(0, 2, shape[:4]).astype(np.float32)
    x[random.random(x.shape) < 0.5] = odd
    x[0, :4, :5, :9] = odd
    y, words = run(spec, x)
    np.testing.assert_array_equal(y, run(spec_of("max", shape), x)[0])
    np.testing.assert_array_equal(bytes_of(words, spec), first_places(spec, x))
    assert not words.view(np.uint8)[:, spec.oh * spec.ow * spec.c :].any()


@pytest.mark.parametrize("kind", KINDS)
def test_epilogues_in_place(kind: str) -> None:
    """max(0, pooled * scale[c]) + residual, where the residual lies."""
    plain = spec_of(kind, SHAPES[1])
    width = (plain.h, plain.w) if kind.endswith("_grad") else (plain.oh, plain.ow)
    shape = (plain.n, *width, plain.c)
    scaled = Binary("max", Binary("mul", Ref(0), Ref(1)), Const(0.0))
    ended = replace(
        plain, epilogue=Binary("add", scaled, Ref(2)), epilogue_inputs=(picked((plain.c,), 3), identity(*shape))
    )
    given, scale, residual = operands(ended), draw(plain.c, seed=2), draw(*shape, seed=3)
    bare, *rest = run(plain, *given)
    got, *others = run_in_place(ended, [*given, scale, residual], [len(given) + 1])
    np.testing.assert_allclose(got, np.maximum(bare * scale, 0) + residual, rtol=1e-6, atol=1e-6)
    for one, other in zip(rest, others, strict=True):
        np.testing.assert_array_equal(one, other)
