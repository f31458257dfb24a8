"""Products of bytes, four steps in a word: rows of A are rounded to whole numbers, B are the bytes of a frozen weight.

With the largest |A| of a row as 127 r, its whole numbers are within 1 / 2 of A / r. Their products with B's are summed
exactly in 32 bits, and r times the sum is within (r / 2) sum|b| of the exact product, for each column b of B, but for
the rounding of r, of the sum and of what becomes of it in f32. A row that holds NaN or Inf gives no finite number; one
whose largest is under `LEAST` counts as zeros.
Where bytes of A are shifted (`CpuTarget.byte_shift`), each sum is too large by so many times the sum of
its column of B; panels hold those behind their words, and a tile's sums lose them before they become reals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Stream, Vectors, load_wide, slots, wide
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tile.words import Words, pack_words
from compiler.codegen.tir import quads
from compiler.codegen.tir.tir import Block, Buffer, Value, broadcast, dtype, index, literal, load

LEVELS = 127
LEAST = 2.0**-118
"""The least scale of a row: the reciprocal of a smaller one, and 127 times that, might be infinite."""
_ROUNDING = 1.5 * 2**23
"""The number that is added to a small real so that its last bits are those of the nearest whole number."""
_CHAINS = 4
_LANES = 4
"""Words of a vector of ARM's."""


@dataclass(frozen=True)
class Counted:
    """The factors by which the whole numbers of a tile's rows count, and by how much its sums are too large, where A is
    shifted.
    """

    scales: Scalars
    shifts: Vectors | None


class QuadTile(RegisterTile):
    """Accumulators that are whole numbers until they are settled as `counted` says."""

    def __init__(self, block: Block, rows: int, columns: ColumnTile, counted: Counted) -> None:
        self.counted = counted
        super().__init__(block, rows, columns, "i8")

    def blocked_run(self, block: Block, a: Scalars, b: Vectors, steps: int, ahead: Sequence[Stream] = ()) -> None:
        """Whole numbers need no blocks."""
        self.run(block, a, b, steps, ahead)

    def steps(self, block: Block, a: Scalars, b: Vectors, first: Value, count: int) -> None:
        """Adds the products of `count` words; where an instruction takes a word from any place of a vector, as ARM's
        do, rows are read four words at a time.
        """
        if self.counted.shifts is not None or a.step_stride != 1 or count % _LANES or len(set(self.columns.widths)) > 1:
            super().steps(block, a, b, first, count)
            return
        width = self.columns.widths[0]
        for start in range(0, count, _LANES):
            place = a.base + first + wide(start)
            rows = [
                block.let(_whole(load_wide(a.buffer, place + wide(row * a.row_stride), _LANES), _LANES), "a")
                for row in range(self.rows)
            ]
            for lane in range(_LANES):
                left = partial(_in_every_lane, rows, lane, width)
                self.multiply(block, left, b, first + wide(start + lane))

    def settle(self, block: Block) -> None:
        """Turns the sums into reals: less what is too much, times the scale of the row."""
        scales, shifts = self.counted.scales, self.counted.shifts
        corrections = {
            start: block.let(_whole(load(shifts.buffer, shifts.base + start, width), width), "shift")
            for start, width in zip(self.starts, self.columns.widths, strict=True)
            if shifts is not None
        }
        for row, start, width in slots(self.rows, self.columns):
            sums = _whole(self.get(row, start, width), width)
            sums = sums - corrections[start] if corrections else sums
            scale = load(scales.buffer, scales.base + row * scales.row_stride)
            self.put(block, row, start, tirx.Cast(dtype("float32", width), sums) * broadcast(scale, width))


def put_column_sums(
    block: Block, b: Vectors, steps: int | Value, tile: ColumnTile, shift: int, buffer: Buffer, base: Value
) -> None:
    """Writes the sums of the columns of a panel, times the shift, as whole numbers."""
    word = tirx.IntImm("int32", int.from_bytes(bytes([shift] * quads.STEPS), "little", signed=True))
    sums = RegisterTile(block, 1, tile, "i8")
    columns = Vectors(b.buffer, block.let(wide(b.base), "b_base"), b.step_stride)
    block.loop(steps, lambda body, step: sums.multiply(body, lambda _: word, columns, wide(step)), name="step")
    for start, width in zip(sums.starts, tile.widths, strict=True):
        block.store(buffer, base + start, sums.get(0, start, width))


