"""Import row: sums of products by index letters (Einsum).

Each operand is brought to distinct letters (diagonals, sums over letters that nothing else has); then operands are
joined from the left, two at a time, as a batched matrix product over [batch, own, common] and [batch, common, own], or
as a product of elements where nothing is summed. Source: ONNX Einsum, NumPy's rules for letters and ellipses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value

Letters = tuple[str, ...]
"""Letters, one per axis; the axes of an ellipsis are numbered from its end: "..0" is its last."""


@dataclass(frozen=True, slots=True)
class _Term:
    """An operand, and the letter of each of its axes."""

    value: Value
    letters: Letters


def _einsum(call: Call) -> Operand:
    equation = call.attributes.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    if len(parts) != len(call.operands):
        call.fail(f"equation {equation[:80]!r} names {len(parts)} operands of {len(call.operands)}")
    for index in range(len(parts)):
        call.require_dtype(index, REAL)
    operand_letters = [_letters(call, part, call.rank(index)) for index, part in enumerate(parts)]
    output_letters = _letters(call, right, _rank_of(right, operand_letters)) if arrow else _implicit(operand_letters)
    _check(call, equation, operand_letters, output_letters)
    terms = [_Term(call.value(index), letters) for index, letters in enumerate(operand_letters)]
    joined = _distinct(call, terms[0], _needed(terms[1:], output_letters))
    for position, term in enumerate(terms[1:], start=1):
        needed = _needed(terms[position + 1 :], output_letters)
        reduced_term = _distinct(call, term, needed | set(joined.letters))
        joined = _joined(call, _only(call, joined, needed | set(reduced_term.letters)), reduced_term, needed)
    joined = _only(call, joined, set(output_letters))
    return call.transpose(joined.value, [joined.letters.index(letter) for letter in output_letters])


# ------------------------------------------------------------------------------------------------------------ letters


def _letters(call: Call, part: str, rank: int) -> Letters:
    """The letters of an operand's axes. Raises: ModelError for other signs, or another number of axes."""
    first, dots, last = part.partition("...")
    if any(not sign.isascii() or not sign.isalpha() for sign in first + last):
        call.fail(f"{part[:80]!r} is not letters and at most one ellipsis")
    spread = rank - len(first) - len(last)
    if spread < 0 or (spread and not dots):
        call.fail(f"{part[:80]!r} names {len(first) + len(last)} axes of a tensor of rank {rank}")
    return (*first, *(f"..{number}" for number in reversed(range(spread))), *last)


def _rank_of(right: str, operand_letters: Sequence[Letters]) -> int:
    """The ellipsis of a result has the axes of the longest one among the operands."""
    spread = {letter for letters in operand_letters for letter in letters if letter.startswith("..")}
    return len(right.replace("...", "")) + (len(spread) if "..." in right else 0)


def _implicit(operand_letters: Sequence[Letters]) -> Letters:
    """Returns the result's letters where there is no arrow: the ellipsis, then the letters that occur once, in order
    (capitals first).
    """
    every = [letter for letters in operand_letters for letter in letters]
    spread = sorted({letter for letter in every if letter.startswith("..")}, key=lambda letter: -int(letter[2:]))
    return (*spread, *sorted(letter for letter in every if letter.isalpha() and every.count(letter) == 1))


def _check(call: Call, equation: str, operand_letters: Sequence[Letters], output_letters: Letters) -> None:
    extents: dict[str, int] = {}
    for index, letters in enumerate(operand_letters):
        for letter, extent in zip(letters, call.shape(index), strict=True):
            previous = extents.get(letter, 1)
            if 1 not in (previous, extent) and previous != extent:
                call.fail(f"letter {letter!r} of {equation[:80]!r} is {previous} and {extent} elements")
            extents[letter] = max(previous, extent)
    if len(set(output_letters)) != len(output_letters) or not set(output_letters) <= extents.keys():
        call.fail(f"the result of {equation[:80]!r} names axes twice, or axes that no operand has")


def _needed(terms: Sequence[_Term], output_letters: Letters) -> set[str]:
    return {*output_letters, *(letter for term in terms for letter in term.letters)}


# ---------------------------------------------------------------------------------------------------------- one operand


