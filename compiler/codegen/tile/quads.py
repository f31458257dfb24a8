"""Products of bytes, four steps in a word: rows of A are rounded to whole numbers, B are the bytes of a frozen weight.

With the largest |A| of a row as 127 r, its whole numbers are within 1 / 2 of A / r. Their products with B's are summed
exactly in 32 bits, and r times the sum is within (r / 2) sum|b| of the exact product, for each column b of B, but for
the rounding of r, of the sum and of what becomes of it in f32. A row that holds NaN or Inf gives no finite number; one
whose largest is under `LEAST` counts as zeros.
Where bytes of A are shifted (`Target.byte_shift`), each sum is too large by so many times the sum of
its column of B; panels hold those behind their words, and a tile's sums lose them before they become reals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx

from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Stream, Vectors, load_wide, slots, wide
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tile.words import Words, pack_words
from compiler.codegen.tir import halves, quads
from compiler.codegen.tir.tir import Block, Buffer, Value, broadcast, dtype, index, literal, load

LEVELS = 127
LEAST = 2.0**-118
"""Of a row: the reciprocal of a smaller one, and 127 times that, might be infinite."""
_ROUNDING = 1.5 * 2**23
"""What is added to a real that is small, so that its last bits are those of the nearest whole number."""
_CHAINS = 4
_LANES = 4
"""Words of a vector of ARM's."""


class QuadTile(RegisterTile):
    """Accumulators that are whole numbers until `settle`."""

    def __init__(self, block: Block, rows: int, columns: ColumnTile, shift: int) -> None:
        self.shift = shift
        super().__init__(block, rows, columns)

    def blocked_run(self, block: Block, a: Scalars, b: Vectors, steps: int, ahead: Sequence[Stream] = ()) -> None:
        """Whole numbers need no blocks."""
        self.run(block, a, b, steps, ahead)

    def step(self, block: Block, a: Scalars, b: Vectors, position: Value) -> None:
        """Add the products of the four steps of a word."""
        place = a.base + position * wide(a.step_stride)
        words = [halves.pair_at(a.buffer, place + wide(row * a.row_stride)) for row in range(self.rows)]
        self._add(block, lambda row, width: broadcast(words[row], width), b, position)

    def steps(self, block: Block, a: Scalars, b: Vectors, first: Value, count: int) -> None:
        """Add the products of `count` words; where an instruction takes a word from any place of a vector, as ARM's do,
        rows are read four words at a time."""
        if self.shift or a.step_stride != 1 or count % _LANES:
            super().steps(block, a, b, first, count)
            return
        for start in range(0, count, _LANES):
            place = a.base + first + wide(start)
            rows = [
                block.let(_whole(load_wide(a.buffer, place + wide(row * a.row_stride), _LANES), _LANES), "a")
                for row in range(self.rows)
            ]
            for lane in range(_LANES):
                spread = partial(_in_every_lane, rows, lane)
                self._add(block, spread, b, first + wide(start + lane))

    def add_columns(self, block: Block, b: Vectors, steps: int | Value) -> None:
        """Add the elements of each column, times the shift (a tile of one row)."""
        word = tirx.IntImm("int32", int.from_bytes(bytes([self.shift] * quads.STEPS), "little", signed=True))
        first = block.let(wide(b.base), "b_base")
        columns = Vectors(b.buffer, first, b.step_stride)
        block.loop(
            steps,
            lambda body, step: self._add(body, lambda _, width: broadcast(word, width), columns, wide(step)),
            name="step",
        )

    def _add(self, block: Block, spread: Callable[[int, int], Value], b: Vectors, position: Value) -> None:
        """`spread(row, width)`: a row's word in every lane."""
        first = b.base + position * wide(b.step_stride)
        vectors = [
            block.let(load_wide(b.buffer, first + wide(start), width), "b")
            for start, width in zip(self.starts, self.columns.widths, strict=True)
        ]
        for row in range(self.rows):
            words = {width: block.let(spread(row, width), "a") for width in dict.fromkeys(self.columns.widths)}
            for start, width, vector in zip(self.starts, self.columns.widths, vectors, strict=True):
                self.put(block, row, start, quads.dot(words[width], vector, self.get(row, start, width), width))

    def store_words(self, block: Block, buffer: Buffer, base: Value) -> None:
        """Write the sums of the first row as they are."""
        for start, width in zip(self.starts, self.columns.widths, strict=True):
            block.store(buffer, base + start, self.get(0, start, width))

    def settle(self, block: Block, scales: Scalars, shifts: Vectors | None) -> None:
        """Make reals of the sums: less `shifts`, if there are any, times the scale of the row."""
        taken = {
            start: block.let(_whole(load(shifts.buffer, shifts.base + start, width), width), "shift")
            for start, width in zip(self.starts, self.columns.widths, strict=True)
            if shifts is not None
        }
        for row, start, width in slots(self.rows, self.columns):
            sums = _whole(self.get(row, start, width), width)
            sums = sums - taken[start] if taken else sums
            scale = load(scales.buffer, scales.base + row * scales.row_stride)
            self.put(block, row, start, tirx.Cast(dtype("float32", width), sums) * broadcast(scale, width))