def round_row(
    block: Block,
    source: Buffer,
    first: Value,
    count: int,
    buffer: Buffer,
    words: Value,
    scale: Value,
    *,
    lanes: int,
    shift: int,
) -> None:
    """Rounds the `count` elements from `first` on to whole numbers, as words, and writes what they count to `scale`."""
    largest = _largest(block, source, first, count, lanes)
    block.store(buffer, scale, largest * literal(1 / LEVELS, "float32"))
    small = tirx.LT(largest, literal(LEAST, "float32"))
    inverse = block.let(tirx.Select(small, literal(0.0, "float32"), literal(LEVELS, "float32") / largest), "inverse")

    def piece(body: Block, at: Value, width: int) -> None:
        near = tirx.call_llvm_pure_intrin(
            dtype("float32", width),
            "llvm.fma",
            load(source, first + at, width),
            broadcast(inverse, width),
            literal(_ROUNDING + shift, "float32", width),
        )
        low = tirx.Cast(dtype("uint8", width), tirx.reinterpret(dtype("uint32", width), near))
        place = words + tirx.truncdiv(at, index(quads.STEPS))
        body.store(buffer, place, tirx.reinterpret(dtype("float32", width // quads.STEPS), low))

    at_once = quads.STEPS * lanes
    block.loop(count // at_once, lambda body, i: piece(body, i * at_once, at_once), name="round")
    offset = count // at_once * at_once
    for start, width in vector_pieces(count - offset, at_once):
        piece(block, index(offset + start), width)


def _largest(block: Block, source: Buffer, first: Value, count: int, lanes: int) -> Value:
    """The largest size of so many elements; none that is finite if one is not: then bits are larger than any."""
    chains = [block.local(lanes, "int32", "largest") for _ in range(_CHAINS)]
    for chain in chains:
        block.store(chain, 0, literal(0, "int32", lanes))
    turns = count // (lanes * _CHAINS)

    def grow(body: Block, chain: Buffer, at: Value, width: int) -> None:
        bits = tirx.reinterpret(dtype("int32", width), load(source, first + at, width))
        size = tirx.bitwise_and(bits, literal(0x7FFFFFFF, "int32", width))
        body.store(chain, 0, tirx.Max(load(chain, 0, width), size))

    def turn(body: Block, i: Value) -> None:
        for number, chain in enumerate(chains):
            grow(body, chain, i * (lanes * _CHAINS) + number * lanes, lanes)

    block.loop(turns, turn, name="largest")
    offset = turns * lanes * _CHAINS
    for number, (start, width) in enumerate(vector_pieces(count - offset, lanes)):
        grow(block, chains[number % _CHAINS], index(offset + start), width)
    whole = chains[0]
    for chain in chains[1:]:
        block.store(whole, 0, tirx.Max(load(whole, 0, lanes), load(chain, 0, lanes)))
    largest = load(whole, 0)
    for lane in range(1, lanes):
        largest = block.let(tirx.Max(largest, load(whole, lane)), "most")
    return block.let(tirx.reinterpret("float32", largest), "largest")


def _whole(value: Value, lanes: int) -> Value:
    """A sum as the whole number that it is."""
    return tirx.reinterpret(dtype("int32", lanes), value)


def _in_every_lane(rows: list[Value], lane: int, width: int, row: int) -> Value:
    return tirx.Shuffle([rows[row]], [index(lane)] * width)


def _bytes(buffer: Buffer, first: Value, count: int, kind: str = "int8") -> Value:
    place = first if count == 1 else tirx.Ramp(first, tirx.IntImm(str(first.ty.dtype), 1), count)
    raw = tirx.BufferLoad(buffer, [place])
    return raw if kind == "int8" else tirx.reinterpret(dtype(kind, count), raw)


def _along(buffer: Buffer, first: Value, words: int) -> Value:
    """The bytes of `words` words, which lie side by side."""
    return tirx.reinterpret(dtype("float32", words), _bytes(buffer, first, quads.STEPS * words))


def _joined(buffer: Buffer, first: Value, stride: int, lanes: int) -> Value:
    """Bytes, and those 1, 2 and 3 strides further on, as words."""
    words = None
    for step in range(quads.STEPS):
        byte = tirx.Cast(dtype("uint32", lanes), _bytes(buffer, first + step * stride, lanes, "uint8"))
        moved = byte << broadcast(tirx.IntImm("uint32", 8 * step), lanes) if step else byte
        words = moved if words is None else words | moved
    return tirx.reinterpret(dtype("float32", lanes), words)


pack_quads = partial(pack_words, words=Words(quads.STEPS, _along, _joined))
"""Copy steps, four in a word, to a panel (see `pack_words`)."""
