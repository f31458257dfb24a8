"""Pooling: parallel over output rows (or channel blocks), vectors over channels, no conditions in windows.

Maxima with the places of the first of them, and the gradient that goes to those places.

The gradient asks for each position of x which of the windows that cover it have their place there: every position is
written once, in the order of the windows, so tasks may be rows, and windows may overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from compiler.codegen.pool.loops import PoolLoops, area
from compiler.codegen.pool.plan import plan
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators
from compiler.codegen.tir.scalar_math import is_nan
from compiler.codegen.tir.tir import Block, Buffer, Operands, PrimFunc, Value
from compiler.errors import InternalError
from compiler.kernels.alignment import ALIGNMENT_BYTES
from compiler.kernels.expressions import Ref
from compiler.kernels.places import WORD_BYTES, words_of_sample
from compiler.kernels.spec import PoolSpec
from compiler.targets import CpuTarget


def with_bytes(spec: PoolSpec, operands: Operands) -> Operands:
    """The operands with words as the bytes that they are."""
    if spec.kind == "max_places":
        return replace(operands, outputs=(operands.outputs[0], _bytes(spec, "out1")))
    if spec.kind == "places_grad":
        return replace(operands, inputs=(_bytes(spec, "in0"), *operands.inputs[1:]))
    return operands


def _bytes(spec: PoolSpec, name: str) -> Buffer:
    size = spec.n * words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES
    return tirx.decl_buffer((size,), "uint8", name=name, data_alignment=ALIGNMENT_BYTES)


class Places(PoolLoops):
    """The two kernels."""

    def all_maxima(self, body: Block) -> None:
        """Outputs and places; zeros in the bytes of a sample's last word that are no place."""
        spec = self.spec
        self.rows(body, spec.oh, spec.ow, self.maxima)
        sample_bytes, used = words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES, spec.oh * spec.ow * spec.c

        def clear(block: Block, n: Value) -> None:
            for place in range(used, sample_bytes):
                block.store(self.operands.outputs[1], n * sample_bytes + place, tir.literal(0, "uint8"))

        if used < sample_bytes:
            body.loop(spec.n, clear, name="n")

    def maxima(self, block: Block, n: Value, row: Value, column: Value, channel: Value, width: int) -> None:
        """Computes one vector of outputs, and their places."""
        best, place = block.local(width, self.stored, "best"), block.local(width, "int32", "place")
        rows, columns = self.window(block, row, 0), self.window(block, column, 1)
        block.store(best, 0, tir.literal(-math.inf, self.stored, width))
        block.store(place, 0, tir.broadcast(self._first_place(block, row, column, rows[0], columns[0]), width))

        def tap(inner: Block, h: Value, w: Value) -> None:
            value = inner.let(tir.load(self.operands.inputs[0], self.x(n, h, w, channel), width), "x")
            here = tir.broadcast(self._place(inner, row, column, h, w), width)
            is_higher = tirx.Or(tirx.LT(tir.load(best, 0, width), value), is_nan(value))
            inner.store(place, 0, tirx.Select(is_higher, here, tir.load(place, 0, width)))
            inner.store(best, 0, tirx.Select(is_higher, value, tir.load(best, 0, width)))

        area(block, rows, columns, tap, self._size())
        as_byte = tirx.Cast(tir.dtype("uint8", width), tir.load(place, 0, width))
        block.store(self.operands.outputs[1], self._byte(n, row, column, channel), as_byte)
        highest = block.let(tir.load(best, 0, width), "highest")
        self.store(block, (n, row, column, channel), highest, self.y(n, row, column, channel))

    def _place(self, block: Block, row: Value, column: Value, h: Value, w: Value) -> Value:
        """Returns the place, in an output's window, of a position of x."""
        spec = self.spec
        down = h - (row * spec.strides[0] - spec.pads[0])
        right = w - (column * spec.strides[1] - spec.pads[1])
        return block.let(down * spec.kernel[1] + right, "here")

    def _first_place(self, block: Block, row: Value, column: Value, h: Value, w: Value) -> Value:
        """The place of a window's first position: of one that has none, a place all the same."""
        first = self._place(block, row, column, h, w)
        return block.let(tirx.min(first, self.spec.kernel[0] * self.spec.kernel[1] - 1), "first")

    def _size(self) -> tuple[int, int] | None:
        """The extents of all windows, where none reaches over the image's edge."""
        spec = self.spec
        ends = [(out - 1) * by + extent for out, by, extent in zip(self.out, spec.strides, spec.kernel, strict=True)]
        return spec.kernel if not any(spec.pads[:2]) and ends[0] <= spec.h and ends[1] <= spec.w else None

    def _covering_size(self) -> tuple[int, int] | None:
        """Returns how many windows cover each position, where they lie side by side and leave nothing over, else
        None.
        """
        spec = self.spec
        reached = tuple(out * extent for out, extent in zip(self.out, spec.kernel, strict=True))
        is_even = spec.kernel == spec.strides and not any(spec.pads[:2]) and reached == (spec.h, spec.w)
        return (1, 1) if is_even else None

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.spec.oh, self.spec.ow

    def _byte(self, n: Value, row: Value, column: Value, channel: Value) -> Value:
        spec = self.spec
        sample = words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES
        return n * sample + ((row * spec.ow + column) * spec.c + channel)

    def gradient(self, block: Block, n: Value, h: Value, w: Value, channel: Value, width: int) -> None:
        """Computes one vector of d_x: what the windows give whose place it is."""
        sums = Accumulators(block, "sum", self.summed, 1, width)

        def tap(inner: Block, row: Value, column: Value) -> None:
            raw = tir.load(self.operands.inputs[0], self._byte(n, row, column, channel), width)
            here = tir.broadcast(self._place(inner, row, column, h, w), width)
            is_here = tirx.EQ(tirx.Cast(tir.dtype("int32", width), raw), here)
            d_y = tir.load(self.operands.inputs[1], self.y(n, row, column, channel), width)
            contribution = tirx.Select(is_here, d_y, tir.literal(0.0, self.stored, width))
            sums.add(inner, 0, inner.let(contribution, "given"))

        area(block, self.covering(block, h, 0), self.covering(block, w, 1), tap, self._covering_size())
        self.store(block, (n, h, w, channel), block.let(sums.get(0), "d_x"), self.x(n, h, w, channel))


