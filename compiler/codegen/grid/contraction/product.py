"""The contraction that a spec is: its axes, and where its operands and its output are at a point of them.

The axes of a product are those of its batch, of its rows (m), of its columns (n) and of its steps (k), in this order;
each of the four is a row-major space. Operands read 0 outside of their tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Literal, cast

from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine, axis
from compiler.kernels.spec import ConvSpec, MatmulSpec

Factors = Literal["f32", "tf32", "f16", "bf16"]
PER_WORD: Mapping[Factors, int] = {"f32": 1, "tf32": 1, "f16": 2, "bf16": 2}
"""Factors in 32 bits of shared memory."""


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction. `a` and `b` are accesses over all axes; no `a` means ones.

    `point`: where the sum of a batch, row and column goes among the axes of the epilogue, whose extents are
    `extents`; what lies outside of them goes nowhere. `factors`: what elements of `a` and `b` are rounded to.
    """

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    steps: tuple[int, ...]
    a: Access | None
    b: Access
    point: tuple[Affine, ...]
    extents: tuple[int, ...]
    factors: Factors = "f32"

    @property
    def m(self) -> int:
        """Rows of each product."""
        return prod(self.rows)

    @property
    def n(self) -> int:
        """Columns of each product."""
        return prod(self.columns)

    @property
    def k(self) -> int:
        """Steps of the reduction."""
        return prod(self.steps)

    @property
    def products(self) -> int:
        """Returns the number of products of the batch."""
        return prod(self.batch)

    @property
    def sums(self) -> int:
        """Returns the number of all sums that are formed."""
        return self.products * self.m * self.n

    @property
    def is_on_tensor_cores(self) -> bool:
        """Whether warps multiply; else items do."""
        return self.factors != "f32"

    @property
    def axes(self) -> tuple[int, ...]:
        """Extents of all axes."""
        return self.batch + self.rows + self.columns + self.steps


def product_of(spec: MatmulSpec | ConvSpec) -> Product:
    """The contraction whose sums go through the spec's epilogue."""
    if isinstance(spec, MatmulSpec):
        product = _matmul(spec)
    else:
        product = {"forward": _forward, "input_grad": _input_grad, "weight_grad": _weight_grad}[spec.kind](spec)
    return replace(product, factors=cast(Factors, spec.products)) if spec.products else product


def sums_of(spec: MatmulSpec | ConvSpec) -> Product:
    """The contraction that makes the spec's `sums`: the rows of its second operand, times ones."""
    if isinstance(spec, MatmulSpec):
        return _column_sums(spec.n, (spec.k,), _matrix(0, (1, spec.k), (0, spec.n), spec.b_transposed))
    y = _f32(spec.n, spec.oh, spec.ow, spec.k)
    return _column_sums(spec.k, y.shape[:3], Access(y, (axis(1), axis(2), axis(3), axis(0)), 0.0))


def _column_sums(n: int, steps: tuple[int, ...], b: Access) -> Product:
    return Product((), (), (n,), steps, None, b, (axis(0),), (n,))


def _f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


def _matmul(spec: MatmulSpec) -> Product:
    """Axes (batch, m, n, k). Products that share B are one of more rows."""
    in_rows = spec.a_batched and not spec.b_batched and not spec.a_transposed
    batch: tuple[int, ...] = () if in_rows else (spec.batch,)
    rows = (spec.batch, spec.m) if in_rows else (spec.m,)
    a = _matrix(spec.batch if spec.a_batched else 0, (1, spec.m), (3, spec.k), spec.a_transposed)
    b = _matrix(spec.batch if spec.b_batched else 0, (3, spec.k), (2, spec.n), spec.b_transposed)
    point, extents = (axis(0), axis(1), axis(2)), (spec.batch, spec.m, spec.n)
    return Product(batch, rows, (spec.n,), (spec.k,), a, b, point, extents)


def _matrix(batch: int, rows: tuple[int, int], columns: tuple[int, int], transposed: bool) -> Access:
    """A matrix of (axis, extent) rows and columns; one for each of `batch`, along axis 0, if that is not 0."""
    sides = [(0, batch)] * bool(batch) + ([columns, rows] if transposed else [rows, columns])
    return Access(_f32(*(extent for _, extent in sides)), tuple(axis(number) for number, _ in sides), 0.0)


