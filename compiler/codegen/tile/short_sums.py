"""Products of float16 that are summed in float16, eight in a register, over short blocks whose sums are added in f32.

Each sum of a block is two, of every other step, so that a block is twice as long as what is added up in a row: widening
a block's sums takes as long as sixteen steps of them. With u = 2^-11 a product of matrices is within
(SHORT / 2 + 2) u sum|a b| of the exact one of the same operands, and 2^-25 for each step, which is what float16 loses
of small products. A block whose sum is too large for float16 becomes infinite, and stays so in the sums in f32: such a
tile is computed again, with products in f32.
Source: N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, 4.2 (sums in blocks).
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Stream, Vectors, fma, slots, wide
from compiler.codegen.tile.tiling import ColumnTile
from compiler.codegen.tir.tir import Block, Buffer, Value, base, broadcast, dtype, index, literal, load

SHORT = 64
"""Steps of a block."""
_HALF = "float16"
_UNROLL = 4


class ShortTile(RegisterTile):
    """Accumulators in float16, two for each sum; others read their sum, widened."""

    element = _HALF

    def __init__(self, block: Block, rows: int, columns: ColumnTile) -> None:
        self._odd = {(row, at): block.local(width, _HALF, "odd") for row, at, width in slots(rows, columns)}
        self._is_odd = False
        super().__init__(block, rows, columns)

    def clear(self, block: Block) -> None:
        """Sets every accumulator to zero."""
        super().clear(block)
        for row, start, width in slots(self.rows, self.columns):
            block.store(self._odd[row, start], 0, literal(0.0, _HALF, width))

    def get(self, row: int, start: int, width: int, first: int = 0) -> Value:
        """`width` sums, from number `first` on, of those at (row, start)."""
        even, odd = (_raw(sums[row, start], index(first), width) for sums in (self._locals, self._odd))
        return tirx.Cast(dtype("float32", width), even + odd)

    def step(self, block: Block, a: Scalars, b: Vectors, position: Value) -> None:
        """Adds the products of one step of the reduction, to the other sums than the last step's."""
        sums, self._is_odd = (self._odd if self._is_odd else self._locals), not self._is_odd
        first = b.base + position * wide(b.step_stride)
        vectors = [
            _stored(block, _raw(b.buffer, first + wide(start), width), width)
            for start, width in zip(self.starts, self.columns.widths, strict=True)
        ]
        place = a.base + position * wide(a.step_stride)
        for row in range(self.rows):
            scalar = _stored(block, _raw(a.buffer, place + wide(row * a.row_stride), 1), 1)
            for start, width, vector in zip(self.starts, self.columns.widths, vectors, strict=True):
                x, y, z = (
                    _raw(slot, index(0), lanes)
                    for slot, lanes in ((scalar, 1), (vector, width), (sums[row, start], width))
                )
                added = tirx.call_llvm_pure_intrin(dtype(_HALF, width), "llvm.fma", broadcast(x, width), y, z)
                block.store(sums[row, start], 0, added)


def run_in_halves(
    block: Block, total: RegisterTile, a: Scalars, b: Vectors, steps: int, ahead: Sequence[Stream] = ()
) -> None:
    """Adds `steps` steps to a tile of zeros; fetches `ahead` in all."""
    turns = steps // SHORT

    def part(body: Block, number: Value) -> None:
        first = number * SHORT
        _add_short(body, total, a.at(first * a.step_stride), b.at(first * b.step_stride), SHORT, ahead, (number, turns))

    block.loop(turns, part, name="block")
    first_step, rest = index(turns * SHORT), steps % SHORT
    if rest:
        _add_short(
            block,
            total,
            a.at(first_step * a.step_stride),
            b.at(first_step * b.step_stride),
            rest,
            () if turns else ahead,
        )

    def add_directly(body: Block) -> None:
        for row in range(total.rows):
            row_tile = RegisterTile(body, 1, total.columns)
            row_tile.run(body, a.at(index(row * a.row_stride)), b, steps)
            total.replace(body, row, row_tile)

    # Nothing equals what is no number, nor (to TVM) differs from it.
    block.when(tirx.EQ(_nothing(block, total), literal(0.0, "float32")), lambda _: None, add_directly)


def _add_short(
    block: Block,
    total: RegisterTile,
    a: Scalars,
    b: Vectors,
    steps: int,
    ahead: Sequence[Stream],
    part: tuple[Value, int] | None = None,
) -> None:
    inner, even = ShortTile(block, total.rows, total.columns), steps // _UNROLL * _UNROLL
    if even:
        inner.run(block, a, b, even, ahead, part)
    if steps > even:
        inner.run(block, a.at(index(even * a.step_stride)), b.at(index(even * b.step_stride)), steps - even)
    total.add(block, inner)


def _nothing(block: Block, total: RegisterTile) -> Value:
    """Zero, if every sum is finite; else no number."""
    zero_or_nan = literal(0.0, "float32")
    for width in dict.fromkeys(total.columns.widths):
        mixed = literal(0.0, "float32", width)
        for row in range(total.rows):
            for start, lane_width in zip(total.starts, total.columns.widths, strict=True):
                if lane_width == width:
                    mixed = block.let(fma(total.get(row, start, width), literal(0.0, "float32", width), mixed, width))
        lanes = block.local(width)
        block.store(lanes, 0, mixed)
        for lane in range(width):
            zero_or_nan = block.let(zero_or_nan + load(lanes, lane))
    return zero_or_nan


def _raw(buffer: Buffer, flat: Value, lanes: int) -> Value:
    """Loads what lies there, not widened."""
    return tirx.BufferLoad(buffer, [flat if lanes == 1 else tirx.Ramp(flat, tirx.IntImm(base(flat), 1), lanes)])


def _stored(block: Block, value: Value, lanes: int) -> Buffer:
    """Stores a value that is read several times, and not widened, and returns where it lies."""
    slot = block.local(lanes, _HALF)
    block.store(slot, 0, value)
    return slot