def _distinct(call: Call, term: _Term, needed: set[str]) -> _Term:
    """Diagonals for letters that occur twice, and sums over those that nothing else has."""
    for letter in dict.fromkeys(term.letters):
        while term.letters.count(letter) > 1:
            term = _diagonal(call, term, letter)
    return _only(call, term, needed)


def _diagonal(call: Call, term: _Term, letter: str) -> _Term:
    """The first two axes of a letter become one: last, seen as one axis, every (n + 1)-th element of it."""
    places = [place for place, axis_letter in enumerate(term.letters) if axis_letter == letter][:2]
    shape = call.shape_of(term.value)
    rest = [place for place in range(len(shape)) if place not in places]
    extents = [shape[place] for place in places]
    extent = max(extents)
    value = call.transpose(term.value, [*rest, *places])
    # An axis of extent 1 stands for as many equal elements as the other has.
    steps = sum(step * (letter_extent > 1) for step, letter_extent in zip((extents[1], 1), extents, strict=True))
    flat = call.reshape(value, [*(shape[place] for place in rest), prod(extents)])
    index = call.constant(np.arange(extent, dtype=np.int64) * steps)
    value = call.emit("gather", flat, index, axis=len(rest))
    return _Term(value, (*(term.letters[place] for place in rest), letter))


def _only(call: Call, term: _Term, needed: set[str]) -> _Term:
    """The term summed over letters that are not needed."""
    axes = tuple(place for place, letter in enumerate(term.letters) if letter not in needed)
    if not axes:
        return term
    value = call.emit("reduce_sum", term.value, axes=axes, keepdims=False)
    return _Term(value, tuple(letter for letter in term.letters if letter in needed))


# --------------------------------------------------------------------------------------------------------- two operands


def _joined(call: Call, x: _Term, y: _Term, needed: set[str]) -> _Term:
    """The product of two terms, summed over common letters that are not needed any more."""
    x, y = _without_units(call, x, y), _without_units(call, y, x)
    common = [letter for letter in x.letters if letter in y.letters]
    batch = [letter for letter in common if letter in needed]
    summed = [letter for letter in common if letter not in needed]
    own_x = [letter for letter in x.letters if letter not in common]
    own_y = [letter for letter in y.letters if letter not in common]
    letters = (*batch, *own_x, *own_y)
    sizes = _sizes(call, x) | _sizes(call, y)
    shape = [sizes[letter] for letter in letters]
    groups = [prod(sizes[letter] for letter in group) for group in (batch, own_x, own_y, summed)]
    if not summed:
        spread = [[sizes[letter] if letter in term.letters else 1 for letter in letters] for term in (x, y)]
        left = call.reshape(_ordered(call, x, (*batch, *own_x)), spread[0])
        right = call.reshape(_ordered(call, y, (*batch, *own_y)), spread[1])
        return _Term(call.emit("mul", left, right), letters)
    left = call.reshape(_ordered(call, x, (*batch, *own_x, *summed)), [groups[0], groups[1], groups[3]])
    right = call.reshape(_ordered(call, y, (*batch, *summed, *own_y)), [groups[0], groups[3], groups[2]])
    product = call.emit("matmul", left, right, transpose_a=False, transpose_b=False)
    return _Term(call.reshape(product, shape), letters)


def _without_units(call: Call, x: _Term, y: _Term) -> _Term:
    """`x` without axes of extent 1 whose letter the other one has with more elements: they are broadcast."""
    wide = {letter for letter, extent in _sizes(call, y).items() if extent > 1}
    sizes = call.shape_of(x.value)
    remaining = [place for place, letter in enumerate(x.letters) if sizes[place] > 1 or letter not in wide]
    if len(remaining) == len(sizes):
        return x
    return _Term(
        call.reshape(x.value, [sizes[place] for place in remaining]), tuple(x.letters[place] for place in remaining)
    )


def _sizes(call: Call, term: _Term) -> dict[str, int]:
    return dict(zip(term.letters, call.shape_of(term.value), strict=True))


def _ordered(call: Call, term: _Term, letters: Letters) -> Value:
    return call.transpose(term.value, [term.letters.index(letter) for letter in letters])


ROWS: Mapping[str, Rule] = {"Einsum": _einsum}
