"""What contractions mean, in NumPy float64, and the comparison of a built kernel with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from compiler.codegen.choice import DEFAULT, Choice
from compiler.graph import Array
from compiler.kernels.expressions import Binary, Const, Expr, Ref
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MatmulSpec
from compiler.program.operands import operand_types
from compiler.targets import Target, load
from tests.compiler.codegen.reference import reading, value
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target

Contraction = MatmulSpec | ConvSpec | DepthwiseSpec
Kind = Literal["forward", "input_grad", "weight_grad"]
Runner = Callable[[Contraction, list[Array], int], Array]
RELU6: Expr = Binary("min", Binary("max", Ref(0), Const(0.0)), Const(6.0))


def output_size(extent: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    return (extent + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1


def conv(
    kind: Kind,
    image: tuple[int, int, int, int],
    k: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> ConvSpec:
    """A convolution of [n, h, w, c] images; sizes of y follow."""
    n, h, w, c = image
    oh = output_size(h, kernel[0], strides[0], (pads[0], pads[2]), dilations[0])
    ow = output_size(w, kernel[1], strides[1], (pads[1], pads[3]), dilations[1])
    return ConvSpec(kind, n, h, w, c, k, oh, ow, kernel, strides, pads, dilations, dtype="f32", groups=groups)


def depthwise(
    kind: Kind,
    image: tuple[int, int, int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int] = (1, 1),
) -> DepthwiseSpec:
    """A depth-wise convolution of [n, h, w, c] images; sizes of y follow."""
    dense = conv(kind, image, 1, kernel, strides, pads, dilations)
    return DepthwiseSpec(kind, *image, dense.oh, dense.ow, kernel, strides, pads, dilations, dtype="f32")


def expected(spec: Contraction, inputs: list[Array]) -> Array:
    """The output in float64, epilogue included."""
    first, second = (array.astype(np.float64) for array in inputs[:2])
    sums = _matmul(spec, first, second) if isinstance(spec, MatmulSpec) else _image(spec, first, second)
    extra = [reading(a, x, sums.shape) for a, x in zip(spec.epilogue_inputs, inputs[2:], strict=True)]
    return np.broadcast_to(value(spec.epilogue, [sums, *extra], (), sums.shape), sums.shape)


def _matmul(spec: MatmulSpec, a: Array, b: Array) -> Array:
    a = np.swapaxes(a, -1, -2) if spec.a_transposed else a
    b = np.swapaxes(b, -1, -2) if spec.b_transposed else b
    return np.broadcast_to(a @ b, (spec.batch, spec.m, spec.n))


def _taps(spec: ConvSpec | DepthwiseSpec) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """For each tap the positions of the padded image that the outputs meet."""
    for i in range(spec.kernel[0]):
        for j in range(spec.kernel[1]):
            y, x = i * spec.dilations[0], j * spec.dilations[1]
            rows = slice(y, y + (spec.oh - 1) * spec.strides[0] + 1, spec.strides[0])
            columns = slice(x, x + (spec.ow - 1) * spec.strides[1] + 1, spec.strides[1])
            yield i, j, (slice(None), rows, columns)


def _image(spec: ConvSpec | DepthwiseSpec, first: Array, second: Array) -> Array:
    """Groups are blocks on the diagonal of dense weights."""
    if not isinstance(spec, ConvSpec) or spec.groups == 1:
        return _dense_image(spec, first, second)
    (c, k), dense = spec.group, replace(spec, groups=1)
    blocks = [(slice(g * c, (g + 1) * c), slice(g * k, (g + 1) * k)) for g in range(spec.groups)]
    if spec.kind == "weight_grad":
        whole = _dense_image(dense, first, second)
        return np.concatenate([whole[:, :, rows, columns] for rows, columns in blocks], axis=3)
    weights = np.zeros(dense.weight)
    for rows, columns in blocks:
        weights[:, :, rows, columns] = second[:, :, :, columns]
    return _dense_image(dense, first, weights)


def _dense_image(spec: ConvSpec | DepthwiseSpec, first: Array, second: Array) -> Array:
    top, left, bottom, right = spec.pads
    dense = isinstance(spec, ConvSpec)
    padded = np.zeros((spec.n, spec.h + top + bottom, spec.w + left + right, spec.c))
    if spec.kind == "input_grad":
        for i, j, place in _taps(spec):
            padded[place] += first @ second[i, j].T if dense else first * second[i, j]
        return padded[:, top : top + spec.h, left : left + spec.w]
    padded[:, top : top + spec.h, left : left + spec.w] = first
    if spec.kind == "forward":
        products = [
            padded[place] @ second[i, j] if dense else padded[place] * second[i, j] for i, j, place in _taps(spec)
        ]
        return np.sum(products, axis=0)
    pattern = "nhwc,nhwk->ck" if dense else "nhwc,nhwc->c"
    sums = [np.einsum(pattern, padded[place], second, optimize=True) for _, _, place in _taps(spec)]
    return np.reshape(sums, (*spec.kernel, *sums[0].shape))


def distance(got: Array, want: Array) -> float:
    """Relative L2 error; absolute if nothing is expected."""
    size = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / (size or 1.0)


def random_inputs(spec: Contraction, seed: int = 0) -> list[Array]:
    """Standard normal operands."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(t.shape, dtype=np.float32) for t in operand_types(spec).inputs]


def run_native(
    spec: Contraction, inputs: list[Array], threads: int, target: str | None = None, choice: Choice = DEFAULT
) -> Array:
    """The kernel's output on this machine."""
    (got,) = Kernel(spec, load(target or native_target()), threads, choice).run(*inputs)
    return got


def check(
    spec: Contraction,
    *,
    threads: int = 2,
    target: str | None = None,
    tolerance: float = 6e-7,
    choice: Choice = DEFAULT,
) -> None:
    """Build, run and compare; every operand is checked for writes outside it."""
    inputs = random_inputs(spec)
    got = run_native(spec, inputs, threads, target, choice)
    error = distance(got, expected(spec, inputs))
    assert error <= tolerance, f"relative error {error:.2e} of {spec}"


def check_sums(
    spec: ConvSpec | DepthwiseSpec,
    target: Target,
    *,
    tolerance: float = 6e-7,
    choice: Choice = DEFAULT,
    threads: int = 2,
) -> None:
    """Build a weight gradient that makes the bias gradient as well, run it and compare both."""
    spec = replace(spec, sums=True)
    inputs = random_inputs(spec)
    d_w, d_bias = Kernel(spec, target, threads, choice).run(*inputs)
    assert distance(d_w, expected(spec, inputs)) <= tolerance
    assert distance(d_bias, inputs[1].astype(np.float64).sum((0, 1, 2))) <= 6e-7