def round_row(
    block: Block, source: Buffer, first: Value, count: int, buffer: Buffer, words: Value, scale: Value, *, lanes: int,
    shift: int,
) -> None:  # fmt: skip
    """Round the `count` elements from `first` on to whole numbers, as words, and write what they count to `scale`."""
    largest = _largest(block, source, first, count, lanes)
    block.store(buffer, scale, largest * literal(1 / LEVELS, "float32"))
    small = tirx.LT(largest, literal(LEAST, "float32"))
    inverse = block.let(tirx.Select(small, literal(0.0, "float32"), literal(LEVELS, "float32") / largest), "inverse")

    def piece(body: Block, at: Value, width: int) -> None:
        near = tirx.call_llvm_pure_intrin(
            dtype("float32", width), "llvm.fma", load(source, first + at, width), broadcast(inverse, width),
            literal(_ROUNDING + shift, "float32", width),
        )  # fmt: skip
        low = tirx.Cast(dtype("uint8", width), tirx.reinterpret(dtype("uint32", width), near))
        place = words + tirx.truncdiv(at, index(quads.STEPS))
        body.store(buffer, place, tirx.reinterpret(dtype("float32", width // quads.STEPS), low))

    at_once = quads.STEPS * lanes
    block.loop(count // at_once, lambda body, i: piece(body, i * at_once, at_once), name="round")
    done = count // at_once * at_once
    for start, width in vector_pieces(count - done, at_once):
        piece(block, index(done + start), width)


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
    done = turns * lanes * _CHAINS
    for number, (start, width) in enumerate(vector_pieces(count - done, lanes)):
        grow(block, chains[number % _CHAINS], index(done + start), width)
    whole = chains[0]
    for chain in chains[1:]:
        block.store(whole, 0, tirx.Max(load(whole, 0, lanes), load(chain, 0, lanes)))
    found = load(whole, 0)
    for lane in range(1, lanes):
        found = block.let(tirx.Max(found, load(whole, lane)), "most")
    return block.let(tirx.reinterpret("float32", found), "largest")


def _whole(value: Value, lanes: int) -> Value:
    """A sum as the whole number that it is."""
    return tirx.reinterpret(dtype("int32", lanes), value)


def _in_every_lane(rows: list[Value], lane: int, row: int, width: int) -> Value:
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
    found = None
    for step in range(quads.STEPS):
        byte = tirx.Cast(dtype("uint32", lanes), _bytes(buffer, first + step * stride, lanes, "uint8"))
        moved = byte << broadcast(tirx.IntImm("uint32", 8 * step), lanes) if step else byte
        found = moved if found is None else found | moved
    return tirx.reinterpret(dtype("float32", lanes), found)


pack_quads = partial(pack_words, words=Words(quads.STEPS, _along, _joined))
"""Copy steps, four in a word, to a panel (see `pack_words`)."""
