"""Operands whose steps lie in pairs, as instructions read them that add two products of bfloat16 at once.

A pair of elements is one word, so a product over k steps is one over k / 2 words: it has the loops, tiles and panels of
any other, and only what packs its operands, and what multiplies them, knows better.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.tile.packing import Matrix, put_square, put_zeros
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir import halves
from compiler.codegen.tir.tir import Block, Buffer, Value, dtype, element_of, index, literal, load


def pack_pairs(
    block: Block, source: Matrix, buffer: Buffer, base: Value, *, steps: int, tile: ColumnTile, lanes: int
) -> None:
    """Copy `steps` pairs of steps of the columns of `tile` to a panel at `base`; `source` counts in elements."""
    if source.column_stride == 1:
        block.loop(steps, lambda body, k: _join(body, source.at(k * 2, 0), buffer, base + k * tile.width, tile))
        return

    def square(body: Block, number: Value) -> None:
        for start in range(0, tile.width, lanes):
            columns = _columns(source.at(number * (2 * lanes), start), lanes)
            put_square(body, columns, buffer, base + number * (lanes * tile.width) + start, tile, start, lanes)

    done = steps // lanes * lanes
    block.loop(steps // lanes, square, name="square")
    block.loop(steps - done, lambda body, k: _gather(body, source.at((done + k) * 2, 0), buffer,
                                                     base + (done + k) * tile.width, tile))  # fmt: skip


def copy_pairs(block: Block, source: Buffer, first: Value, buffer: Buffer, base: Value, count: int, lanes: int) -> None:
    """Copy `count` pairs that lie side by side."""
    whole = count // lanes
    block.loop(
        whole,
        lambda body, i: body.store(buffer, base + i * lanes, _along(source, first + i * (2 * lanes), lanes)),
        name="copy",
    )
    for start, width in vector_pieces(count - whole * lanes, lanes):
        done = whole * lanes + start
        block.store(buffer, base + done, _along(source, first + 2 * done, width))


def join_rows(
    block: Block, source: Buffer, first: Value, stride: int, buffer: Buffer, base: Value, count: int, lanes: int
) -> None:
    """Pair the `count` elements from `first` on with those `stride` further."""
    whole = count // lanes

    def piece(body: Block, i: Value, width: int) -> None:
        body.store(buffer, base + i, _joined(source, first + i, stride, width))

    block.loop(whole, lambda body, i: piece(body, i * lanes, lanes), name="join")
    for start, width in vector_pieces(count - whole * lanes, lanes):
        piece(block, index(whole * lanes + start), width)


def _join(block: Block, source: Matrix, buffer: Buffer, base: Value, tile: ColumnTile) -> None:
    start = 0
    for width in tile.widths:
        valid = max(min(width, tile.valid - start), 0)
        for piece, lanes in vector_pieces(valid, width):
            at = start + piece
            block.store(buffer, base + at, _joined(source.buffer, source.base + at, source.step_stride, lanes))
        put_zeros(block, buffer, base + start, valid, width)
        start += width


def _gather(block: Block, source: Matrix, buffer: Buffer, base: Value, tile: ColumnTile) -> None:
    for column in range(tile.width):
        at = source.base + column * source.column_stride
        value = _along(source.buffer, at, 1) if column < tile.valid else literal(0.0, "float32")
        block.store(buffer, base + column, value)


def _columns(source: Matrix, lanes: int) -> Callable[[int], Value]:
    """What reads `lanes` pairs of a column, which lie side by side."""
    return lambda column: _along(source.buffer, source.base + column * source.column_stride, lanes)


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
