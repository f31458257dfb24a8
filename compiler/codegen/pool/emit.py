"""Pooling: parallel over output rows (or channel blocks), vectors over channels, no conditions in windows."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx

from compiler.codegen.pool.plan import PoolPlan, plan
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators
from compiler.codegen.tir.expressions import epilogue
from compiler.codegen.tir.iteration import chunks
from compiler.codegen.tir.tir import Block, Operands, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.errors import InternalError
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import PoolSpec
from compiler.targets import Target


def emit(spec: PoolSpec, target: Target, threads: int) -> PrimFunc:
    """TIR of a pooling kernel."""
    operands = tir.declare(spec)
    body = tir.Block()
    kernel = _Pool(spec, operands, plan(spec, target, threads))
    emitters = {
        "max": lambda: kernel.rows(body, spec.oh, spec.ow, kernel.window_result),
        "average": lambda: kernel.rows(body, spec.oh, spec.ow, kernel.window_result),
        "average_grad": lambda: kernel.rows(body, spec.h, spec.w, kernel.average_gradient),
        "max_grad": lambda: kernel.planes(body),
    }
    if spec.kind not in emitters:
        raise InternalError(f"no pooling kernel of kind {spec.kind!r}")
    emitters[spec.kind]()
    return tir.finish(spec, operands, body)


Channels = Callable[[Block, Callable[[Block, Value, int], None]], None]
"""Runs a body (block, channel, width) for each vector of a task's channels."""


