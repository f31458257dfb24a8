"""Parts that all pooling kernels share: how they walk over results, where windows lie, and the epilogue."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.pool.plan import PoolPlan
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import epilogue
from compiler.codegen.tir.iteration import chunks
from compiler.codegen.tir.tir import Block, Operands, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.spec import PoolSpec


class PoolLoops:
    """Writes the loops of one pooling kernel. Positions are int32; `width` is a vector's number of channels."""

    def __init__(self, spec: PoolSpec, operands: Operands, plan: PoolPlan) -> None:
        self.spec, self.operands, self.plan, self.lanes = spec, operands, plan, plan.precision.lanes
        element = ELEMENT_TYPES[spec.dtype]
        self.stored, self.summed = element.tir, element.sum.tir
        self.kind = "parallel" if plan.parallel else "serial"

    # ------------------------------------------------------------------------------------------------------- loops

    def rows(
        self, body: Block, height: int, width: int, each: Callable[[Block, Value, Value, Value, Value, int], None]
    ) -> None:
        """`each(block, n, row, column, channel, lanes)` for every result; tasks are rows, or channel blocks of rows."""
        tasks, split = self.spec.n * height, self.plan.parts
        per_task = self.spec.c // self.lanes // split

        def task(block: Block, number: Value) -> None:
            number, part = tir.divide(block, number, split)
            n, row = tir.divide(block, number, height)

            def column(inner: Block, place: Value) -> None:
                def vector(innermost: Block, v: Value) -> None:
                    channel = innermost.let((part * per_task + v) * self.lanes, "channel")
                    each(innermost, n, row, place, channel, self.lanes)

                inner.loop(per_task, vector, name="v")
                self.last_part(inner, part, split, lambda b, c, lanes: each(b, n, row, place, c, lanes))

            block.loop(width, column, name="column")

        body.loop(tasks * split, task, kind=self.kind, name="task")

    def last_part(self, block: Block, part: Value, split: int, each: Callable[[Block, Value, int], None]) -> None:
        """Channels after the full vectors, by the last of the parts."""
        pieces = chunks(self.spec.c, self.lanes)
        if not pieces:
            return

        def rest(inner: Block) -> None:
            for start, width in pieces:
                each(inner, tir.index(start), width)

        if split == 1:
            rest(block)
        else:
            block.when(tirx.EQ(part, split - 1), rest)

    # --------------------------------------------------------------------------------------------------------- windows

    def window(self, block: Block, place: Value, dimension: int) -> tuple[Value, Value]:
        """First and end input position (in bounds) of the window of an output position."""
        spec = self.spec
        first = block.let(place * spec.strides[dimension] - spec.pads[dimension], "first")
        low = block.let(tirx.max(first, 0), "low")
        return low, block.let(tirx.min(first + spec.kernel[dimension], (spec.h, spec.w)[dimension]), "high")

    def covering(self, block: Block, place: Value, dimension: int) -> tuple[Value, Value]:
        """First and end output position whose window covers an input position."""
        spec = self.spec
        stride, extent = spec.strides[dimension], (spec.oh, spec.ow)[dimension]
        reach = block.let(place + spec.pads[dimension], "reach")
        # ceil((reach - kernel + 1) / stride), kept from going negative before the division
        low = tirx.truncdiv(tirx.max(reach - spec.kernel[dimension] + stride, 0), tirx.IntImm("int32", stride))
        high = tirx.min(tirx.truncdiv(reach, tirx.IntImm("int32", stride)) + 1, extent)
        return block.let(low, "low"), block.let(high, "high")

    # ---------------------------------------------------------------------------------------------------------- places

    def x(self, n: Value, h: Value, w: Value, channel: Value) -> Value:
        return ((n * self.spec.h + h) * self.spec.w + w) * self.spec.c + channel

    def y(self, n: Value, row: Value, column: Value, channel: Value) -> Value:
        return ((n * self.spec.oh + row) * self.spec.ow + column) * self.spec.c + channel

    def store(self, block: Block, axes: tuple[Value, Value, Value, Value], value: Value, flat: Value) -> None:
        """The epilogue of one vector of results, to the output."""
        count = 2 if self.spec.kind in ("max_grad", "places_grad") else 1
        point = tir.Point(axes, tir.lanes_of(value), 3)
        inputs = list(zip(self.operands.inputs[count:], self.spec.epilogue_inputs, strict=True))
        block.store(self.operands.outputs[0], flat, epilogue(block, self.spec.epilogue, value, inputs, point))


def area(
    block: Block,
    rows: tuple[Value, Value],
    columns: tuple[Value, Value],
    tap: Callable[[Block, Value, Value], None],
    size: tuple[int, int] | None = None,
) -> None:
    """`tap(block, row, column)` for every position of a rectangle given by (first, end) pairs.

    `size`: how many rows and columns there always are, if that is known.
    """

    def one_row(inner: Block, i: Value) -> None:
        row = inner.let(rows[0] + i, "row")
        width = columns[1] - columns[0] if size is None else size[1]
        inner.loop(width, lambda innermost, j: tap(innermost, row, innermost.let(columns[0] + j, "column")), name="dw")

    block.loop(rows[1] - rows[0] if size is None else size[0], one_row, name="dh")
