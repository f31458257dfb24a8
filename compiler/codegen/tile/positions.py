"""Parts that kernels that look up positions share: indices brought within a table, and tasks of columns."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.tile.axis_tasks import AxisPlan
from compiler.codegen.tir import tir
from compiler.codegen.tir.iteration import chunks
from compiler.codegen.tir.tir import Block, Buffer, Value

Columns = Callable[[Block, Callable[[Block, Value, int], None]], None]
"""Runs a body (block, first column, width) for each vector of a task's columns."""


def row_of(block: Block, rows: int, index_buffer: Buffer, place: Value, lanes: int = 1, stride: int = 1) -> Value:
    """The table rows that `lanes` indices from `place` name, as int32 within the table.

    An index outside the table (which the runtime refuses before it gets here) is moved to the nearest row, so a kernel
    never touches memory that is not its own.
    """
    raw = block.let(tir.load(index_buffer, place, lanes, stride), "raw")
    element = tir.base(raw)

    def number(value: int) -> Value:
        return tir.literal(value, element, lanes)

    wrapped = block.let(tirx.Select(tirx.LT(raw, number(0)), raw + number(rows), raw), "wrapped")
    inside = tirx.Max(tirx.Min(wrapped, number(rows - 1)), number(0))
    return block.let(tirx.Cast(tir.dtype("int32", lanes), inside), "row")


def vectors(body: Block, extent: int, lanes: int, each: Callable[[Block, Value, int], None]) -> None:
    """`each(block, start, width)` for the full vectors of `extent` and what is left of it."""
    body.loop(extent // lanes, lambda block, v: each(block, v * lanes, lanes), name="v")
    for start, width in chunks(extent, lanes):
        each(body, tir.index(start), width)


def column_tasks(
    body: Block, outer: int, inner: int, plan: AxisPlan, task: Callable[[Block, Value, Columns], None]
) -> None:
    """`task(block, outer index, columns)` for each outer index, or for each part of its columns."""
    share = -(-(inner // plan.lanes) // plan.parts)

    def emit_task(block: Block, number: Value) -> None:
        place, part = tir.divide(block, number, plan.parts)
        if plan.parts == 1:
            task(block, place, lambda inside, each: vectors(inside, inner, plan.lanes, each))
            return
        first = block.let(part * share, "first")
        count = block.let(tirx.max(tirx.min(tir.index(share), inner // plan.lanes - first), 0), "count")

        def columns(inside: Block, each: Callable[[Block, Value, int], None]) -> None:
            inside.loop(count, lambda b, v: each(b, (first + v) * plan.lanes, plan.lanes), name="v")
            pieces = chunks(inner, plan.lanes)

            def rest(last: Block) -> None:
                for start, width in pieces:
                    each(last, tir.index(start), width)

            if pieces:
                inside.when(tirx.EQ(part, plan.parts - 1), rest)

        task(block, place, columns)

    body.loop(outer * plan.parts, emit_task, kind="parallel" if plan.parallel else "serial", name="task")


def fill(body: Block, size: int, plan: AxisPlan, each: Callable[[Block, Value, int], None]) -> None:
    """`each(block, start, width)` for every vector of `size` elements, in parallel blocks if there are many."""
    block_elements = 64 * plan.lanes
    blocks = size // block_elements if plan.parallel else 0

    def fill_block(block: Block, number: Value) -> None:
        start = block.let(number * block_elements, "start")
        vectors(block, block_elements, plan.lanes, lambda inside, place, width: each(inside, start + place, width))

    body.loop(blocks, fill_block, kind="parallel", name="blocks")
    offset = blocks * block_elements
    vectors(body, size - offset, plan.lanes, lambda inside, place, width: each(inside, place + offset, width))