class _Pool:
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
                self._last_part(inner, part, split, lambda b, c, lanes: each(b, n, row, place, c, lanes))

            block.loop(width, column, name="column")

        body.loop(tasks * split, task, kind=self.kind, name="task")

    def _last_part(self, block: Block, part: Value, split: int, each: Callable[[Block, Value, int], None]) -> None:
        """Channels after the full vectors, by the last of the parts."""
        left = chunks(self.spec.c, self.lanes)
        if not left:
            return

        def rest(inner: Block) -> None:
            for start, width in left:
                each(inner, tir.index(start), width)

        if split == 1:
            rest(block)
        else:
            block.when(tirx.EQ(part, split - 1), rest)

    # ------------------------------------------------------------------------------------------------ max and average

    def window_result(self, block: Block, n: Value, row: Value, column: Value, channel: Value, width: int) -> None:
        """One vector of outputs of max or average pooling."""
        spec = self.spec
        sums = Accumulators(block, "max" if spec.kind == "max" else "sum", self.summed, 1, width)
        top, bottom = self._window(block, row, 0)
        left, right = self._window(block, column, 1)

        def tap(inner: Block, h: Value, w: Value) -> None:
            sums.add(inner, 0, inner.let(tir.load(self.operands.inputs[0], self._x(n, h, w, channel), width), "x"))

        _area(block, (top, bottom), (left, right), tap)
        result = block.let(sums.get(0), "pooled")
        if spec.kind == "average":
            result = block.let(tirx.Mul(result, tir.broadcast(self._share(block, row, column), width)), "mean")
        self._store(block, (n, row, column, channel), result, self._y(n, row, column, channel))

    def _window(self, block: Block, place: Value, dimension: int) -> tuple[Value, Value]:
        """First and end input position (in bounds) of the window of an output position."""
        spec = self.spec
        first = block.let(place * spec.strides[dimension] - spec.pads[dimension], "first")
        low = block.let(tirx.max(first, 0), "low")
        return low, block.let(tirx.min(first + spec.kernel[dimension], (spec.h, spec.w)[dimension]), "high")

    def _share(self, block: Block, row: Value, column: Value) -> Value:
        """1 / (number of positions that an output averages)."""
        spec = self.spec
        if spec.count_pads or not any(spec.pads):
            return tir.literal(1.0 / (spec.kernel[0] * spec.kernel[1]), self.summed)
        (top, bottom), (left, right) = self._window(block, row, 0), self._window(block, column, 1)
        count = block.let(tirx.max((bottom - top) * (right - left), 1), "count")
        return block.let(tirx.Div(tir.literal(1.0, self.summed), tirx.Cast(self.summed, count)), "share")

    # ------------------------------------------------------------------------------------------------------ gradients

    def average_gradient(self, block: Block, n: Value, h: Value, w: Value, channel: Value, width: int) -> None:
        """d_x at one position: the shares of all windows that cover it."""
        sums = Accumulators(block, "sum", self.summed, 1, width)

        def tap(inner: Block, row: Value, column: Value) -> None:
            gradient = tir.load(self.operands.inputs[0], self._y(n, row, column, channel), width)
            share = tir.broadcast(self._share(inner, row, column), width)
            sums.add(inner, 0, inner.let(tirx.Mul(gradient, share), "share"))

        _area(block, self._covering(block, h, 0), self._covering(block, w, 1), tap)
        self._store(block, (n, h, w, channel), block.let(sums.get(0), "d_x"), self._x(n, h, w, channel))

    def _covering(self, block: Block, place: Value, dimension: int) -> tuple[Value, Value]:
        """First and end output position whose window covers an input position."""
        spec = self.spec
        stride, extent = spec.strides[dimension], (spec.oh, spec.ow)[dimension]
        reach = block.let(place + spec.pads[dimension], "reach")
        # ceil((reach - kernel + 1) / stride), kept from going negative before the division
        low = tirx.truncdiv(tirx.max(reach - spec.kernel[dimension] + stride, 0), tirx.IntImm("int32", stride))
        high = tirx.min(tirx.truncdiv(reach, tirx.IntImm("int32", stride)) + 1, extent)
        return block.let(low, "low"), block.let(high, "high")

    def planes(self, body: Block) -> None:
        """max_grad: each task owns some channels of one image, so windows may overlap without a race."""
        spec, parts = self.spec, self.plan.parts
        per_task = spec.c // self.lanes // parts

        def task(block: Block, number: Value) -> None:
            n, part = tir.divide(block, number, parts)

            def channels(inner: Block, each: Callable[[Block, Value, int], None]) -> None:
                inner.loop(
                    per_task,
                    lambda b, v: each(b, b.let((part * per_task + v) * self.lanes, "channel"), self.lanes),
                    name="v",
                )
                self._last_part(inner, part, parts, each)

            self._image(block, n, channels)

        body.loop(spec.n * parts, task, kind=self.kind, name="task")

    def _image(self, block: Block, n: Value, channels: Channels) -> None:
        """Give every window's d_y to its first maximum, clearing rows of d_x just before the first window on them."""
        spec, d_x = self.spec, self.operands.outputs[0]

        def reached(inner: Block, row: Value) -> Value:
            """The end of the rows that windows up to `row` (exclusive) touch."""
            end = (row - 1) * spec.strides[0] - spec.pads[0] + spec.kernel[0]
            return inner.let(tirx.min(tirx.max(tirx.Select(tirx.LT(0, row), end, tir.index(0)), 0), spec.h), "end")

        def rows(inner: Block, first: Value, end: Value, each: Callable[[Block, Value, int], None]) -> None:
            def one(b: Block, i: Value) -> None:
                place = b.let(((n * spec.h + first) * spec.w + i) * spec.c, "place")
                channels(b, lambda c, channel, width: each(c, place + channel, width))

            inner.loop(inner.let((end - first) * spec.w, "count"), one, name="x")

        def clear(inner: Block, place: Value, width: int) -> None:
            inner.store(d_x, place, tir.literal(0.0, self.stored, width))

        def one_row(inner: Block, row: Value) -> None:
            rows(inner, reached(inner, row), reached(inner, row + 1), clear)
            inner.loop(
                spec.ow,
                lambda b, column: channels(b, lambda c, ch, width: self._first_maximum(c, n, row, column, ch, width)),
                name="column",
            )

        block.loop(spec.oh, one_row, name="row")
        rows(block, reached(block, tir.index(spec.oh)), tir.index(spec.h), clear)
        if spec.epilogue != Ref(0):
            self._finish_image(block, n, channels)

    def _finish_image(self, block: Block, n: Value, channels: Channels) -> None:
        """The epilogue of one image's d_x, in place."""

        def position(inner: Block, h: Value, w: Value) -> None:
            def vector(b: Block, channel: Value, width: int) -> None:
                place = b.let(self._x(n, h, w, channel), "place")
                value = b.let(tir.load(self.operands.outputs[0], place, width), "d_x")
                self._store(b, (n, h, w, channel), value, place)

            channels(inner, vector)

        block.loop(self.spec.h, lambda b, h: b.loop(self.spec.w, lambda c, w: position(c, h, w), name="w"), name="h")

    def _first_maximum(self, block: Block, n: Value, row: Value, column: Value, channel: Value, width: int) -> None:
        """The window's maxima are found here, from x itself: one computed elsewhere may differ by a rounding."""
        x, d_y = self.operands.inputs[:2]
        d_x = self.operands.outputs[0]
        rows, columns = self._window(block, row, 0), self._window(block, column, 1)
        zero = tir.literal(0.0, self.stored, width)
        best = block.local(width, self.stored, "best")
        block.store(best, 0, tir.literal(-math.inf, self.stored, width))

        def find(inner: Block, h: Value, w: Value) -> None:
            value = tir.load(x, self._x(n, h, w, channel), width)
            inner.store(best, 0, tirx.Max(tir.load(best, 0, width), value))

        _area(block, rows, columns, find)
        highest = block.let(tir.load(best, 0, width), "highest")
        gradient = block.let(tir.load(d_y, self._y(n, row, column, channel), width), "gradient")
        given = block.local(width, self.stored, "given")  # 1.0 in the lanes whose maximum has been met
        block.store(given, 0, zero)

        def give(inner: Block, h: Value, w: Value) -> None:
            flat = inner.let(self._x(n, h, w, channel), "flat")
            value = inner.let(tir.load(x, flat, width), "x")
            so_far = inner.let(tir.load(given, 0, width), "given")
            hit = tirx.And(tirx.EQ(value, highest), tirx.EQ(so_far, zero))
            old = inner.let(tir.load(d_x, flat, width), "old")
            inner.store(d_x, flat, tirx.Add(old, tirx.Select(hit, gradient, zero)))
            inner.store(given, 0, tirx.Select(hit, tir.literal(1.0, self.stored, width), so_far))

        _area(block, rows, columns, give)

    # ---------------------------------------------------------------------------------------------------------- places

    def _x(self, n: Value, h: Value, w: Value, channel: Value) -> Value:
        return ((n * self.spec.h + h) * self.spec.w + w) * self.spec.c + channel

    def _y(self, n: Value, row: Value, column: Value, channel: Value) -> Value:
        return ((n * self.spec.oh + row) * self.spec.ow + column) * self.spec.c + channel

    def _store(self, block: Block, axes: tuple[Value, Value, Value, Value], value: Value, flat: Value) -> None:
        """The epilogue of one vector of results, to the output."""
        count = {"max": 1, "average": 1, "average_grad": 1, "max_grad": 2}[self.spec.kind]
        point = tir.Point(axes, tir.lanes_of(value), 3)
        inputs = list(zip(self.operands.inputs[count:], self.spec.epilogue_inputs, strict=True))
        block.store(self.operands.outputs[0], flat, epilogue(block, self.spec.epilogue, value, inputs, point))


def _area(
    block: Block,
    rows: tuple[Value, Value],
    columns: tuple[Value, Value],
    tap: Callable[[Block, Value, Value], None],
) -> None:
    """`tap(block, row, column)` for every position of a rectangle given by (first, end) pairs."""

    def one_row(inner: Block, i: Value) -> None:
        row = inner.let(rows[0] + i, "row")
        width = columns[1] - columns[0]
        inner.loop(width, lambda innermost, j: tap(innermost, row, innermost.let(columns[0] + j, "column")), name="dw")

    block.loop(rows[1] - rows[0], one_row, name="dh")
