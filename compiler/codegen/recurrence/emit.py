"""TIR of recurrent layers: per step a product with the packed recurrent weight, then the cell along each row.

A cell's arithmetic on vectors of a kernel; every result is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.recurrence.plan import plan, workspace_bytes
from compiler.codegen.tile.packing import Matrix, copy_run, pack_panel
from compiler.codegen.tile.register_tile import RegisterTile, Scalars, Vectors
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir import scalar_math
from compiler.codegen.tir.tir import Block, Buffer, Operands, PrimFunc, Value, declare, finish, index, literal, load
from compiler.element_types import SCRATCH
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from compiler.targets import CpuTarget


@dataclass(frozen=True)
class VectorArithmetic:
    """Writes to a block; see `compiler.kernels.cells.Arithmetic`."""

    block: Block
    width: int

    def add(self, x: Value, y: Value) -> Value:
        return self.block.let(x + y, "sum")

    def sub(self, x: Value, y: Value) -> Value:
        return self.block.let(x - y, "difference")

    def mul(self, x: Value, y: Value) -> Value:
        return self.block.let(x * y, "product")

    def rest(self, x: Value) -> Value:
        return self.block.let(literal(1.0, SCRATCH.tir, self.width) - x, "rest")

    def sigmoid(self, x: Value) -> Value:
        return self.block.let(scalar_math.sigmoid(self.block, x), "sigmoid")

    def tanh(self, x: Value) -> Value:
        return self.block.let(scalar_math.tanh(self.block, x), "tanh")

    def relu(self, x: Value) -> Value:
        return self.where_positive(x, x)

    def where_positive(self, x: Value, y: Value) -> Value:
        zero = literal(0.0, SCRATCH.tir, self.width)
        return self.block.let(tirx.Select(tirx.LE(x, zero), zero, y), "part")


def emit(spec: RecurrenceSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a layer or of its gradient."""
    operands = declare(spec, workspace_bytes(spec, target, threads))
    body = Block()
    kernel = _Forward if spec.kind == "forward" else _Backward
    kernel(spec, target, threads, operands).emit(body)
    return finish(spec, operands, body)


class _Recurrence:
    """The base of both directions: panels, threads, products, walks along rows."""

    def __init__(self, spec: RecurrenceSpec, target: CpuTarget, threads: int, operands: Operands) -> None:
        self.spec, self.cell, self.plan = spec, CELLS[spec.cell], plan(spec, target, threads)
        self.workspace: Buffer = operands.workspace
        self.gates, self.states = self.cell.gates * spec.width, self.cell.states * spec.width

    def pack(self, block: Block, matrix: Matrix) -> None:
        """The recurrent weight as panels [terms, columns]."""
        cut = self.plan.columns

        def panel(body: Block, tile: ColumnTile, number: Value | int) -> None:
            n = number * cut.tile.width
            place = body.let(index(n * self.plan.terms), "panel")
            source = matrix.at(0, n)
            pack_panel(body, source, self.workspace, place, steps=self.plan.terms, tile=tile, lanes=self.plan.lanes)

        def several(body: Block, slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: panel(b, cut.tile, b.let(first + i, "number")), name="panel")

        if cut.full:
            share_out(block, min(self.plan.slots, cut.full), cut.full, several)
        if cut.tail:
            panel(block, cut.tail, cut.full)

    def each_share(self, block: Block, body: Callable[[Block, Value, Value], None]) -> None:
        """`body(block, first sample, number of samples)` in every thread."""

        def emit_slot(inner: Block, slot: Value, first: Value, end: Value) -> None:
            body(inner, first, inner.let(end - first, "samples"))

        share_out(block, self.plan.slots, self.spec.batch, emit_slot)

    def factors(self, block: Block, first: Value) -> Value:
        """Returns where in the workspace the numbers that a share multiplies begin."""
        return block.let(first * self.plan.stride + self.plan.factors, "factors")

    def multiply(
        self,
        block: Block,
        a: Scalars,
        samples: Value,
        write: Callable[[Block, RegisterTile, Value, Value], None],
    ) -> None:
        """Rows of `a` times the panels; `write(block, tile, first row, first column)` takes what comes out."""
        cut, height = self.plan.columns, self.plan.rows
        tiles = block.let(tirx.truncdiv(samples, index(height)), "tiles")
        full_rows = block.let(tiles * height, "done")

        def tile(inner: Block, rows: int, m: Value, shape: ColumnTile, n: Value) -> None:
            total = RegisterTile(inner, rows, shape)
            panel = Vectors(self.workspace, n * self.plan.terms, shape.width)
            total.blocked_run(inner, a.at(m * a.row_stride), panel, self.plan.terms)
            write(inner, total, m, n)

        def column(inner: Block, shape: ColumnTile, n: Value) -> None:
            inner.loop(tiles, lambda b, i: tile(b, height, b.let(i * height, "m"), shape, n), name="rows")
            if height > 1:
                inner.loop(
                    samples - full_rows, lambda b, i: tile(b, 1, b.let(full_rows + i, "m"), shape, n), name="row"
                )

        block.loop(cut.full, lambda b, j: column(b, cut.tile, b.let(j * cut.tile.width, "n")), name="columns")
        if cut.tail:
            column(block, cut.tail, index(cut.full * cut.tile.width))

    def along(self, block: Block, samples: Value, body: Callable[[Block, Value, Value, int], None]) -> None:
        """`body(block, sample, column, width)` along the layer's width for every sample of a share."""
        lanes, width = self.plan.lanes, self.spec.width

        def row(inner: Block, m: Value) -> None:
            whole = width // lanes
            inner.loop(whole, lambda b, v: body(b, m, b.let(v * lanes, "column"), lanes), name="v")
            for start, piece in vector_pieces(width - whole * lanes, lanes):
                body(inner, m, index(whole * lanes + start), piece)

        block.loop(samples, row, name="sample")

    def parts(self, block: Block, buffer: Buffer, base: Value, column: Value, width: int, count: int) -> list[Value]:
        """`count` tensors of the layer's width that lie side by side from `base` on."""
        start = block.let(base + column, "from")
        return [block.let(load(buffer, start + i * self.spec.width, width), "part") for i in range(count)]

    def put(self, block: Block, buffer: Buffer, base: Value, column: Value, values: Sequence[Value]) -> None:
        """The inverse of `parts`."""
        start = block.let(base + column, "to")
        for i, value in enumerate(values):
            block.store(buffer, start + i * self.spec.width, value)


