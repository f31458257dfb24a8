"""Operands whose steps lie in pairs, as instructions read them that add two products of bfloat16 at once."""

from __future__ import annotations

from functools import partial

from tvm import tirx

from compiler.codegen.tile.packing import transposed
from compiler.codegen.tile.tiling import vector_pieces
from compiler.codegen.tile.words import Words, pack_words
from compiler.codegen.tir import halves
from compiler.codegen.tir.tir import Block, Buffer, Value, dtype, element_of, index, load


def copy_pairs(block: Block, source: Buffer, first: Value, buffer: Buffer, base: Value, count: int, lanes: int) -> None:
    """Copies `count` pairs that lie side by side."""
    whole = count // lanes
    block.loop(
        whole,
        lambda body, i: body.store(buffer, base + i * lanes, _along(source, first + i * (2 * lanes), lanes)),
        name="copy",
    )
    for start, width in vector_pieces(count - whole * lanes, lanes):
        offset = whole * lanes + start
        block.store(buffer, base + offset, _along(source, first + 2 * offset, width))


def join_rows(
    block: Block, source: Buffer, first: Value, stride: int, buffer: Buffer, base: Value, count: int, lanes: int
) -> None:
    """Pairs the `count` elements from `first` on with those `stride` further."""
    whole = count // lanes

    def piece(body: Block, i: Value, width: int) -> None:
        body.store(buffer, base + i, _joined(source, first + i, stride, width))

    block.loop(whole, lambda body, i: piece(body, i * lanes, lanes), name="join")
    for start, width in vector_pieces(count - whole * lanes, lanes):
        piece(block, index(whole * lanes + start), width)


def turn_rows(
    block: Block,
    source: Buffer,
    first: Value,
    stride: int,
    buffer: Buffer,
    base: Value,
    distance: int,
    *,
    steps: int,
    count: int,
    lanes: int,
) -> None:
    """Pairs the rows of `count` elements from `first` on, a stride apart, and writes each column's `steps` pairs side
    by side, those of the next one `distance` further.
    """
    whole = count // lanes if steps == lanes else 0

    def square(body: Block, i: Value) -> None:
        at = first + i * lanes
        rows = [body.let(_joined(source, at + 2 * step * stride, stride, lanes), "pairs") for step in range(steps)]
        for column, pairs in enumerate(transposed(body, rows)):
            body.store(buffer, base + (i * lanes + column) * distance, pairs)

    def single(body: Block, i: Value) -> None:
        column = whole * lanes + i
        for step in range(steps):
            pair = _joined(source, first + (2 * step * stride + column), stride, 1)
            body.store(buffer, base + (column * distance + step), pair)

    block.loop(whole, square, name="square")
    block.loop(count - whole * lanes, single, name="column")


def _along(buffer: Buffer, first: Value, pairs: int) -> Value:
    """`pairs` pairs of neighbours as words, which only look like floats."""
    places = tirx.Ramp(first, _one(first), 2 * pairs)
    raw = tirx.BufferLoad(buffer, [places])
    bits = raw if element_of(buffer) == halves.BF16 else halves.rounded(halves.widened(raw), halves.BF16)
    return tirx.reinterpret(dtype("float32", pairs), bits)


def _joined(buffer: Buffer, first: Value, stride: int, lanes: int) -> Value:
    """Elements and those `stride` further on, as pairs in words."""
    low, high = (_words(buffer, first + offset, lanes) for offset in (0, stride))
    shift = tirx.IntImm("uint32", 16)
    return tirx.reinterpret(
        dtype("float32", lanes), low | (high << (tirx.Broadcast(shift, lanes) if lanes > 1 else shift))
    )


def _words(buffer: Buffer, first: Value, lanes: int) -> Value:
    raw = load(buffer, first, lanes) if element_of(buffer) != halves.BF16 else None
    bits = halves.rounded(raw, halves.BF16) if raw is not None else _bits(buffer, first, lanes)
    return tirx.Cast(dtype("uint32", lanes), bits)


def _bits(buffer: Buffer, first: Value, lanes: int) -> Value:
    return tirx.BufferLoad(buffer, [first if lanes == 1 else tirx.Ramp(first, _one(first), lanes)])


def _one(like: Value) -> Value:
    return tirx.IntImm(str(like.ty.dtype), 1)


PAIRS = Words(2, _along, _joined)
pack_pairs = partial(pack_words, words=PAIRS)
"""Copy steps in pairs to a panel (see `pack_words`)."""