def _forward(spec: ConvSpec) -> Product:
    """Axes (group, n, oh, ow, k, kh, kw, c)."""
    c, k = spec.group
    x = (axis(1), *_in_image(spec, (2, 3), (5, 6)), _in_group(0, 7, c))
    w = (axis(5), axis(6), axis(7), _in_group(0, 4, k))
    return Product(
        (spec.groups,),
        (spec.n, spec.oh, spec.ow),
        (k,),
        (*spec.kernel, c),
        Access(_f32(spec.n, spec.h, spec.w, spec.c), x, 0.0),
        Access(_f32(*spec.weight), w, 0.0),
        (axis(1), axis(2), axis(3), _in_group(0, 4, k)),
        (spec.n, spec.oh, spec.ow, spec.k),
    )


def _weight_grad(spec: ConvSpec) -> Product:
    """Axes (group, kh, kw, c, k, n, oh, ow)."""
    c, k = spec.group
    x = (axis(5), *_in_image(spec, (6, 7), (1, 2)), _in_group(0, 3, c))
    d_y = (axis(5), axis(6), axis(7), _in_group(0, 4, k))
    return Product(
        (spec.groups,),
        (*spec.kernel, c),
        (k,),
        (spec.n, spec.oh, spec.ow),
        Access(_f32(spec.n, spec.h, spec.w, spec.c), x, 0.0),
        Access(_f32(spec.n, spec.oh, spec.ow, spec.k), d_y, 0.0),
        (axis(1), axis(2), axis(3), _in_group(0, 4, k)),
        spec.weight,
    )


def _in_group(group: int, channel: int, width: int) -> Affine:
    return Affine(((group, width), (channel, 1)))


def _in_image(spec: ConvSpec, outputs: tuple[int, int], taps: tuple[int, int]) -> tuple[Affine, ...]:
    """Rows and columns of x under the taps of a window; both are given as their axes."""
    return tuple(
        Affine(((output, stride), (tap, dilation)), -pad)
        for output, tap, stride, dilation, pad in zip(
            outputs, taps, spec.strides, spec.dilations, spec.pads[:2], strict=True
        )
    )


@dataclass(frozen=True, slots=True)
class Phases:
    """The pixels of x along one dimension by the taps that reach them, which a stride keeps apart.

    With s the stride and d the dilation, g their greatest common divisor: pixel `d tap + between + s i - pad` gets
    from outputs `i - d / g step` through the taps `tap + s / g step` if `between` is 0, else nothing. `tap` runs over
    s / g numbers, `between` over g, i over `positions` from `first`.
    """

    taps: int
    between: int
    first: int
    positions: int
    steps: int


def phases(extent: int, kernel: int, stride: int, dilation: int, pad: int) -> Phases:
    """Returns the phases of a dimension of x with `extent` pixels."""
    between = gcd(stride, dilation)
    taps = stride // between
    first = (pad - (taps - 1) * dilation - (between - 1)) // stride
    last = (extent - 1 + pad) // stride
    return Phases(taps, between, first, last - first + 1, -(-kernel // taps))


def _input_grad(spec: ConvSpec) -> Product:
    """Axes (group, two of taps, two of what is between, n, two of positions, c, two of steps, k).

    A stride would leave most products zero; by phases each pixel meets only the taps that reach it.
    """
    c, k = spec.group
    dimensions = [
        phases(*sizes)
        for sizes in zip((spec.h, spec.w), spec.kernel, spec.strides, spec.dilations, spec.pads[:2], strict=True)
    ]
    sides = list(zip((0, 1), dimensions, spec.strides, spec.dilations, spec.pads[:2], strict=True))
    y = [Affine(((6 + i, 1), (9 + i, -d // phase.between)), phase.first) for i, phase, _, d, _ in sides]
    taps = [Affine(((1 + i, 1), (9 + i, phase.taps))) for i, phase, *_ in sides]
    x = [Affine(((1 + i, d), (3 + i, 1), (6 + i, s)), s * phase.first - pad) for i, phase, s, d, pad in sides]
    # Two dimensions of one element are read outside of it, that is as 0, where no tap reaches.
    d_y = Access(
        _f32(spec.n, spec.oh, spec.ow, spec.k, 1, 1), (axis(5), *y, _in_group(0, 11, k), axis(3), axis(4)), 0.0
    )
    rows, columns = dimensions
    return Product(
        (spec.groups, rows.taps, columns.taps, rows.between, columns.between),
        (spec.n, rows.positions, columns.positions),
        (c,),
        (rows.steps, columns.steps, k),
        d_y,
        Access(_f32(*spec.weight), (*taps, axis(8), _in_group(0, 11, k)), 0.0),
        (axis(5), *x, _in_group(0, 8, c)),
        (spec.n, spec.h, spec.w, spec.c),
    )


__all__ = ["PER_WORD", "Factors", "Phases", "Product", "phases", "product_of", "sums_of"]
