"""Bringing tiles of an operand to shared memory: each step's elements side by side, 0 where there are none.

Neighbouring items fetch what are neighbours in memory, along the operand's own side (its rows or columns) or along the
steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from compiler.codegen.grid.contraction.operand import Operand, Side
from compiler.codegen.grid.contraction.product import PER_WORD, Factors
from compiler.codegen.grid.grid import Here
from compiler.codegen.grid.halves import BITS
from compiler.codegen.grid.points import place_of
from compiler.codegen.grid.tensor_cores import rounded
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value, element_of

_MOST_UNROLLED = 8
"""Elements of a tile that an item fetches, up to which it keeps where each is on its own side."""
Terms = tuple[Value, ...]
"""A term of each of an operand's forms."""
Fetched = list[tuple[Value, Value]]
"""Elements on their way to shared memory: where to, and what."""


@dataclass(frozen=True)
class SharedTile:
    """An operand's part of shared memory, from word `start`: for each of `steps`, `width` elements and a pad.

    `is_turned`: for each of `width`, `steps` elements and a pad. `factors`: what its elements are rounded to. `stored`:
    the same memory as an array of elements; if several are in a word, the shared_tile is turned.
    """

    shared: Buffer
    stored: Buffer
    start: int
    steps: int
    width: int
    pad: int
    is_turned: bool = False
    factors: Factors = "f32"

    @property
    def per_word(self) -> int:
        """Elements in a word."""
        return PER_WORD[self.factors]

    def at(self, step: Value, place: Value) -> Value:
        """Returns where the element of a step at a place of the width is, in elements."""
        start = tir.index(self.start * self.per_word)
        if self.is_turned:
            return place * tir.index(self.steps + self.pad) + step + start
        return step * tir.index(self.width + self.pad) + place + start

    def word(self, word: Value, place: Value) -> Value:
        """Returns where the word of steps number `word` at a place of the width is, in words."""
        if self.per_word == 1:
            return self.at(word, place)
        return place * tir.index((self.steps + self.pad) // self.per_word) + word + tir.index(self.start)

    def store(self, block: Block, place: Value, value: Value) -> None:
        """Puts an element where `at` says; one of sixteen bits is rounded, unless it is just bits."""
        block.store(self.stored, place, rounded(value) if self.factors == "tf32" else value)

    def takes(self, buffer: Buffer) -> bool:
        """Whether what lies in a buffer is what lies here, bit for bit."""
        return BITS.get(self.factors) == element_of(buffer)

    @property
    def elements(self) -> int:
        """Returns how many elements hold a tile."""
        return self.steps * self.width

    @property
    def end(self) -> int:
        """The first word after it."""
        size = self.elements + self.pad * (self.width if self.is_turned else self.steps)
        return self.start + size // self.per_word


class Filler(Protocol):
    """The interface of loaders that bring an operand's tiles to shared memory; all items of a group call it
    together.
    """

    def begin(self, block: Block, product: Value, first: Value) -> None:
        """Emits what all tiles of a product that begin at row or column `first` have in common."""

    def fetch(self, block: Block, start: Value) -> Fetched:
        """Reads the tile that begins at step `start`, a multiple of a tile's steps. What it does not return is stored.

        Few elements are returned, so that all of them, of both operands, are on their way before the first is waited
        for; many go to shared memory one by one.
        """


class Ones:
    """The stand-in for an operand that is all ones."""

    def __init__(self, here: Here, shared_tile: SharedTile) -> None:
        self._here, self._shared_tile = here, shared_tile

    def begin(self, block: Block, product: Value, first: Value) -> None:
        """They are the same for all tiles."""
        near, far = _shares(self._here, block, self._shared_tile.width)

        def emit_slot(inner: Block, slot: Value) -> None:
            step = far + slot * tir.index(self._here.items // self._shared_tile.width)
            self._shared_tile.store(inner, self._shared_tile.at(step, near), tir.literal(1.0, "float32"))

        block.loop(self._shared_tile.elements // self._here.items, emit_slot, name="slot")

    def fetch(self, block: Block, start: Value) -> Fetched:
        """They are there."""
        return []


class Loader:
    """An operand's tiles, out of memory.

    `extent`: of its own side; what a tile has beyond is a copy of the last. `last`: the step from which on there are
    none, if tiles go that far.
    """

    def __init__(
        self, here: Here, buffer: Buffer, operand: Operand, shared_tile: SharedTile, *, extent: int, last: int | None
    ) -> None:
        self._here, self._buffer, self._operand, self._shared_tile = here, buffer, operand, shared_tile
        self._extent, self._last = extent, last
        self._slots = shared_tile.elements // here.items
        self._near: Value = None
        self._far: Value = None
        self._first: Value = None
        self._base: Terms = ()
        self._places: list[Terms] = []

    def begin(self, block: Block, product: Value, first: Value) -> None:
        """Begins a part, as `Filler` says."""
        operand, along = self._operand, self._operand.is_along_steps
        self._first = first
        self._near, self._far = _shares(
            self._here, block, self._shared_tile.steps if along else self._shared_tile.width
        )
        batch = place_of(block, product, operand.batch.extents)
        offsets = tuple(tir.index(offset) for offset in operand.offsets)
        self._base = _sums(block, offsets, _terms(operand.batch, batch))
        if not along:
            self._places = [self._place(block, self._near)]
        elif self._slots <= _MOST_UNROLLED:
            self._places = [self._place(block, self._across(slot)) for slot in range(self._slots)]

    def fetch(self, block: Block, start: Value) -> Fetched:
        """Fetches a tile's elements, as `Filler` says."""
        whole = place_of(block, start, self._operand.steps.extents) if self._is_even else ()
        along = self._operand.is_along_steps
        fixed = self._step(block, start, whole, self._near) if along else self._places[0]

        def read_slot(inner: Block, slot: int | Value) -> tuple[Value, Value]:
            across = inner.let(self._across(slot), "across")
            if along:
                terms = self._places[slot] if isinstance(slot, int) else self._place(inner, across)
                return self._shared_tile.at(self._near, across), self._read(inner, terms, fixed, start + self._near)
            step = self._step(inner, start, whole, across)
            return self._shared_tile.at(across, self._near), self._read(inner, fixed, step, start + across)

        if self._slots <= _MOST_UNROLLED:
            return [read_slot(block, slot) for slot in range(self._slots)]
        block.loop(
            self._slots, lambda inner, slot: self._shared_tile.store(inner, *read_slot(inner, slot)), name="slot"
        )
        return []

    @property
    def _is_even(self) -> bool:
        """Whether a tile's steps differ along the last axis only."""
        extents = self._operand.steps.extents
        return len(extents) > 1 and extents[-1] % self._shared_tile.steps == 0

    def _across(self, slot: int | Value) -> Value:
        """Returns where an item's element number `slot` is, along the side on which neighbouring items are not."""
        width = self._shared_tile.steps if self._operand.is_along_steps else self._shared_tile.width
        return self._far + tir.index(slot) * tir.index(self._here.items // width)

    def _place(self, block: Block, place: Value) -> Terms:
        """Returns all but the steps' terms at a place of the tile."""
        side = self._operand.free
        number = self._first + place
        if self._extent % self._shared_tile.width:
            number = tirx.Min(number, tir.index(self._extent - 1))
        axes = place_of(block, block.let(number, "own"), side.extents)
        return _sums(block, self._base, _terms(side, axes))

    def _step(self, block: Block, start: Value, whole: tuple[Value, ...], step: Value) -> Terms:
        """The steps' terms at a step of the tile; `whole` are the axes of its start, if only the last one moves."""
        side = self._operand.steps
        axes = (*whole[:-1], whole[-1] + step) if whole else None
        return _terms(side, axes or place_of(block, block.let(start + step, "k"), side.extents))

    def _read(self, block: Block, terms: Terms, step: Terms, number: Value) -> Value:
        """The element of step `number`, whose forms these are the terms of."""
        is_bits = self._shared_tile.takes(self._buffer)
        zero = tir.literal(0, element_of(self._buffer)) if is_bits else tir.literal(0.0, "float32")
        if self._operand.never:
            return zero
        place, *positions = (term + step_term for term, step_term in zip(terms, step, strict=True))
        conditions = [] if self._last is None else [tirx.LT(number, tir.index(self._last))]
        for position, bound in zip(positions, self._operand.bounds, strict=True):
            bounded = block.let(position, "at")
            conditions += [tirx.LE(tir.index(0), bounded), tirx.LT(bounded, tir.index(bound))]
        value = tirx.BufferLoad(self._buffer, [place]) if is_bits else tir.load(self._buffer, place)
        value = tirx.if_then_else(all_of(conditions), value, zero) if conditions else value
        return block.bits(value, "x") if is_bits else block.let(value, "x")


def all_of(conditions: list[Value]) -> Value:
    """Returns one condition that holds where all (one or more) do; the first that does not hold ends the check."""
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = tirx.And(whole, condition)
    return whole


def _shares(here: Here, block: Block, width: int) -> tuple[Value, Value]:
    """An item's number in a run of `width` neighbours, and that of the run."""
    far, near = tir.divide(block, here.item, width)
    return near, far


def _terms(side: Side, axes: tuple[Value, ...]) -> Terms:
    return tuple(tir.linear(0, form, axes if side.extents else ()) for form in side.forms)


def _sums(block: Block, first: Terms, second: Terms) -> Terms:
    return tuple(block.let(x + y, "place") for x, y in zip(first, second, strict=True))
