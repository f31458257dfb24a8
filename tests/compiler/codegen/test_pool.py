"""Pooling kernels against PyTorch float64, with first-maximum ties and padding checked against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiler.graph import Array
from compiler.kernels.expressions import Binary, Const, Ref
from compiler.kernels.spec import PoolSpec
from compiler.ops import OPERATORS
from compiler.targets import load
from tests.compiler.codegen.reference import picked
from tests.kernel_harness.launch import build_object, run_kernel
from tests.sample import sample

# n, h, w, c, kernel, strides, pads (top, left, bottom, right)
SHAPES = [
    (2, 12, 12, 16, (2, 2), (2, 2), (0, 0, 0, 0)),
    (2, 13, 11, 24, (3, 3), (2, 2), (1, 1, 1, 1)),
    (1, 7, 9, 5, (3, 2), (1, 2), (1, 0, 1, 1)),
    (8, 7, 7, 1280, (7, 7), (1, 1), (0, 0, 0, 0)),
    (1, 56, 56, 64, (3, 3), (2, 2), (1, 1, 1, 1)),
    (3, 5, 5, 3, (5, 5), (1, 1), (2, 2, 2, 2)),
    (1, 6, 6, 1, (2, 2), (3, 3), (0, 0, 0, 0)),
]


def spec_of(kind: str, shape: tuple, count_pads: bool = False) -> PoolSpec:  # type: ignore[type-arg]
    n, h, w, c, kernel, strides, pads = shape
    oh = (h + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    ow = (w + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    return PoolSpec(kind, n, h, w, c, oh, ow, kernel, strides, pads, count_pads, dtype="f32")  # type: ignore[arg-type]


def forward(spec: PoolSpec, x: torch.Tensor) -> torch.Tensor:
    """The pooling of an NHWC float64 tensor by PyTorch, pads applied by hand (PyTorch has symmetric ones only)."""
    top, left, bottom, right = spec.pads
    border = (left, right, top, bottom)
    image = x.permute(0, 3, 1, 2)
    if spec.kind.startswith("max"):
        padded = torch.nn.functional.pad(image, border, value=-torch.inf)
        y = torch.nn.functional.max_pool2d(padded, spec.kernel, spec.strides)
    else:
        padded = torch.nn.functional.pad(image, border)
        ones = torch.ones_like(image[:, :1])
        counts = torch.nn.functional.pad(ones, border, value=1.0 if spec.count_pads else 0.0)
        total = torch.nn.functional.avg_pool2d(padded, spec.kernel, spec.strides, divisor_override=1)
        y = total / torch.nn.functional.avg_pool2d(counts, spec.kernel, spec.strides, divisor_override=1)
    return y[:, :, : spec.oh, : spec.ow].permute(0, 2, 3, 1)


def reference(spec: PoolSpec, x: Array, d_y: Array | None = None) -> Array:
    """The output, or with `d_y` the gradient of x, in float64."""
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = forward(spec, leaf)
    if d_y is None:
        return y.detach().numpy()
    y.backward(torch.tensor(d_y, dtype=torch.float64))
    assert leaf.grad is not None
    return leaf.grad.numpy()


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_max(shape: tuple) -> None:  # type: ignore[type-arg]
    spec = spec_of("max", shape)
    x = draw(*shape[:4])
    (y,) = run_kernel(spec, [x])
    np.testing.assert_array_equal(y, reference(spec, x).astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count_pads", sample([False, True], {"True"}))
def test_average(shape: tuple, count_pads: bool) -> None:  # type: ignore[type-arg]
    spec = spec_of("average", shape, count_pads)
    x = draw(*shape[:4])
    np.testing.assert_allclose(run_kernel(spec, [x])[0], reference(spec, x), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count_pads", sample([False, True], {"False"}))
def test_average_gradient(shape: tuple, count_pads: bool) -> None:  # type: ignore[type-arg]
    spec = spec_of("average_grad", shape, count_pads)
    d_y = draw(shape[0], spec.oh, spec.ow, shape[3])
    want = reference(spec_of("average", shape, count_pads), draw(*shape[:4]), d_y)
    np.testing.assert_allclose(run_kernel(spec, [d_y])[0], want, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_max_gradient(shape: tuple) -> None:  # type: ignore[type-arg]
    spec = spec_of("max_grad", shape)
    x, d_y = draw(*shape[:4]), draw(shape[0], spec.oh, spec.ow, shape[3], seed=1)
    want = reference(spec_of("max", shape), x, d_y)
    np.testing.assert_allclose(run_kernel(spec, [x, d_y])[0], want, atol=1e-6)


def test_ties_go_to_the_first_maximum() -> None:
    spec = spec_of("max_grad", (1, 4, 4, 18, (2, 2), (1, 1), (1, 1, 0, 0)))
    x = np.random.default_rng(0).integers(0, 2, (1, 4, 4, 18)).astype(np.float32)
    d_y = draw(1, spec.oh, spec.ow, 18)
    want = np.zeros((1, 4, 4, 18))
    for oh, ow, c in np.ndindex(spec.oh, spec.ow, 18):
        window = [(h, w) for h in (oh - 1, oh) for w in (ow - 1, ow) if 0 <= h < 4 and 0 <= w < 4]
        best = max(window, key=lambda place: x[0, place[0], place[1], c])  # the first one on ties
        want[0, best[0], best[1], c] += d_y[0, oh, ow, c]
    np.testing.assert_allclose(run_kernel(spec, [x, d_y])[0], want, atol=1e-6)


def bytes_of(words: Array, spec: PoolSpec) -> Array:
    """The places of all elements of y."""
    used = spec.oh * spec.ow * spec.c
    return words.view(np.uint8)[:, :used].reshape(spec.n, spec.oh, spec.ow, spec.c)


def first_places(spec: PoolSpec, x: Array) -> Array:
    """By a plain loop over each window, as PyTorch has it: the first of what is equal, the last NaN."""
    found = np.empty((spec.n, spec.oh, spec.ow, spec.c), np.uint8)
    for at in np.ndindex(found.shape):
        best, place = -np.inf, -1
        for number, (r, s) in enumerate(np.ndindex(*spec.kernel)):
            h, w = at[1] * spec.strides[0] - spec.pads[0] + r, at[2] * spec.strides[1] - spec.pads[1] + s
            if 0 <= h < spec.h and 0 <= w < spec.w:
                value = x[at[0], h, w, at[3]]
                if place < 0 or value > best or np.isnan(value):
                    best, place = value, number
        assert place is not None
        found[at] = place
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_places_give_the_same_gradient(shape: tuple) -> None:  # type: ignore[type-arg]
    x = draw(*shape[:4])
    y, words = run_kernel(spec_of("max_places", shape), [x])
    spec = spec_of("places_grad", shape)
    np.testing.assert_array_equal(y, run_kernel(spec_of("max", shape), [x])[0])
    d_y = draw(*y.shape, seed=1)
    (d_x,) = run_kernel(spec, [words, d_y])
    np.testing.assert_array_equal(d_x, run_kernel(spec_of("max_grad", shape), [x, d_y])[0])
    np.testing.assert_allclose(d_x, reference(spec_of("max", shape), x, d_y), atol=1e-6)


@pytest.mark.parametrize(
    "shape", [(2, 7, 6, 18, (3, 3), (2, 1), (1, 1, 1, 1)), (1, 8, 8, 35, (2, 4), (2, 4), (0,) * 4)]
)
@pytest.mark.parametrize("odd", [0.0, -np.inf, np.nan])
def test_places_of_ties_and_odd_numbers(shape: tuple, odd: float) -> None:  # type: ignore[type-arg]
    spec, random = spec_of("max_places", shape), np.random.default_rng(0)
    x = random.integers(0, 2, shape[:4]).astype(np.float32)
    x[random.random(x.shape) < 0.5] = odd
    x[0, :4, :5, :9] = odd
    y, words = run_kernel(spec, [x])
    np.testing.assert_array_equal(y, run_kernel(spec_of("max", shape), [x])[0])
    np.testing.assert_array_equal(bytes_of(words, spec), first_places(spec, x))
    y_of_record, words_of_record = OPERATORS["max_pool_places"].evaluate(
        [x], {"kernel": spec.kernel, "strides": spec.strides, "pads": spec.pads}
    )
    np.testing.assert_array_equal(y, y_of_record)
    np.testing.assert_array_equal(words, words_of_record)


@pytest.mark.parametrize("kind", ["max", "max_grad", "average", "average_grad", "max_places", "places_grad"])
def test_epilogues(kind: str) -> None:
    """y = max(0, pooled * scale[c]) with a per-channel scale."""
    shape = SHAPES[1]
    plain = spec_of(kind, shape)
    scaled = Binary("max", Binary("mul", Ref(0), Ref(1)), Const(0.0))
    spec = PoolSpec(
        plain.kind,
        plain.n,
        plain.h,
        plain.w,
        plain.c,
        plain.oh,
        plain.ow,
        plain.kernel,
        plain.strides,
        plain.pads,
        plain.count_pads,
        scaled,
        (picked((plain.c,), 3),),
        dtype="f32",
    )
    x, d_y = draw(*shape[:4]), draw(shape[0], plain.oh, plain.ow, plain.c, seed=1)
    inputs = [d_y] if kind in ("average_grad", "places_grad") else [x, d_y] if kind == "max_grad" else [x]
    if kind == "places_grad":
        inputs = [run_kernel(spec_of("max_places", shape), [x])[1], d_y]
    bare = run_kernel(plain, inputs)[0]
    scale = draw(plain.c, seed=2)
    np.testing.assert_allclose(run_kernel(spec, [*inputs, scale])[0], np.maximum(bare * scale, 0), rtol=1e-6)


def test_max_passes_nan_on() -> None:
    spec = spec_of("max", SHAPES[0])
    x = draw(*SHAPES[0][:4])
    x[0, 3, 4, 5] = np.nan
    (y,) = run_kernel(spec, [x])
    assert np.isnan(y[0, 1, 2, 5])
    assert np.isnan(y).sum() == 1


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
@pytest.mark.parametrize("kind", ["max", "max_grad", "average", "average_grad", "max_places", "places_grad"])
def test_other_targets_build(kind: str, target: str) -> None:
    assert build_object(spec_of(kind, SHAPES[1]), load(target)).object_bytes
