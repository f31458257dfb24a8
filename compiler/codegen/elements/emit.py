"""Elements picked and put: vectors along a row, or along the indices where rows hold one element."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.elements.plan import plan
from compiler.codegen.tile.axis_tasks import AxisPlan
from compiler.codegen.tile.positions import Columns, column_tasks, fill, row_of, vectors
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import extreme
from compiler.codegen.tir.tir import Block, Buffer, Operands, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import ElementsSpec
from compiler.targets import CpuTarget


def emit(spec: ElementsSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a kernel that picks or puts elements."""
    operands = tir.declare(spec)
    body = tir.Block()
    kernel = _Elements(spec, operands, plan(spec, target, threads))
    if spec.kind == "gather":
        kernel.gather(body)
    else:
        kernel.scatter(body)
    return tir.finish(spec, operands, body)


class _Elements:
    """Writes the loops of one kernel. Positions are int32."""

    def __init__(self, spec: ElementsSpec, operands: Operands, plan: AxisPlan) -> None:
        self.spec, self.operands, self.plan = spec, operands, plan
        self.parallel = "parallel" if plan.parallel else "serial"

    def index_place(self, outer: Value, j: Value, i: Value) -> Value:
        """Returns where the index of an element lies."""
        spec = self.spec
        row = outer * spec.count + j if spec.per_outer else j
        return row * spec.inner + i if spec.per_inner else row

    # ------------------------------------------------------------------------------------------------------ picking

    def gather(self, body: Block) -> None:
        """Rows in parallel; where they hold one element, the elements of each outer index."""
        spec = self.spec
        if spec.inner == 1:
            body.loop(spec.outer, self.pick_along, kind=self.parallel, name="outer")
        else:
            body.loop(spec.outer * spec.count, self.pick_row, kind=self.parallel, name="turn")

    def pick_along(self, block: Block, outer: Value) -> None:
        """Vectors of indices."""
        spec, (x, index), (y,) = self.spec, self.operands.inputs, self.operands.outputs

        def pick(inner: Block, j: Value, width: int) -> None:
            rows = row_of(inner, spec.rows, index, self.index_place(outer, j, tir.index(0)), width)
            flat = inner.let(rows + tir.broadcast(outer * spec.rows, width), "flat")
            inner.store(y, outer * spec.count + j, tir.load_at(x, flat))

        vectors(block, spec.count, self.plan.lanes, pick)

    def pick_row(self, block: Block, turn: Value) -> None:
        """Picks one row of results: a copy of a row, or elements of several."""
        spec, (x, index), (y,) = self.spec, self.operands.inputs, self.operands.outputs
        outer, j = tir.divide(block, turn, spec.count)
        if not spec.per_inner:
            row = row_of(block, spec.rows, index, self.index_place(outer, j, tir.index(0)))
            start = block.let((outer * spec.rows + row) * spec.inner, "start")

            def copy(inner: Block, i: Value, width: int) -> None:
                inner.store(y, turn * spec.inner + i, tir.load(x, start + i, width))

            vectors(block, spec.inner, self.plan.lanes, copy)
            return

        def pick(inner: Block, i: Value, width: int) -> None:
            rows = row_of(inner, spec.rows, index, self.index_place(outer, j, i), width)
            start = outer * (spec.rows * spec.inner) + i
            places = tirx.Ramp(start, tir.index(1), width) if width > 1 else start
            flat = inner.let(rows * tir.literal(spec.inner, "int32", width) + places, "flat")
            inner.store(y, turn * spec.inner + i, tir.load_at(x, flat))

        vectors(block, spec.inner, self.plan.lanes, pick)

    # ------------------------------------------------------------------------------------------------------ putting

    def scatter(self, body: Block) -> None:
        """Starts from x or zeros, then puts elements in order of j; a thread owns whole columns."""
        spec, (y,) = self.spec, self.operands.outputs
        element = "int64" if spec.kind == "last" else ELEMENT_TYPES[spec.dtype].tir
        x = self.operands.inputs[0]

        def begin(block: Block, place: Value, width: int) -> None:
            copied = spec.kind in ("max", "mul")
            block.store(y, place, tir.load(x, place, width) if copied else tir.literal(0, element, width))

        fill(body, spec.outer * spec.rows * spec.inner, self.plan, begin)
        column_tasks(body, spec.outer, spec.inner, self.plan, self.put_columns)

    def put_columns(self, block: Block, outer: Value, columns: Columns) -> None:
        """Emits every j, for some columns of one outer index."""
        spec = self.spec
        index = self.operands.inputs[0 if spec.kind in ("add", "last") else 1]

        def emit_column(inner: Block, j: Value) -> None:
            if not spec.per_inner:
                row = row_of(inner, spec.rows, index, self.index_place(outer, j, tir.index(0)))
                columns(inner, lambda b, i, width: self.put(b, outer, row, j, i, width))
                return

            def each(b: Block, i: Value, width: int) -> None:
                def element(innermost: Block, lane: Value) -> None:
                    place = innermost.let(i + lane, "place")
                    row = row_of(innermost, spec.rows, index, self.index_place(outer, j, place))
                    self.put(innermost, outer, row, j, place, 1)

                b.loop(width, element, name="lane")

            columns(inner, each)

        block.loop(spec.count, emit_column, name="j")

    def put(self, block: Block, outer: Value, row: Value, j: Value, i: Value, width: int) -> None:
        """Combines one vector into its row."""
        spec, (y,) = self.spec, self.operands.outputs
        into = block.let((outer * spec.rows + row) * spec.inner + i, "into")
        if spec.kind == "last":
            block.store(y, into, tir.broadcast(tirx.Cast("int64", j + 1), width))
            return
        update = block.let(tir.load(self._updates, (outer * spec.count + j) * spec.inner + i, width), "u")
        old = block.let(tir.load(y, into, width), "old")
        block.store(y, into, _COMBINE[spec.kind](old, update))

    @property
    def _updates(self) -> Buffer:
        return self.operands.inputs[-1]


_COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "max": lambda x, y: extreme("max", x, y),
}