class _Forward(_Recurrence):
    def __init__(self, spec: RecurrenceSpec, target: CpuTarget, threads: int, operands: Operands) -> None:
        super().__init__(spec, target, threads, operands)
        self.x, self.r, self.start, *bias = operands.inputs
        self.bias = bias[0] if bias else None
        self.y, *saved = operands.outputs
        self.saved = saved[0] if saved else None

    def emit(self, block: Block) -> None:
        """Panels, then every thread's samples."""
        self.pack(block, Matrix(self.r, index(0), 1, self.spec.width))
        self.each_share(block, self._share)

    def _share(self, block: Block, first: Value, samples: Value) -> None:
        states, stride = self.factors(block, first), self.plan.stride

        def begin(inner: Block, m: Value) -> None:
            source, to = inner.let((first + m) * self.states, "start"), inner.let(states + m * stride, "state")
            copy_run(inner, self.start, source, self.workspace, to, self.states, self.plan.lanes)

        block.loop(samples, begin, name="sample")
        products = block.let(first * self.plan.columns.padded + self.plan.products, "products")

        def step(inner: Block, number: Value) -> None:
            at = self.spec.steps - 1 - number if self.spec.reverse else number
            row = inner.let(at * self.spec.batch + first, "row")
            a = Scalars(self.workspace, states, stride, 1)
            self.multiply(inner, a, samples, self._keep(products))
            self.along(inner, samples, lambda b, m, c, w: self._cell(b, m, row, states, products, c, w))

        block.loop(self.spec.steps, step, name="step")

    def _keep(self, products: Value) -> Callable[[Block, RegisterTile, Value, Value], None]:
        stride = self.plan.columns.padded

        def write(block: Block, tile: RegisterTile, m: Value, n: Value) -> None:
            place = block.let(products + m * stride + n, "place")
            for row in range(tile.rows):
                for start, width in zip(tile.starts, tile.columns.widths, strict=True):
                    block.store(self.workspace, place + (row * stride + start), tile.get(row, start, width))

        return write

    def _cell(
        self, block: Block, m: Value, row: Value, states: Value, products: Value, column: Value, width: int
    ) -> None:
        cell, at = self.cell, block.let(row + m, "at")
        x = self.parts(block, self.x, at * self.gates, column, width, cell.gates)
        product_base = block.let(products + m * self.plan.columns.padded, "own")
        product = self.parts(block, self.workspace, product_base, column, width, cell.gates)
        state = block.let(states + m * self.plan.stride, "state")
        before = self.parts(block, self.workspace, state, column, width, cell.states)
        bias = None if self.bias is None else block.let(load(self.bias, column, width), "bias")
        outputs = cell.forward(VectorArithmetic(block, width), x, product, before, bias)
        self.put(block, self.workspace, state, column, outputs.states)
        self.put(block, self.y, at * self.states, column, outputs.states)
        if self.saved is not None:
            self.put(block, self.saved, at * (cell.saved * self.spec.width), column, outputs.saved)


