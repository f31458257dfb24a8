"""A head's operands, and what its scores are before they become weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.attention.plan import Cut
from compiler.codegen.grid.attention.tile import Matrix, Tile
from compiler.codegen.grid.checks import guarded
from compiler.codegen.grid.functions import number
from compiler.codegen.grid.grid import Here
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.kernels.spec import AttentionSpec


@dataclass(frozen=True)
class Head:
    """A query head of one sample. Queries are [B, T, H, width], keys and values [B, S, G, width]."""

    spec: AttentionSpec
    batch: Value
    head: Value

    def of_queries(self, block: Block, buffer: Buffer, width: int) -> Matrix:
        """The head's rows of a tensor like q or y."""
        spec = self.spec
        base = (self.batch * tir.index(spec.queries * spec.heads) + self.head) * tir.index(width)
        return Matrix(buffer, block.let(base, "base"), spec.heads * width, spec.queries, width)

    def of_keys(self, block: Block, buffer: Buffer, width: int) -> Matrix:
        """The rows of a tensor like k or v that the head reads."""
        group = tir.divide(block, self.head, self.spec.heads // self.spec.groups)[0]
        return keys_of(self.spec, block, buffer, self.batch, group, width)

    def stat(self, query: Value) -> Value:
        """Returns where the highest score of a query lies among the stats; its share lies `queries` further."""
        spec = self.spec
        return (self.batch * tir.index(spec.heads) + self.head) * tir.index(2 * spec.queries) + query


def keys_of(spec: AttentionSpec, block: Block, buffer: Buffer, batch: Value, group: Value, width: int) -> Matrix:
    """The rows of one key head."""
    base = (batch * tir.index(spec.keys * spec.groups) + group) * tir.index(width)
    return Matrix(buffer, block.let(base, "base"), spec.groups * width, spec.keys, width)


def owned(here: Here, count: int, heads: int, cut: Cut) -> tuple[Value, Value, Value]:
    """(sample, head, first position) of the block that a group owns, of `count` positions."""
    rest, number = tir.divide(here.block, here.group, -(-count // cut.block))
    batch, head = tir.divide(here.block, rest, heads)
    return batch, head, here.block.let(number * tir.index(cut.block), "first")


def key_blocks(spec: AttentionSpec, cut: Cut, block: Block, first_query: Value) -> int | Value:
    """Blocks of keys up to the last that the last of a block of queries sees."""
    if not spec.causal:
        return -(-spec.keys // cut.block)
    visible_keys = first_query + tir.index(cut.block + spec.keys - spec.queries)
    last = tirx.max(tir.index(0), tirx.min(tir.index(spec.keys), visible_keys))
    return block.let(tirx.truncdiv(last + tir.index(cut.block - 1), tir.index(cut.block)), "blocks")


@dataclass(frozen=True)
class Scores:
    """Products of queries and keys to scores; `mask` is the kernel's mask."""

    tile: Tile
    head: Head
    mask: Buffer | None

    def finish(self, block: Block, products: Buffer, first_query: Value, first_key: Value) -> list[list[Value | None]]:
        """Scales and masks an item's products in place, and returns whether each is seen (None: it is)."""
        cut = self.tile.cut
        visible: list[list[Value | None]] = []
        columns = [block.let(first_key + self.tile.column(c), "key") for c in range(cut.columns)]
        for r in range(cut.rows):
            query = block.let(first_query + self.tile.row(r), "query")
            at = self._mask_row(block, query)
            for c, key in enumerate(columns):
                place = r * cut.columns + c
                scaled = tir.load(products, place) * number(self.head.spec.scale)
                block.store(products, place, scaled if at is None else scaled + self._masked(block, at, query, key))
            visible.append([self._visible(query, key) for key in columns])
        return visible

    def _mask_row(self, block: Block, query: Value) -> Value | None:
        """Returns where the mask of a query begins."""
        shape = self.head.spec.mask
        if shape is None:
            return None
        strides = _strides(shape)
        return block.let(tir.linear(0, strides[:3], (self.head.batch, self.head.head, query)), "mask")

    def _masked(self, block: Block, at: Value, query: Value, key: Value) -> Value:
        """The mask's number for a score; 0 for one that there is not."""
        spec, cut = self.head.spec, self.tile.cut
        strides = _strides(spec.mask or ())
        checks = [tirx.LT(query, tir.index(spec.queries))] if strides[2] and spec.queries % cut.block else []
        checks += [tirx.LT(key, tir.index(spec.keys))] if strides[3] and spec.keys % cut.block else []
        return guarded(block, checks, tir.load(self.mask, at + key * tir.index(strides[3])))

    def _visible(self, query: Value, key: Value) -> Value | None:
        """Whether there is such a key and the query may see it; None: always."""
        spec = self.head.spec
        is_there = tirx.LT(key, tir.index(spec.keys)) if spec.keys % self.tile.cut.block else None
        if not spec.causal:
            return is_there
        is_past = tirx.LE(key, query + tir.index(spec.keys - spec.queries))
        return is_past if is_there is None else tirx.And(is_there, is_past)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a mask; 0 along axes that it is broadcast over."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step if extent > 1 else 0)
        step *= extent
    return tuple(reversed(strides))
