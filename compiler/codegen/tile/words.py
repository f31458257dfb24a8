"""Panels whose steps lie several in a word, as instructions read them that add several products at once.

A product over k steps is then one over k / `steps` words: it has the loops, tiles and panels of any other, and only
what packs its operands, and what multiplies them, knows better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.tile.packing import Matrix, put_square, put_zeros
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir.tir import Block, Buffer, Value, index, literal


@dataclass(frozen=True)
class Words:
    """The ways in which words are made; they only look like f32."""

    steps: int
    along: Callable[[Buffer, Value, int], Value]
    """(buffer, first, words): elements side by side."""
    joined: Callable[[Buffer, Value, int, int], Value]
    """(buffer, first, stride, words): elements side by side, each with those of the next steps, a stride apart."""


def pack_words(
    block: Block,
    source: Matrix,
    buffer: Buffer,
    base: Value,
    *,
    words: Words,
    steps: int | Value,
    tile: ColumnTile,
    lanes: int,
) -> None:
    """Copies `steps` words of the columns of `tile` to a panel at `base`; `source` counts in elements."""
    if source.column_stride == 1:
        block.loop(
            steps,
            lambda body, k: _join(body, words, source.at(k * words.steps, 0), buffer, base + k * tile.width, tile),
        )
        return

    def square(body: Block, number: Value) -> None:
        for start in range(0, tile.width, lanes):
            columns = _columns(words, source.at(number * (words.steps * lanes), start), lanes)
            put_square(body, columns, buffer, base + number * (lanes * tile.width) + start, tile, start, lanes)

    turns = steps // lanes if isinstance(steps, int) else block.let(tirx.truncdiv(steps, index(lanes)), "turns")
    block.loop(turns, square, name="square")
    first_step = turns * lanes
    block.loop(
        steps - first_step,
        lambda body, k: _gather(
            body,
            words,
            source.at((first_step + k) * words.steps, 0),
            buffer,
            base + (first_step + k) * tile.width,
            tile,
        ),
    )


def _join(block: Block, words: Words, source: Matrix, buffer: Buffer, base: Value, tile: ColumnTile) -> None:
    start = 0
    for width in tile.widths:
        valid = max(min(width, tile.valid - start), 0)
        for piece, lanes in vector_pieces(valid, width):
            at = start + piece
            block.store(buffer, base + at, words.joined(source.buffer, source.base + at, source.step_stride, lanes))
        put_zeros(block, buffer, base + start, valid, width)
        start += width


def _gather(block: Block, words: Words, source: Matrix, buffer: Buffer, base: Value, tile: ColumnTile) -> None:
    for column in range(tile.width):
        at = source.base + column * source.column_stride
        value = words.along(source.buffer, at, 1) if column < tile.valid else literal(0.0, "float32")
        block.store(buffer, base + column, value)


def _columns(words: Words, source: Matrix, count: int) -> Callable[[int], Value]:
    """Returns what reads `count` words of a column, which lie side by side."""
    return lambda column: words.along(source.buffer, source.base + column * source.column_stride, count)