class _Backward(_Recurrence):
    def __init__(self, spec: RecurrenceSpec, target: CpuTarget, threads: int, operands: Operands) -> None:
        super().__init__(spec, target, threads, operands)
        self.r, self.start, self.y, *saved, self.d_y = operands.inputs
        self.saved = saved[0] if saved else None
        self.d_x, self.d_start, *products = operands.outputs
        self.d_products = products[0] if products else None

    def emit(self, block: Block) -> None:
        """Panels, then every thread's samples; `d_start` carries the states' gradients from step to step."""
        self.pack(block, Matrix(self.r, index(0), self.spec.width, 1))
        self.each_share(block, self._share)

    def _share(self, block: Block, first: Value, samples: Value) -> None:
        carried_base = block.let(first * self.states, "carried")
        zero = literal(0.0, SCRATCH.tir)
        block.loop(samples * self.states, lambda b, i: b.store(self.d_start, carried_base + i, zero), name="zero")
        last = self.spec.steps - 1

        def step(inner: Block, number: Value) -> None:
            at = number if self.spec.reverse else last - number
            row = inner.let(at * self.spec.batch + first, "row")
            back = inner.let(row + (self.spec.batch if self.spec.reverse else -self.spec.batch), "back")
            self._cells(inner, number, samples, row, back, first)
            a = Scalars(self.workspace, self.factors(inner, first), self.plan.stride, 1)
            self.multiply(inner, a, samples, self._carry(carried_base))

        block.loop(self.spec.steps, step, name="step")

    def _cells(self, block: Block, number: Value, samples: Value, row: Value, back: Value, first: Value) -> None:
        """Emits every sample's cell; in the step that was the first, the states before are those of the start."""

        def all_from(before: Buffer, sample: Value) -> Callable[[Block], None]:
            return lambda inner: self.along(
                inner, samples, lambda b, m, c, w: self._cell(b, m, row, first, (before, sample), c, w)
            )

        if not self.cell.reads_before or self.spec.steps == 1:
            all_from(self.start, first)(block)
            return
        is_first = tirx.EQ(number, index(self.spec.steps - 1))
        block.when(is_first, all_from(self.start, first), all_from(self.y, back))

    def _cell(
        self,
        block: Block,
        m: Value,
        row: Value,
        first: Value,
        previous: tuple[Buffer, Value],
        column: Value,
        width: int,
    ) -> None:
        cell, arithmetic, at = self.cell, VectorArithmetic(block, width), block.let(row + m, "at")
        carried_base = block.let((first + m) * self.states, "carried")
        after = self.parts(block, self.y, at * self.states, column, width, cell.states)
        d_after = [
            arithmetic.add(direct, later)
            for direct, later in zip(
                self.parts(block, self.d_y, at * self.states, column, width, cell.states),
                self.parts(block, self.d_start, carried_base, column, width, cell.states),
                strict=True,
            )
        ]
        buffer, sample = previous
        count = cell.states if cell.reads_before else 0
        before = self.parts(block, buffer, (sample + m) * self.states, column, width, count)
        saved = self.parts(block, self.saved, at * (cell.saved * self.spec.width), column, width, cell.saved)
        gradients = cell.backward(arithmetic, saved, before, after, d_after)
        self.put(block, self.d_x, at * self.gates, column, gradients.d_x)
        if self.d_products is not None:
            self.put(block, self.d_products, at * self.gates, column, gradients.d_products)
        factor_base = self.factors(block, first) + m * self.plan.stride
        self.put(block, self.workspace, factor_base, column, gradients.d_products)
        zero = literal(0.0, SCRATCH.tir, width)
        self.put(block, self.d_start, carried_base, column, [zero if d is None else d for d in gradients.d_states])

    def _carry(self, carried_base: Value) -> Callable[[Block, RegisterTile, Value, Value], None]:
        """Adds what comes through the products to the hidden state's gradient."""

        def write(block: Block, tile: RegisterTile, m: Value, n: Value) -> None:
            place = block.let(carried_base + m * self.states + n, "place")
            for row in range(tile.rows):
                for start, width, value in tile.pieces(block, row):
                    at = place + (row * self.states + start)
                    block.store(self.d_start, at, load(self.d_start, at, width) + value)

        return write
