"""The inner kernel of every contraction: a tile of accumulators in registers, fed along the reduction.

A tile is `rows` x `widths`: each row holds vectors of the given widths side by side. One step of the reduction loads
the vectors of one row of B, and for each row broadcasts one element of A into multiply-adds. LLVM keeps the
accumulators in registers, since every index into them is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx

from compiler.codegen.tile.precision import LINE_BYTES
from compiler.codegen.tile.tiling import ColumnTile, unroll_of, vector_pieces
from compiler.codegen.tir import halves, quads
from compiler.codegen.tir.tir import Block, Buffer, Value, base, broadcast, dtype, index, literal, load, load_at

SUM_BLOCK = 256
"""Longest run of products that one accumulator sums; longer ones are summed block by block, for accuracy."""
_CHAINS = 8
"""Independent additions that keep the pipelines full."""


@dataclass(frozen=True)
class Scalars:
    """Operand A: element (row, step) lies at `base + row * row_stride + step * step_stride`."""

    buffer: Buffer
    base: Value
    row_stride: int
    step_stride: int

    def at(self, offset: Value) -> Scalars:
        """Returns the same scalars, `offset` elements further."""
        return replace(self, base=self.base + offset)


@dataclass(frozen=True)
class Vectors:
    """Operand B: the columns of step `s` begin at `base + s * step_stride`."""

    buffer: Buffer
    base: Value
    step_stride: int

    def at(self, offset: Value) -> Vectors:
        """Returns the same vectors, `offset` elements further."""
        return replace(self, base=self.base + offset)


def fma(x: Value, y: Value, z: Value, lanes: int) -> Value:
    """`x * y + z`, rounded once."""
    return tirx.call_llvm_pure_intrin(dtype("float32", lanes), "llvm.fma", x, y, z)


def wide(value: Value | int) -> Value:
    """An int64 index: 32-bit ones cost LLVM an extension for every address of the inner loop."""
    if isinstance(value, int):
        return tirx.IntImm("int64", value)
    return value if base(value) == "int64" else tirx.Cast("int64", value)


def load_wide(buffer: Buffer, flat: Value, lanes: int) -> Value:
    """`lanes` consecutive elements from an int64 index."""
    return load_at(buffer, flat if lanes == 1 else tirx.Ramp(flat, wide(1), lanes))


@dataclass(frozen=True)
class Stream:
    """`lines` cache lines from an element on that a later tile will read or write; in runs of `run_lines` that begin
    `run_stride` elements apart, if given. `near`: into the first-level cache, not only the second. `skip`: lines of
    the runs that others fetch before these.

    A tile touches its rows side by side, where memory's own prefetching loses the thread; asking for the next tile's
    lines, in order, while this one is computed makes products bound by memory up to twice as fast (measured).
    """

    buffer: Buffer
    base: Value
    lines: int
    write: bool = False
    run_lines: int = 0
    run_stride: int = 0
    near: bool = True
    skip: Value | int = 0

    @staticmethod
    def part(buffer: Buffer, base: Value, elements: int, share: tuple[Value, int], *, write: bool = False) -> Stream:
        """Part `share[0]` of `share[1]` of the `elements` elements from `base` on."""
        (number, parts), line = share, line_of(buffer)
        lines = -(-elements // (line * parts))
        return Stream(buffer, base + number * (lines * line), lines, write)

    def fetch(self, block: Block, turn: Value, turns: int) -> None:
        """Prefetches the lines that fall to one of `turns` turns of a loop (`turn` is an int64)."""
        each, size = -(-self.lines // turns), line_of(self.buffer)
        for line in range(each):
            number = turn * wide(each) + wide(line) + wide(self.skip)
            flat = wide(self.base) + number * wide(size)
            if self.run_lines:
                run = block.let(tirx.truncdiv(number, wide(self.run_lines)), "run")
                flat += run * wide(self.run_stride - self.run_lines * size)
            prefetch(block, self.buffer, flat, write=self.write, near=self.near)


def line_of(buffer: Buffer) -> int:
    """Elements of a buffer in a cache line."""
    return LINE_BYTES * 8 // int(buffer.dtype.bits)


def prefetch(block: Block, buffer: Buffer, flat: Value, *, write: bool = False, near: bool = True) -> None:
    """Prefetches the cache line of an element into the first-level cache, or (not `near`) only into the second.

    An address past the end does no harm.
    """
    address = tirx.address_of(tirx.BufferLoad(buffer, [flat]))
    kind = (index(int(write)), index(3 if near else 2), index(1))
    block.add(tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *kind)))


def _wide_loop(block: Block, turns: int | Value, body: Callable[[Block, Value], None]) -> None:
    """A serial loop that counts in int64."""
    if isinstance(turns, int) and turns <= 1:
        if turns:
            body(block, wide(0))
        return
    inner, variable = Block(), tirx.Var("k", "int64")
    body(inner, variable)
    block.add(tirx.For(variable, wide(0), wide(turns), tirx.ForKind.SERIAL, inner.statement()))


def slots(rows: int, columns: ColumnTile) -> list[tuple[int, int, int]]:
    """(row, first column, width) of every accumulator of a tile."""
    starts = [sum(columns.widths[:number]) for number in range(len(columns.widths))]
    return [(row, start, width) for row in range(rows) for start, width in zip(starts, columns.widths, strict=True)]


class RegisterTile:
    """Accumulators of `rows` x `columns` in `block`, zero at first."""

    element = "float32"

    def __init__(self, block: Block, rows: int, columns: ColumnTile, products: str = "") -> None:
        self.rows, self.columns, self.products = rows, columns, products
        self.starts = tuple(sum(columns.widths[:i]) for i in range(len(columns.widths)))
        self.allocate(block)
        self.clear(block)

    def allocate(self, block: Block) -> None:
        """Allocates the sums: one array per accumulator, as LLVM does not take a large one apart."""
        places = slots(self.rows, self.columns)
        self._locals = {(row, at): block.local(width, self.element, "acc") for row, at, width in places}

    def fresh(self, block: Block) -> RegisterTile:
        """Another one of this shape, zero at first."""
        return RegisterTile(block, self.rows, self.columns, self.products)

    def clear(self, block: Block) -> None:
        """Sets every accumulator to zero."""
        for row, start, width in slots(self.rows, self.columns):
            self.put(block, row, start, literal(0.0, self.element, width))

    def get(self, row: int, start: int, width: int, first: int = 0) -> Value:
        """`width` elements, from number `first` on, of the accumulator at (row, start)."""
        return load(self._locals[row, start], first, width)

    def put(self, block: Block, row: int, start: int, value: Value) -> None:
        """Sets the accumulator at (row, start)."""
        block.store(self._locals[row, start], 0, value)

    def step(self, block: Block, a: Scalars, b: Vectors, position: Value) -> None:
        """Adds the products of one step of the reduction; `position` is an int64."""
        place = a.base + position * wide(a.step_stride)
        read = halves.pair_at if self.products else partial(load_wide, lanes=1)
        self.multiply(block, lambda row: read(a.buffer, place + wide(row * a.row_stride)), b, position)

    def multiply(self, block: Block, left: Callable[[int], Value], b: Vectors, position: Value) -> None:
        """Adds the products of one step, given A's part of each row, for every lane or of all of them."""
        first = b.base + position * wide(b.step_stride)
        vectors = [
            block.let(load_wide(b.buffer, first + wide(start), width), "b")
            for start, width in zip(self.starts, self.columns.widths, strict=True)
        ]
        for row in range(self.rows):
            element = left(row)
            spread = {width: block.let(broadcast(element, width), "a") for width in dict.fromkeys(self.columns.widths)}
            for start, width, vector in zip(self.starts, self.columns.widths, vectors, strict=True):
                added = _ADDED[self.products](spread[width], vector, self.get(row, start, width), width)
                self.put(block, row, start, added)

    def settle(self, block: Block) -> None:
        """Makes the sums the reals that they stand for: they may leave the registers now."""

    def steps(self, block: Block, a: Scalars, b: Vectors, first: Value, count: int) -> None:
        """Adds the products of `count` steps, written out one after the other; `first` is an int64."""
        for step in range(count):
            self.step(block, a, b, first + wide(step))

    def gather(self, block: Block, b: Vectors, steps: int | Value) -> None:
        """Adds the vectors of `steps` steps themselves, without an A (a tile of one row).

        Neighbouring steps are added to sums of their own, so that additions need not wait for each other.
        """
        b = replace(b, base=block.let(wide(b.base), "b_base"))
        count = max(1, _CHAINS // len(self.columns.widths))
        chains = [self, *(RegisterTile(block, 1, self.columns) for _ in range(count - 1))]
        turns = steps // count if isinstance(steps, int) else block.let(tirx.truncdiv(steps, index(count)), "turns")
        first_step = turns * count

        def step(body: Block, total: RegisterTile, position: Value) -> None:
            first = b.base + position * wide(b.step_stride)
            for start, width in zip(self.starts, self.columns.widths, strict=True):
                total.put(body, 0, start, total.get(0, start, width) + load_wide(b.buffer, first + wide(start), width))

        def turn(body: Block, number: Value) -> None:
            for i, total in enumerate(chains):
                step(body, total, number * wide(count) + wide(i))

        _wide_loop(block, turns, turn)
        _wide_loop(block, steps - first_step, lambda body, rest: step(body, self, wide(first_step) + rest))
        for other in chains[1:]:
            self.add(block, other)

    def run(
        self,
        block: Block,
        a: Scalars,
        b: Vectors,
        steps: int | Value,
        ahead: Sequence[Stream] = (),
        part: tuple[Value, int] | None = None,
    ) -> None:
        """Adds the products of `steps` steps (any length), a few of them per turn of the loop.

        `ahead` is fetched meanwhile; it needs a length known beforehand. `part` says which one of how many this is.
        """
        a = replace(a, base=block.let(wide(a.base), "a_base"))
        b = replace(b, base=block.let(wide(b.base), "b_base"))
        self.run_from(block, a, b, steps, ahead, part or (index(0), 1))

    def run_from(
        self, block: Block, a: Scalars, b: Vectors, steps: int | Value, ahead: Sequence[Stream], part: tuple[Value, int]
    ) -> None:
        """Does the same as `run`, from places that are computed already."""
        unroll = unroll_of(steps) if isinstance(steps, int) else 4
        turns = steps // unroll if isinstance(steps, int) else block.let(tirx.truncdiv(steps, index(unroll)), "turns")

        streams = [replace(stream, base=block.let(wide(stream.base), "ahead")) for stream in ahead]
        which, parts = part
        before = block.let(wide(which * turns), "before") if parts > 1 and ahead else wide(0)

        def turn(body: Block, number: Value) -> None:
            for stream in streams:
                stream.fetch(body, before + number, turns * parts)
            self.steps(body, a, b, number * wide(unroll), unroll)

        _wide_loop(block, turns, turn)
        if isinstance(steps, int):
            for position in range(turns * unroll, steps):
                self.step(block, a, b, wide(position))
            return
        first_step = block.let(wide(turns * unroll), "done")
        _wide_loop(block, steps - turns * unroll, lambda body, rest: self.step(body, a, b, first_step + rest))

    def blocked_run(self, block: Block, a: Scalars, b: Vectors, steps: int, ahead: Sequence[Stream] = ()) -> None:
        """Adds `steps` steps in blocks of `SUM_BLOCK`, each summed on its own and then added; fetches `ahead` in
        all.
        """
        if steps <= 3 * SUM_BLOCK // 2:
            self.run(block, a, b, steps, ahead)
            return
        whole = steps // SUM_BLOCK

        def part(body: Block, number: Value) -> None:
            inner = self.fresh(body)
            inner.run(body, *_shifted(a, b, number * SUM_BLOCK), SUM_BLOCK, ahead, (number, whole))
            self.add(body, inner)

        block.loop(whole, part, name="block")
        if steps % SUM_BLOCK:
            inner = self.fresh(block)
            inner.run(block, *_shifted(a, b, index(whole * SUM_BLOCK)), steps % SUM_BLOCK)
            self.add(block, inner)

    def add(self, block: Block, other: RegisterTile) -> None:
        """Adds another tile's accumulators."""
        for row, start, width in slots(self.rows, self.columns):
            self.put(block, row, start, self.get(row, start, width) + other.get(row, start, width))

    def replace(self, block: Block, row: int, other: RegisterTile) -> None:
        """Sets the accumulators of a row to those of a tile of one row."""
        for start, width in zip(self.starts, self.columns.widths, strict=True):
            self.put(block, row, start, other.get(0, start, width))

    def store(self, block: Block, place: Place, earlier: Place | None = None) -> None:
        """Writes the valid columns to `place`, added to what lies in `earlier` if given."""
        for row in range(self.rows):
            for start, lanes, value in self.pieces(block, row):
                if earlier is not None:
                    value = value + earlier.load(row, start, lanes)
                block.store(place.buffer, place.base + (row * place.row_stride + start), value)

    def pieces(self, block: Block, row: int) -> list[tuple[int, int, Value]]:
        """(first column, width, value) that cover exactly the valid columns of one row."""
        parts: list[tuple[int, int, Value]] = []
        for start, width in zip(self.starts, self.columns.widths, strict=True):
            valid = min(width, self.columns.valid - start)
            for piece, lanes in vector_pieces(max(valid, 0), width):
                parts.append((start + piece, lanes, self.get(row, start, lanes, piece)))
        return parts


_ADDED: Mapping[str, Callable[[Value, Value, Value, int], Value]] = {"": fma, "bf16": halves.dot, "i8": quads.dot}
"""Functions that add a step's products to sums, by what is multiplied."""


def _shifted(a: Scalars, b: Vectors, position: Value) -> tuple[Scalars, Vectors]:
    return a.at(position * a.step_stride), b.at(position * b.step_stride)


@dataclass(frozen=True)
class Place:
    """The place where a tile is stored: its first element, the distance of rows, and the spec's axes of an element."""

    buffer: Buffer
    base: Value
    row_stride: int
    row_axis: int
    axes: Callable[[int, int], tuple[Value, ...]]
    """(row, column) of the tile -> the output's axes, the last of which is the column's."""

    def load(self, row: int, start: int, lanes: int) -> Value:
        """Loads what lies there."""
        return load(self.buffer, self.base + (row * self.row_stride + start), lanes)
