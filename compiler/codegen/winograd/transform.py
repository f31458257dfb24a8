"""TIR of Winograd's transforms: small constant matrices applied to both axes of a tile of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.codegen.tile.register_tile import fma
from compiler.codegen.tir.tir import Block, Value, lanes_of, literal
from compiler.codegen.winograd.points import Rows

Get = Callable[[Block, int, int], Value]
Put = Callable[[Block, int, int, Value], None]


def transform(block: Block, rows: Rows, get: Get, put: Put) -> None:
    """`rows X rows'` for the square X of vectors that `get(block, i, j)` reads; results go to `put`, row by row."""
    size = len(rows[0])
    columns = [multiply(block, rows, [get(block, i, j) for i in range(size)]) for j in range(size)]
    for i in range(len(rows)):
        for j, value in enumerate(multiply(block, rows, [column[i] for column in columns])):
            put(block, i, j, value)


def multiply(block: Block, rows: Rows, values: Sequence[Value]) -> list[Value]:
    """The products of each row with `values`.

    Rows that differ in signs alone share their halves (even + odd, even - odd), and so do columns.
    """
    values = [block.let(value, "x") for value in values]
    folded = _fold_columns(block, rows, values)
    if folded is not None:
        return multiply(block, *folded)
    products: dict[int, Value] = {}
    for first, row in enumerate(rows):
        if first in products:
            continue
        second = _twin(rows, first, set(products))
        if second is None:
            products[first] = block.let(_dot(row, values), "t")
            continue
        other = rows[second]
        even = block.let(_dot([x if x == y else 0.0 for x, y in zip(row, other, strict=True)], values), "even")
        odd = block.let(_dot([x if x != y else 0.0 for x, y in zip(row, other, strict=True)], values), "odd")
        products[first], products[second] = block.let(even + odd, "t"), block.let(even - odd, "t")
    return [products[i] for i in range(len(rows))]


def _twin(rows: Rows, first: int, excluded: set[int]) -> int | None:
    """A later row with the same magnitudes, of which some signs agree and some differ."""
    row = rows[first]
    for number in range(first + 1, len(rows)):
        if number in excluded or [abs(x) for x in row] != [abs(x) for x in rows[number]]:
            continue
        agree = {x == y for x, y in zip(row, rows[number], strict=True) if x}
        if agree == {True, False}:
            return number
    return None


def _fold_columns(block: Block, rows: Rows, values: Sequence[Value]) -> tuple[Rows, list[Value]] | None:
    """Returns the same products with one pair of columns replaced by one for its sum and one for its difference; None
    if no pair is worth it.
    """
    columns = tuple(zip(*rows, strict=True))
    for first in range(len(columns)):
        second = _twin(columns, first, set())
        if second is None or sum(1 for x in columns[first] if x) < 3:
            continue
        same = tuple(x if x == y else 0.0 for x, y in zip(columns[first], columns[second], strict=True))
        opposite = tuple(x if x != y else 0.0 for x, y in zip(columns[first], columns[second], strict=True))
        changed, operands = list(columns), list(values)
        changed[first], changed[second] = same, opposite
        operands[first], operands[second] = values[first] + values[second], values[first] - values[second]
        return tuple(zip(*changed, strict=True)), operands
    return None


def _dot(coefficients: Sequence[float], values: Sequence[Value]) -> Value:
    """The sum of products, beginning with a coefficient of one if there is any."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=True) if c]
    lanes = lanes_of(values[0])
    if not terms:
        return literal(0.0, "float32", lanes)
    terms.sort(key=lambda term: term[0] != 1.0)
    coefficient, value = terms[0]
    total = value if coefficient == 1.0 else value * literal(coefficient, "float32", lanes)
    for coefficient, value in terms[1:]:
        if coefficient in (1.0, -1.0):
            total = total + value if coefficient > 0 else total - value
        else:
            total = fma(literal(coefficient, "float32", lanes), value, total, lanes)
    return total
