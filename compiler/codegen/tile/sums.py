"""Sums that leave the register tiles: partial ones in memory, and those of a matrix's columns."""

from __future__ import annotations

from compiler.codegen.tile.packing import Matrix
from compiler.codegen.tile.register_tile import SUM_BLOCK, RegisterTile, Vectors
from compiler.codegen.tile.tiling import ColumnTile
from compiler.codegen.tir.tir import Block, Buffer, Value, index, load


def store_sums(block: Block, tile: RegisterTile, buffer: Buffer, base: Value, row_stride: int) -> None:
    """Adds a tile to partial sums in memory (whole vectors, so `buffer` is padded)."""
    for row in range(tile.rows):
        for start, width in zip(tile.starts, tile.columns.widths, strict=True):
            place = base + (row * row_stride + start)
            block.store(buffer, place, load(buffer, place, width) + tile.get(row, start, width))


def sum_columns(block: Block, source: Matrix, steps: int, tile: ColumnTile, out: Buffer, base: Value) -> None:
    """Writes the sums over all `steps` of the columns of a tile to `out`, from `base` on."""
    total = RegisterTile(block, 1, tile)
    vectors = Vectors(source.buffer, source.base, source.step_stride)

    def part(body: Block, first: Value, count: int) -> None:
        inner = RegisterTile(body, 1, tile)
        inner.gather(body, vectors.at(first * source.step_stride), count)
        total.add(body, inner)

    whole = steps // SUM_BLOCK
    block.loop(whole, lambda b, i: part(b, i * SUM_BLOCK, SUM_BLOCK), name="block")
    if steps % SUM_BLOCK:
        part(block, index(whole * SUM_BLOCK), steps % SUM_BLOCK)
    for start, _, value in total.pieces(block, 0):
        block.store(out, base + start, value)
