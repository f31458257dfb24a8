"""Parts that attention's two directions share: a head's packed keys, products over a block of queries, walks along
scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.attention.plan import AttentionPlan, Layout, Tiling
from compiler.codegen.tile.packing import Matrix, copy_run, pack_panel
from compiler.codegen.tile.pairs import pack_pairs
from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Vectors
from compiler.codegen.tile.tiling import Columns, ColumnTile, vector_pieces
from compiler.codegen.tir.iteration import FlatAccess, flatten_access
from compiler.codegen.tir.tir import Block, Buffer, Value, divide, index, literal, load
from compiler.element_types import SCRATCH
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.spec import AttentionSpec

Write = Callable[[Block, RegisterTile, Value, Value], None]
"""(block, finished tile, its first row, its first column)."""
Panel = Callable[[ColumnTile, Value, Value], Vectors]
"""(column tile, its number, its first column) -> where its columns are read."""


@dataclass(frozen=True)
class Product:
    """`rows` x `columns` sums of `steps` products; only the first `row_limit` rows and `column_limit` columns count."""

    rows: int
    columns: Columns
    steps: int | Value
    tile_rows: int
    row_limit: Value | None = None
    column_limit: Value | None = None
    products: str = ""
    """The kind of products, as in `MatmulSpec`; where it is set, steps are pairs."""

    def emit(self, block: Block, a: Scalars, panel: Panel, write: Write) -> None:
        """Emits every tile that holds something that counts, column tile by column tile."""

        def tile(inner: Block, rows: int, m: Value, columns: ColumnTile, number: Value) -> None:
            n = inner.let(number * self.columns.tile.width, "n")
            total = RegisterTile(inner, rows, columns, self.products)
            source, vectors = a.at(m * a.row_stride), panel(columns, number, n)
            if isinstance(self.steps, int):
                total.blocked_run(inner, source, vectors, self.steps)
            else:
                total.run(inner, source, vectors, self.steps)
            write(inner, total, m, n)

        def column(inner: Block, columns: ColumnTile, number: Value) -> None:
            self._each_row_tile(inner, lambda b, rows, m: tile(b, rows, m, columns, number))

        self._each_column_tile(block, column)

    def _each_column_tile(self, block: Block, body: Callable[[Block, ColumnTile, Value], None]) -> None:
        cut, width = self.columns, self.columns.tile.width
        tail = cut.tail
        if self.column_limit is None:
            block.loop(cut.full, lambda b, j: body(b, cut.tile, j), name="column_tile")
            if tail:
                body(block, tail, index(cut.full))
            return
        needed = tirx.truncdiv(self.column_limit + (width - 1), index(width))
        turns = block.let(tirx.min(needed, index(cut.full)), "column_tiles")
        block.loop(turns, lambda b, j: body(b, cut.tile, j), name="column_tile")
        if tail:
            beyond = tirx.LT(index(cut.full * width), self.column_limit)
            block.when(beyond, lambda b: body(b, tail, index(cut.full)))

    def _each_row_tile(self, block: Block, body: Callable[[Block, int, Value], None]) -> None:
        height = self.tile_rows
        full, rest = divmod(self.rows, height)
        if self.row_limit is None:
            block.loop(full, lambda b, i: body(b, height, b.let(i * height, "m")), name="row_tile")
            if rest:
                body(block, rest, index(full * height))
            return
        needed = tirx.truncdiv(self.row_limit + (height - 1), index(height))
        turns = block.let(tirx.min(needed, index(full)), "row_tiles")
        block.loop(turns, lambda b, i: body(b, height, b.let(i * height, "m")), name="row_tile")
        if rest:
            beyond = tirx.LT(index(full * height), self.row_limit)
            block.when(beyond, lambda b: body(b, rest, index(full * height)))


def stored(buffer: Buffer, base: Value, row_stride: int) -> Write:
    """Writes whole vectors, into padded scratch."""

    def write(block: Block, tile: RegisterTile, m: Value, n: Value) -> None:
        place = block.let(base + m * row_stride + n, "place")
        for row in range(tile.rows):
            for start, width in zip(tile.starts, tile.columns.widths, strict=True):
                block.store(buffer, place + (row * row_stride + start), tile.get(row, start, width))

    return write


@dataclass(frozen=True)
class Rows:
    """A block of queries of one head: `count` of them from `first` on.

    `limit`: keys that the last of them sees; None if all see all.
    """

    batch: Value
    head: Value
    first: Value
    count: int
    limit: Value | None


class Head:
    """The work of one thread on one head: where its operands and scratch lie."""

    def __init__(self, spec: AttentionSpec, plan: AttentionPlan, scratch: Layout, workspace: Buffer) -> None:
        self.spec, self.plan, self.scratch, self.workspace = spec, plan, scratch, workspace
        self.score_columns = plan.columns(plan.scores, spec.keys, padded=True)
        self.shared = spec.heads // spec.groups

    # ---------------------------------------------------------------------------------------------------- operands

    def place(self, slot: Value, name: str) -> Value:
        """Returns where a scratch tensor of a thread begins."""
        return slot * self.scratch.total + self.scratch.starts[name]

    def query_base(self, rows: Rows, width: int) -> Value:
        """The first element of the block in a [B, T, H, width] tensor."""
        return ((rows.batch * self.spec.queries + rows.first) * self.spec.heads + rows.head) * width

    def key_base(self, batch: Value, group: Value, width: int) -> Value:
        """The first element of a head in a [B, S, G, width] tensor."""
        return (batch * (self.spec.keys * self.spec.groups) + group) * width

    def pack_across(self, block: Block, source: Buffer, base: Value, to: Value, width: int) -> None:
        """Keys (or values) as panels with the positions side by side: [width, positions], or pairs of [width / 2]."""
        matrix = Matrix(source, base, 1, self.spec.groups * width)
        cut, steps = self.score_columns, self._steps(width)
        pack = pack_pairs if self.spec.products else pack_panel

        def panel(body: Block, tile: ColumnTile, number: Value | int) -> None:
            n = number * cut.tile.width
            place = body.let(to + n * steps, "panel")
            pack(body, matrix.at(0, n), self.workspace, place, steps=steps, tile=tile, lanes=self.plan.lanes)

        block.loop(cut.full, lambda body, j: panel(body, cut.tile, j), name="column_tile")
        if cut.tail:
            panel(block, cut.tail, cut.full)

    def across(self, base: Value, width: int) -> Panel:
        """Reads what `pack_across` wrote."""
        return lambda tile, number, n: Vectors(self.workspace, base + n * self._steps(width), tile.width)

    def _steps(self, width: int) -> int:
        """Returns the number of steps of a product of scores."""
        return width // 2 if self.spec.products else width

    def pack_rows(
        self, block: Block, source: Buffer, base: Value, stride: int, to: Value, count: int, width: int
    ) -> None:
        """Rows that lie `stride` apart, one after the other."""

        def row(body: Block, i: Value) -> None:
            source_row, row = body.let(base + i * stride, "from"), body.let(to + i * width, "to")
            copy_run(body, source, source_row, self.workspace, row, width, self.plan.lanes)

        block.loop(count, row, name="row")

    def along(self, base: Value, width: int) -> Panel:
        """Reads what `pack_rows` wrote."""
        return lambda tile, number, n: Vectors(self.workspace, base + n, width)

    # ---------------------------------------------------------------------------------------------------- products

    def scores(self, block: Block, rows: Rows, operand: tuple[Buffer, Value, int], panels: Value, to: Value) -> None:
        """The block's rows of an operand (buffer, first element, width) times every packed key or value."""
        buffer, base, width = operand
        steps = self._steps(width)
        first = block.let(tirx.truncdiv(base, index(2)), "pair") if self.spec.products else base
        a = Scalars(buffer, first, self.spec.heads * steps, 1)
        product = Product(
            rows.count,
            self.score_columns,
            steps,
            self.plan.scores.rows,
            column_limit=rows.limit,
            products=self.spec.products,
        )
        product.emit(block, a, self.across(panels, width), stored(self.workspace, to, self.plan.score_stride))

    def rows_out(self, block: Block, rows: Rows, weights: Value, operand: Value, width: int, write: Write) -> None:
        """The block's weights times the keys' rows of `operand`: [count, width]."""
        tiling: Tiling = self.plan.rows_out
        steps = self.spec.keys if rows.limit is None else rows.limit
        a = Scalars(self.workspace, weights, self.plan.score_stride, 1)
        Product(rows.count, self.plan.columns(tiling, width), steps, tiling.rows).emit(
            block, a, self.along(operand, width), write
        )

    def keys_out(self, block: Block, rows: Rows, weights: Value, operand: Value, width: int, write: Write) -> None:
        """The transposed weights times the block's rows of `operand`: [keys, width]."""
        tiling: Tiling = self.plan.keys_out
        a = Scalars(self.workspace, weights, 1, self.plan.score_stride)
        cut = self.plan.columns(tiling, width)
        Product(self.spec.keys, cut, rows.count, tiling.rows, row_limit=rows.limit).emit(
            block, a, self.along(operand, width), write
        )

    # ------------------------------------------------------------------------------------------------------ blocks

    def each_block(self, block: Block, chunk: Value, body: Callable[[Block, Value, int], None]) -> None:
        """`body(block, first query, count)` for every block of one chunk."""
        full, rest = divmod(self.spec.queries, self.plan.block_rows)
        chunks = self.plan.chunks
        turns = full if chunks == 1 else block.let(tirx.truncdiv(full + (chunks - 1) - chunk, index(chunks)), "turns")

        def emit_block(inner: Block, i: Value) -> None:
            number = i if chunks == 1 else i * chunks + chunk
            body(inner, inner.let(number * self.plan.block_rows, "first"), self.plan.block_rows)

        block.loop(turns, emit_block, name="block")
        if not rest:
            return
        first = index(full * self.plan.block_rows)
        if chunks == 1:
            body(block, first, rest)
        else:
            block.when(tirx.EQ(chunk, index(full % chunks)), lambda b: body(b, first, rest))

    def limit(self, block: Block, first: Value, count: int) -> Value | None:
        """Keys that the last query of a block sees."""
        if not self.spec.causal:
            return None
        visible_keys = first + (count + self.spec.keys - self.spec.queries)
        return block.let(tirx.max(index(0), tirx.min(index(self.spec.keys), visible_keys)), "limit")

    def pair(self, block: Block, unit: Value) -> tuple[Value, Value, Value]:
        """(batch, key/value head, chunk) of a unit of work."""
        head, chunk = divide(block, unit, self.plan.chunks)
        batch, group = divide(block, head, self.spec.groups)
        return batch, group, chunk

    # ------------------------------------------------------------------------------------------------ along a row

    def mask_access(self) -> FlatAccess | None:
        """The mask over (batch, head, query, key)."""
        shape = self.spec.mask
        if shape is None:
            return None
        terms = tuple(Affine(((axis, 1),) if extent > 1 else ()) for axis, extent in enumerate(shape))
        return flatten_access(Access(TensorType(self.spec.dtype, shape), terms), shape)

    def each_vector(
        self, block: Block, limit: Value | None, spare: int, body: Callable[[Block, Value, int], None]
    ) -> None:
        """`body(block, first key, width)` along the keys up to `limit` and at least `spare` more, or all."""
        lanes, keys = self.plan.lanes, self.spec.keys
        full = keys // lanes
        if limit is None:
            block.loop(full, lambda b, v: body(b, b.let(v * lanes, "s"), lanes), name="v")
            for start, width in vector_pieces(keys - full * lanes, lanes):
                body(block, index(full * lanes + start), width)
            return
        needed = tirx.truncdiv(limit + (spare + lanes - 1), index(lanes))
        turns = block.let(tirx.min(needed, index(full)), "vectors")
        block.loop(turns, lambda b, v: body(b, b.let(v * lanes, "s"), lanes), name="v")
        pieces = vector_pieces(keys - full * lanes, lanes)
        if pieces:

            def tail(inner: Block) -> None:
                for start, width in pieces:
                    body(inner, index(full * lanes + start), width)

            block.when(tirx.LT(index(full * lanes), limit + spare), tail)

    def masked(self, block: Block, score: Value, mask: tuple[Buffer, Value, int] | None, s: Value, width: int) -> Value:
        """The scaled score with the mask (buffer, first element of the row, stride) added."""
        scale = literal(self.spec.scale, SCRATCH.tir, width)
        if mask is None:
            return block.let(score * scale, "x")
        buffer, base, stride = mask
        added = load(buffer, base + s * stride, width, stride)
        return block.let(tirx.call_llvm_pure_intrin(str(score.ty.dtype), "llvm.fma", score, scale, added), "x")

    def visible(self, t: Value, s: Value, width: int) -> Value:
        """Whether query `t` sees the keys from `s` on."""
        last = t + (self.spec.keys - self.spec.queries)
        if width == 1:
            return tirx.LE(s, last)
        return tirx.LE(tirx.Ramp(s, index(1), width), tirx.Broadcast(last, width))


def mask_row(
    block: Block, access: FlatAccess | None, buffer: Buffer | None, place: tuple[Value, Value, Value]
) -> tuple[Buffer, Value, int] | None:
    """The mask of one query: its buffer, first element and stride along the keys."""
    if access is None or buffer is None:
        return None
    base = sum((axis * stride for axis, stride in zip(place, access.strides, strict=False) if stride), index(0))
    return buffer, block.let(base, "mask"), access.strides[3]
