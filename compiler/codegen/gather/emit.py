"""Row gather and its gradient: vectors along a row, or along the indices where rows hold one element."""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.gather.plan import GatherPlan, plan, workspace_bytes
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.positions import row_of, vectors
from compiler.codegen.tile.share import share_out
from compiler.codegen.tir import tir
from compiler.codegen.tir.iteration import chunks
from compiler.codegen.tir.tir import Block, Buffer, Operands, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES, SCRATCH
from compiler.errors import InternalError
from compiler.kernels.spec import GatherSpec
from compiler.targets import CpuTarget


def emit(spec: GatherSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a gather or scatter-add."""
    operands = tir.declare(spec, workspace_bytes(spec, target, threads))
    body = tir.Block()
    emitters = {"gather": _gather, "scatter_add": _update if spec.epilogue_inputs else _scatter_add}
    if spec.kind not in emitters:
        raise InternalError(f"no gather kernel of kind {spec.kind!r}")
    emitters[spec.kind](body, spec, operands, plan(spec, target, threads))
    return tir.finish(spec, operands, body)


def _gather(body: Block, spec: GatherSpec, operands: Operands, plan: GatherPlan) -> None:
    (table, index_buffer), (output,) = operands.inputs, operands.outputs

    def one_row(block: Block, turn: Value) -> None:
        outer = block.let(tirx.truncdiv(turn, tir.index(spec.count)), "outer")
        source = row_of(block, spec.rows, index_buffer, turn - outer * spec.count)
        start = block.let((outer * spec.rows + source) * spec.inner, "source")

        def copy(inner: Block, place: Value, width: int) -> None:
            inner.store(output, turn * spec.inner + place, tir.load(table, start + place, width))

        vectors(block, spec.inner, plan.lanes, copy)

    def one_outer(block: Block, outer: Value) -> None:
        def pick(inner: Block, place: Value, width: int) -> None:
            rows = row_of(inner, spec.rows, index_buffer, place, width)
            flat = inner.let(rows + tir.broadcast(outer * spec.rows, width), "flat")
            inner.store(output, outer * spec.count + place, tir.load_at(table, flat))

        vectors(block, spec.count, plan.lanes, pick)

    kind = "parallel" if plan.parallel else "serial"
    if spec.inner == 1:
        body.loop(spec.outer, one_outer, kind=kind, name="outer")
    else:
        body.loop(spec.outer * spec.count, one_row, kind=kind, name="turn")


def _scatter_add(body: Block, spec: GatherSpec, operands: Operands, plan: GatherPlan) -> None:
    """Zeros the table, then adds rows in order of the indices; threads own disjoint columns, so sums are repeatable."""
    (index_buffer, gradient), (table,) = operands.inputs, operands.outputs
    lanes, parts = plan.lanes, plan.parts
    _zero(body, table, spec.outer * spec.rows * spec.inner, ELEMENT_TYPES[spec.dtype].tir, plan)
    vectors = spec.inner // lanes
    share = -(-vectors // parts)

    def task(block: Block, number: Value) -> None:
        outer = block.let(tirx.truncdiv(number, tir.index(parts)), "outer")
        first = block.let((number - outer * parts) * share, "first")
        count = block.let(tirx.max(tirx.min(share, vectors - first), 0), "count")

        def add(inner: Block, into: Value, source: Value, place: Value, width: int) -> None:
            total = tir.load(table, into + place, width) + tir.load(gradient, source + place, width)
            inner.store(table, into + place, total)

        def one_index(inner: Block, j: Value) -> None:
            into = inner.let((outer * spec.rows + row_of(inner, spec.rows, index_buffer, j)) * spec.inner, "into")
            source = inner.let((outer * spec.count + j) * spec.inner, "source")
            inner.loop(count, lambda b, v: add(b, into, source, (first + v) * lanes, lanes), name="v")
            pieces = chunks(spec.inner, lanes)

            def rest(last: Block) -> None:
                for start, width in pieces:
                    add(last, into, source, tir.index(start), width)

            if pieces:
                inner.when(tirx.EQ(number - outer * parts, parts - 1), rest)

        block.loop(spec.count, one_index, name="j")

    kind = "parallel" if plan.parallel else "serial"
    body.loop(spec.outer * parts, task, kind=kind, name="task")


def _zero(body: Block, table: Buffer, size: int, element: str, plan: GatherPlan) -> None:
    """Fills a whole buffer with zeros, in parallel blocks if it is large."""
    lanes, tasks = plan.lanes, plan.clearing_tasks

    def clear(block: Block, place: Value, width: int) -> None:
        block.store(table, place, tir.literal(0, element, width))

    filled = 0
    if tasks:
        share = size // (tasks * lanes)

        def one_share(block: Block, number: Value) -> None:
            block.loop(share, lambda inner, v: clear(inner, (number * share + v) * lanes, lanes), name="v")

        body.loop(tasks, one_share, kind="parallel", name="share")
        filled = tasks * share * lanes
    vectors(body, size - filled, lanes, lambda block, place, width: clear(block, place + filled, width))


def _update(body: Block, spec: GatherSpec, operands: Operands, plan: GatherPlan) -> None:
    """Rows one after the other, each with the sum of its gradients: the table's gradient is never written.

    Threads own disjoint rows and add in order of the indices, so sums are repeatable.
    """
    (index_buffer, gradient, *extra), (table, *others) = operands.inputs, operands.outputs
    epilogue = Epilogue.of(
        spec.epilogue, extra, spec.epilogue_inputs, 2, tuple(zip(spec.extra_outputs, others, strict=True))
    )
    workspace = operands.workspace
    assert workspace is not None
    _sort_by_row(body, spec, index_buffer, workspace, plan.lanes)

    def one_row(block: Block, row: Value) -> None:
        end = block.let(tirx.Cast("int32", tir.load(workspace, row)), "end")
        before = tirx.Cast("int32", tir.load(workspace, tirx.max(row - 1, 0)))
        first = block.let(tirx.Select(tirx.EQ(row, tir.index(0)), tir.index(0), before), "first")

        def finish(inner: Block, place: Value, width: int) -> None:
            total = inner.local(width, name="total")
            inner.store(total, 0, tir.literal(0.0, SCRATCH.tir, width))

            def add(turn: Block, i: Value) -> None:
                position = tirx.Cast("int32", tir.load(workspace, first + i + spec.rows))
                source = turn.let(position * spec.inner + place, "source")
                turn.store(total, 0, tir.load(total, 0, width) + tir.load(gradient, source, width))

            inner.loop(end - first, add, name="i")
            point = tir.Point((row, place))
            point = point.vector(1, width) if width > 1 else point
            epilogue.finish(inner, tir.load(total, 0, width), point, table, row * spec.inner + place)

        def every_vector(inner: Block) -> None:
            vectors(inner, spec.inner, plan.lanes, finish)

        if spec.skips:
            block.when(tirx.LT(first, end), every_vector)
        else:
            every_vector(block)

    def slot_body(block: Block, slot: Value, first: Value, end: Value) -> None:
        block.loop(end - first, lambda b, i: one_row(b, b.let(first + i, "row")), name="row")

    share_out(body, plan.slots, spec.rows, slot_body)


def _sort_by_row(body: Block, spec: GatherSpec, index_buffer: Buffer, workspace: Buffer, lanes: int) -> None:
    """Counting sort: element `row` becomes the end of the row's positions, which lie sorted behind all ends.

    Positions are kept as f32, which holds them exactly (see `MOST_POSITIONS`).
    """

    def clear(block: Block, place: Value, width: int) -> None:
        block.store(workspace, place, tir.literal(0.0, SCRATCH.tir, width))

    def count(block: Block, j: Value) -> None:
        row = row_of(block, spec.rows, index_buffer, j)
        block.store(workspace, row, tir.load(workspace, row) + tir.literal(1.0, SCRATCH.tir))

    def begin(block: Block, row: Value) -> None:
        here = block.let(tir.load(workspace, row), "here")
        block.store(workspace, row, tir.load(running, 0))
        block.store(running, 0, tir.load(running, 0) + here)

    def put(block: Block, j: Value) -> None:
        row = row_of(block, spec.rows, index_buffer, j)
        place = block.let(tir.load(workspace, row), "place")
        block.store(workspace, tirx.Cast("int32", place) + spec.rows, tirx.Cast(SCRATCH.tir, j))
        block.store(workspace, row, place + tir.literal(1.0, SCRATCH.tir))

    vectors(body, spec.rows, lanes, clear)
    body.loop(spec.count, count, name="j")
    running = body.local(1, name="running")
    body.store(running, 0, tir.literal(0.0, SCRATCH.tir))
    body.loop(spec.rows, begin, name="row")
    body.loop(spec.count, put, name="j")
