"""The matrices of Winograd's convolution F(m x m, 3 x 3), made from interpolation points (Toom-Cook).

A tile of m x m outputs needs n x n inputs, n = m + 2. With A [n, m], B [n, n] and G [n, 3]

    forward          y  = A' [(G w G') * (B d B')] A          B here is what the literature calls B transposed
    weight gradient  dw = G' [(A dy A') * (B d B')] G

The product `*` is element by element, so that summed over channels (or tiles) it is n*n independent matrix products.
The points decide the error (measured in `docs/decisions`): pairs of +p and -p halve the arithmetic of the transforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

Rows = tuple[tuple[float, ...], ...]

_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    6: (Fraction(0), Fraction(1, 2), Fraction(-1, 2), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2)),
}
TAPS = 3
"""Only kernels of 3 x 3."""
SIZES = tuple(_POINTS)
"""Outputs of a tile along one axis that we have points for."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """F(outputs x outputs, 3 x 3): `a` [inputs, outputs], `b` [inputs, inputs], `g` [inputs, 3]."""

    outputs: int
    a: Rows
    b: Rows
    g: Rows

    @property
    def inputs(self) -> int:
        """Inputs of a tile along one axis."""
        return self.outputs + TAPS - 1

    @property
    def products(self) -> int:
        """Independent matrix products."""
        return self.inputs**2


@cache
def winograd(outputs: int) -> Winograd:
    """The matrices for tiles of `outputs` x `outputs`. Raises: KeyError if there are no points for that."""
    points = _POINTS[outputs]
    zero, one = Fraction(0), Fraction(1)
    a = [[p**i for i in range(outputs)] for p in points] + [[zero] * (outputs - 1) + [one]]
    g = [[p**i / _spread(p, points) for i in range(TAPS)] for p in points] + [[zero] * (TAPS - 1) + [one]]
    b = [[*_polynomial(tuple(q for q in points if q != p)), zero] for p in points] + [_polynomial(points)]
    return Winograd(outputs, _floats(a), _floats(b), _floats(g))


def transposed_rows(rows: Rows) -> Rows:
    """The transpose."""
    return tuple(zip(*rows, strict=True))


def _spread(point: Fraction, points: tuple[Fraction, ...]) -> Fraction:
    product = Fraction(1)
    for other in points:
        if other != point:
            product *= point - other
    return product


def _polynomial(roots: tuple[Fraction, ...]) -> list[Fraction]:
    """Coefficients, lowest power first, of the polynomial with these roots and leading coefficient 1."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [s - root * c for s, c in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return coefficients


def _floats(rows: list[list[Fraction]]) -> Rows:
    return tuple(tuple(float(value) for value in row) for row in rows)
