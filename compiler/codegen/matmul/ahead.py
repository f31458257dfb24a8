"""Prefetches of a product's tiles: lines of A, B, C and of what is read beside C that the next tiles will want."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx

from compiler.codegen.matmul.panels import Panels, Steps
from compiler.codegen.matmul.plan import MatmulPlan
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.register_tile import Place, Stream, line_of, prefetch, wide
from compiler.codegen.tile.tiling import ColumnTile
from compiler.codegen.tir.tir import Block, Buffer, Value, index
from compiler.kernels.spec import MatmulSpec


@dataclass(frozen=True)
class Span:
    """Tiles [first, end) of an axis; `whole` if that is all of them."""

    first: Value
    end: Value
    whole: bool = False


@dataclass(frozen=True)
class Ahead:
    """The streams of one product, by what follows a tile; none where the plan fetches nothing ahead."""

    spec: MatmulSpec
    plan: MatmulPlan
    panels: Panels
    c: Buffer
    epilogue: Epilogue

    def fetch_c(self, block: Block, place: Place, height: int, tile: ColumnTile) -> None:
        """Ask for the lines that the tile is going to write, or add to."""
        base = block.let(wide(place.base), "c")
        for row in range(height):
            for start in range(0, tile.valid, self.plan.precision.line):
                prefetch(block, place.buffer, base + wide(row * place.row_stride + start), write=True)

    def _beside_c(self) -> list[tuple[Buffer, int]]:
        """Returns what the epilogue reads in the layout of C: buffers, and how many elements further than in C."""
        spec = self.spec
        return [
            (buffer, access.offset)
            for buffer, access in self.epilogue.inputs
            if access.strides == (spec.m * spec.n, spec.n, 1) or (spec.batch == 1 and access.strides[1:] == (spec.n, 1))
        ]

    def next_tile(
        self, block: Block, batch: Value, rows: int, m: Value, tile: ColumnTile, number: Value
    ) -> list[Stream]:
        """Returns what the tile below reads, and writes when it is finished, if an epilogue makes that more than C
        alone.
        """
        buffers = self._beside_c()
        if not buffers or not self.plan.streams_c or self.plan.blocks > 1:
            return []
        spec = self.spec
        n = number * self.plan.columns.tile.width
        base = block.let((batch * spec.m + m + rows) * spec.n + n, "next")
        lines = -(-tile.valid // self.plan.precision.line)
        whole = Stream(self.c, base, rows * lines, write=True, run_lines=lines, run_stride=spec.n)
        updates = bool(spec.extra_outputs)  # what an update reads, it writes: C is among it
        others = [replace(whole, buffer=buffer, base=base + offset, write=updates) for buffer, offset in buffers]
        return others if updates else [whole, *others]

    def next_block(self, steps: Steps, m: Value, number: Value) -> list[Stream]:
        """This tile's part of the next block of the reduction: of A and of B, in the order in which they lie."""
        plan, spec = self.plan, self.spec
        if not plan.streams_blocks:
            return []
        tile = number * plan.row_tiles + tirx.truncdiv(m, index(plan.rows))
        share = (tile, plan.row_tiles * plan.column_tiles)
        after = steps.first + plan.k_block
        return [
            Stream.part(buffer, after * length, plan.k_block * length, share)
            for buffer, length in ((self.panels.a, spec.m), (self.panels.b, spec.n))
        ]

    def next_of_part(self, steps: Steps, part: Span, columns: Span, m: Value, number: Value) -> list[Stream]:
        """This tile's part of what the next block of the reduction reads for a block of rows and a slot's columns."""
        plan, spec, width = self.plan, self.spec, self.plan.columns.tile.width
        if not plan.streams_blocks:
            return []
        tall = min(plan.m_block // plan.rows, plan.row_tiles)
        tile = (number - columns.first) * tall + tirx.truncdiv(m, index(plan.rows)) - part.first
        tile_count = min(plan.n_block // width, plan.column_tiles)
        after, streams = steps.first + plan.k_block, []
        rows = (self.panels.a, spec.m, part.first * plan.rows, tall * plan.rows)
        for buffer, stride, first, length in (rows, (self.panels.b, spec.n, columns.first * width, tile_count * width)):
            lines = -(-min(length, stride) // line_of(buffer))
            each = -(-plan.k_block * lines // (tile_count * tall))
            base = after * stride + first
            streams.append(Stream(buffer, base, each, run_lines=lines, run_stride=stride, skip=tile * each))
        return streams

    def next_rows(self, block: Block, batch: Value, rows: int, m: Value, number: Value) -> list[Stream]:
        """Returns what the next row tile reads and writes: rows of A, of C, and of what the epilogue reads point by
        point.
        """
        spec, plan = self.spec, self.plan
        share = (number, plan.column_tiles)
        streams = []
        if plan.streams_a:
            next_row = self.panels.rows(batch, m + rows, index(0))
            streams.append(Stream.part(next_row.buffer, next_row.base, rows * spec.k, share))
        if plan.streams_c:
            base = block.let((batch * spec.m + m + rows) * spec.n, "next")
            streams.append(Stream.part(self.c, base, rows * spec.n, share, write=True))
            for buffer, offset in self._beside_c():
                streams.append(Stream.part(buffer, base + offset, rows * spec.n, share))
        return streams