def emit(spec: PoolSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a pooling kernel."""
    operands = with_bytes(spec, tir.declare(spec))
    body = tir.Block()
    chosen = plan(spec, target, threads)
    kernel, places = _Pool(spec, operands, chosen), Places(spec, operands, chosen)
    emitters = {
        "max": lambda: kernel.rows(body, spec.oh, spec.ow, kernel.window_result),
        "average": lambda: kernel.rows(body, spec.oh, spec.ow, kernel.window_result),
        "average_grad": lambda: kernel.rows(body, spec.h, spec.w, kernel.average_gradient),
        "max_grad": lambda: kernel.planes(body),
        "max_places": lambda: places.all_maxima(body),
        "places_grad": lambda: places.rows(body, spec.h, spec.w, places.gradient),
    }
    if spec.kind not in emitters:
        raise InternalError(f"no pooling kernel of kind {spec.kind!r}")
    emitters[spec.kind]()
    return tir.finish(spec, operands, body)


Channels = Callable[[Block, Callable[[Block, Value, int], None]], None]
"""Runs a body (block, channel, width) for each vector of a task's channels."""


class _Pool(PoolLoops):
    """Maxima, means and their gradients."""

    def window_result(self, block: Block, n: Value, row: Value, column: Value, channel: Value, width: int) -> None:
        """Computes one vector of outputs of max or average pooling."""
        spec = self.spec
        sums = Accumulators(block, "max" if spec.kind == "max" else "sum", self.summed, 1, width)
        top, bottom = self.window(block, row, 0)
        left, right = self.window(block, column, 1)

        def tap(inner: Block, h: Value, w: Value) -> None:
            sums.add(inner, 0, inner.let(tir.load(self.operands.inputs[0], self.x(n, h, w, channel), width), "x"))

        area(block, (top, bottom), (left, right), tap)
        result = block.let(sums.get(0), "pooled")
        if spec.kind == "average":
            result = block.let(tirx.Mul(result, tir.broadcast(self._share(block, row, column), width)), "mean")
        self.store(block, (n, row, column, channel), result, self.y(n, row, column, channel))

    def _share(self, block: Block, row: Value, column: Value) -> Value:
        """1 / (number of positions that an output averages)."""
        spec = self.spec
        if spec.count_pads or not any(spec.pads):
            return tir.literal(1.0 / (spec.kernel[0] * spec.kernel[1]), self.summed)
        (top, bottom), (left, right) = self.window(block, row, 0), self.window(block, column, 1)
        count = block.let(tirx.max((bottom - top) * (right - left), 1), "count")
        return block.let(tirx.Div(tir.literal(1.0, self.summed), tirx.Cast(self.summed, count)), "share")

    # ------------------------------------------------------------------------------------------------------ gradients

    def average_gradient(self, block: Block, n: Value, h: Value, w: Value, channel: Value, width: int) -> None:
        """d_x at one position: the shares of all windows that cover it."""
        sums = Accumulators(block, "sum", self.summed, 1, width)

        def tap(inner: Block, row: Value, column: Value) -> None:
            gradient = tir.load(self.operands.inputs[0], self.y(n, row, column, channel), width)
            share = tir.broadcast(self._share(inner, row, column), width)
            sums.add(inner, 0, inner.let(tirx.Mul(gradient, share), "share"))

        area(block, self.covering(block, h, 0), self.covering(block, w, 1), tap)
        self.store(block, (n, h, w, channel), block.let(sums.get(0), "d_x"), self.x(n, h, w, channel))

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
                self.last_part(inner, part, parts, each)

            self._image(block, n, channels)

        body.loop(spec.n * parts, task, kind=self.kind, name="task")

    def _image(self, block: Block, n: Value, channels: Channels) -> None:
        """Gives every window's d_y to its first maximum, clearing rows of d_x just before the first window on them."""
        spec, d_x = self.spec, self.operands.outputs[0]

        def reached(inner: Block, row: Value) -> Value:
            """The end of the rows that windows up to `row` (exclusive) touch."""
            end = (row - 1) * spec.strides[0] - spec.pads[0] + spec.kernel[0]
            return inner.let(tirx.min(tirx.max(tirx.Select(tirx.LT(0, row), end, tir.index(0)), 0), spec.h), "end")

        def rows(inner: Block, first: Value, end: Value, each: Callable[[Block, Value, int], None]) -> None:
            def emit_position(b: Block, i: Value) -> None:
                place = b.let(((n * spec.h + first) * spec.w + i) * spec.c, "place")
                channels(b, lambda c, channel, width: each(c, place + channel, width))

            inner.loop(inner.let((end - first) * spec.w, "count"), emit_position, name="x")

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
                place = b.let(self.x(n, h, w, channel), "place")
                value = b.let(tir.load(self.operands.outputs[0], place, width), "d_x")
                self.store(b, (n, h, w, channel), value, place)

            channels(inner, vector)

        block.loop(self.spec.h, lambda b, h: b.loop(self.spec.w, lambda c, w: position(c, h, w), name="w"), name="h")

    def _first_maximum(self, block: Block, n: Value, row: Value, column: Value, channel: Value, width: int) -> None:
        """The window's maxima are found here, from x itself: one computed elsewhere may differ by a rounding."""
        x, d_y = self.operands.inputs[:2]
        d_x = self.operands.outputs[0]
        rows, columns = self.window(block, row, 0), self.window(block, column, 1)
        zero = tir.literal(0.0, self.stored, width)
        best = block.local(width, self.stored, "best")
        block.store(best, 0, tir.literal(-math.inf, self.stored, width))

        def find(inner: Block, h: Value, w: Value) -> None:
            value = tir.load(x, self.x(n, h, w, channel), width)
            inner.store(best, 0, tirx.Max(tir.load(best, 0, width), value))

        area(block, rows, columns, find)
        highest = block.let(tir.load(best, 0, width), "highest")
        gradient = block.let(tir.load(d_y, self.y(n, row, column, channel), width), "gradient")
        assigned = block.local(width, self.stored, "given")  # 1.0 in the lanes whose maximum has been met
        block.store(assigned, 0, zero)

        def give(inner: Block, h: Value, w: Value) -> None:
            flat = inner.let(self.x(n, h, w, channel), "flat")
            value = inner.let(tir.load(x, flat, width), "x")
            so_far = inner.let(tir.load(assigned, 0, width), "given")
            hit = tirx.And(tirx.EQ(value, highest), tirx.EQ(so_far, zero))
            old = inner.let(tir.load(d_x, flat, width), "old")
            inner.store(d_x, flat, tirx.Add(old, tirx.Select(hit, gradient, zero)))
            inner.store(assigned, 0, tirx.Select(hit, tir.literal(1.0, self.stored, width), so_far))

        area(block, rows, columns, give)
