"""Pooling on a grid: an item for each result, neighbours along channels.

Gradients are gathered: the item of a position of x asks the windows that cover it. The gradient of a maximum is two
launches: the first finds the place of each window's maximum, the second is that of `places_grad`.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.grid.functions import DEVICE, number
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of, points
from compiler.codegen.grid.pool_plan import workspace_bytes
from compiler.codegen.pool.loops import area
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators
from compiler.codegen.tir.expressions import epilogue
from compiler.codegen.tir.scalar_math import is_nan
from compiler.codegen.tir.tir import Block, Buffer, Point, Value
from compiler.errors import InternalError
from compiler.kernels.places import WORD_BYTES, words_of_sample
from compiler.kernels.spec import PoolSpec
from compiler.targets import GridTarget

Axes = tuple[Value, Value, Value, Value]
"""Image, row, column, channel."""
Range = tuple[Value, Value]
"""First and end."""
Each = Callable[[Here, Block, Value], None]


def emit(spec: PoolSpec, target: GridTarget, threads: int) -> Grid:
    """A pooling kernel. Raises: InternalError for an unknown kind."""
    grid, kernel = Grid(spec, workspace_bytes(spec, target, threads)), _Pool(spec)
    launches: dict[str, list[tuple[int, Each]]] = {
        "max": [(kernel.y_size, kernel.maximum)],
        "average": [(kernel.y_size, kernel.average)],
        "average_grad": [(kernel.x_size, kernel.average_gradient)],
        "max_grad": [(kernel.y_size, kernel.keep_place), (kernel.x_size, kernel.gradient)],
        "max_places": [(spec.n * kernel.sample_bytes, kernel.maximum_and_place)],
        "places_grad": [(kernel.x_size, kernel.gradient)],
    }
    if spec.kind not in launches:
        raise InternalError(f"no pooling kernel of kind {spec.kind!r}")
    for count, each in launches[spec.kind]:
        if count:
            grid.each(count, ITEMS, each)
    return grid


class _Pool:
    """Writes the launches of one kernel."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.x_shape, self.y_shape = (spec.n, spec.h, spec.w, spec.c), (spec.n, spec.oh, spec.ow, spec.c)
        self.x_size, self.y_size = points(self.x_shape), points(self.y_shape)
        self.sample_bytes = words_of_sample((spec.oh, spec.ow), spec.c) * WORD_BYTES

    # --------------------------------------------------------------------------------------------------------- windows

    def _window(self, block: Block, at: Axes) -> tuple[Range, Range]:
        """Rows and columns of x, inside the image, of the window of an output."""

        def along(place: Value, axis: int) -> Range:
            extent, kernel = (self.spec.h, self.spec.w)[axis], self.spec.kernel[axis]
            first = block.let(place * self.spec.strides[axis] - self.spec.pads[axis], "first")
            return block.let(tirx.max(first, 0), "low"), block.let(tirx.min(first + kernel, extent), "high")

        return along(at[1], 0), along(at[2], 1)

    def _window_size(self) -> tuple[int, int] | None:
        """The extents of all windows, where none reaches over the image's edge."""
        spec = self.spec
        out = (spec.oh, spec.ow)
        ends = [(last - 1) * by + extent for last, by, extent in zip(out, spec.strides, spec.kernel, strict=True)]
        return spec.kernel if not any(spec.pads[:2]) and ends[0] <= spec.h and ends[1] <= spec.w else None

    def _covering(self, block: Block, at: Axes) -> tuple[Range, Range]:
        """Rows and columns of the outputs whose windows cover a position of x."""

        def along(place: Value, axis: int) -> Range:
            stride, outputs = self.spec.strides[axis], (self.spec.oh, self.spec.ow)[axis]
            reach = block.let(place + self.spec.pads[axis], "reach")
            # Not below 0 before the division, which cuts toward 0.
            low = tirx.truncdiv(tirx.max(reach - (self.spec.kernel[axis] - stride), 0), tir.index(stride))
            high = tirx.min(tirx.truncdiv(reach, tir.index(stride)) + 1, outputs)
            return block.let(low, "low"), block.let(high, "high")

        return along(at[1], 0), along(at[2], 1)

    def _covering_size(self) -> tuple[int, int] | None:
        """Returns how many windows cover each position, where they lie side by side and leave nothing over, else
        None.
        """
        spec = self.spec
        reached = (spec.oh * spec.kernel[0], spec.ow * spec.kernel[1])
        is_even = spec.kernel == spec.strides and not any(spec.pads[:2]) and reached == (spec.h, spec.w)
        return (1, 1) if is_even else None

    def _place(self, at: Axes, h: Value, w: Value) -> Value:
        """Returns the place, in an output's window, of a position of x."""
        down = h - (at[1] * self.spec.strides[0] - self.spec.pads[0])
        right = w - (at[2] * self.spec.strides[1] - self.spec.pads[1])
        return down * self.spec.kernel[1] + right

    # --------------------------------------------------------------------------------------------------------- results

    def maximum(self, here: Here, block: Block, item: Value) -> None:
        """An output of max pooling."""
        at = self._axes(block, item, self.y_shape)
        best = Accumulators(block, "max", "float32", 1, 1)
        rows, columns = self._window(block, at)

        def tap(inner: Block, h: Value, w: Value) -> None:
            best.add(inner, 0, self._load(inner, here.operands.inputs[0], self._x(at, h, w)))

        area(block, rows, columns, tap, self._window_size())
        self._store(here, block, at, item, block.let(best.get(0), "highest"))

    def average(self, here: Here, block: Block, item: Value) -> None:
        """An output of average pooling; the rows of a window are summed apart."""
        at = self._axes(block, item, self.y_shape)
        rows, columns = self._window(block, at)

        def tap(inner: Block, h: Value, w: Value) -> Value:
            return self._load(inner, here.operands.inputs[0], self._x(at, h, w))

        total = _sum(block, (rows, columns), tap, self._window_size())
        self._store(here, block, at, item, block.let(total * self._share(block, rows, columns), "mean"))

    def average_gradient(self, here: Here, block: Block, item: Value) -> None:
        """d_x at one position: the shares of all windows that cover it."""
        at = self._axes(block, item, self.x_shape)

        def tap(inner: Block, row: Value, column: Value) -> Value:
            window = (at[0], row, column, at[3])
            d_y = self._load(inner, here.operands.inputs[0], self._y(window))
            return inner.let(d_y * self._share(inner, *self._window(inner, window)), "share")

        self._store(here, block, at, item, _sum(block, self._covering(block, at), tap, self._covering_size()))

    def _share(self, block: Block, rows: Range, columns: Range) -> Value:
        """1 / (number of positions that an output averages)."""
        spec = self.spec
        if spec.count_pads or self._window_size() is not None:
            return number(1.0 / (spec.kernel[0] * spec.kernel[1]))
        count = tirx.max((rows[1] - rows[0]) * (columns[1] - columns[0]), 1)
        return block.let(tirx.Div(number(1.0), tirx.Cast("float32", count)), "share")

    # ---------------------------------------------------------------------------------------------------------- places

    def _first_maximum(self, here: Here, block: Block, at: Axes) -> tuple[Value, Value]:
        """The highest value of a window, and the place of the first such (with NaN, of the last NaN)."""
        best, place = block.local(1, "float32", "best"), block.local(1, "int32", "place")
        rows, columns = self._window(block, at)
        # Of a window that has no image, a place all the same.
        last = self.spec.kernel[0] * self.spec.kernel[1] - 1
        block.store(best, 0, tir.literal(float("-inf"), "float32"))
        block.store(place, 0, tirx.min(self._place(at, rows[0], columns[0]), last))

        def tap(inner: Block, h: Value, w: Value) -> None:
            value = self._load(inner, here.operands.inputs[0], self._x(at, h, w))
            is_higher = tirx.Or(tirx.LT(tir.load(best, 0), value), is_nan(value))

            def take(innermost: Block) -> None:
                innermost.store(best, 0, value)
                innermost.store(place, 0, self._place(at, h, w))

            inner.when(is_higher, take)

        area(block, rows, columns, tap, self._window_size())
        return block.let(tir.load(best, 0), "highest"), block.let(tir.load(place, 0), "at")

    def keep_place(self, here: Here, block: Block, item: Value) -> None:
        """The place of a window's maximum, to the workspace."""
        _, place = self._first_maximum(here, block, self._axes(block, item, self.y_shape))
        block.store(here.operands.workspace, item, tirx.Cast("float32", place))

    def maximum_and_place(self, here: Here, block: Block, item: Value) -> None:
        """A byte of the words, of which a sample's last may be no place, and its output."""
        image, element = tir.divide(block, item, self.sample_bytes)
        place_bytes = _bytes(block, here.operands.outputs[1])

        def emit_maximum(inner: Block) -> None:
            at = (image, *place_of(inner, element, self.y_shape[1:]))
            highest, place = self._first_maximum(here, inner, at)
            inner.store(place_bytes, item, tirx.Cast("uint8", place))
            self._store(here, inner, at, self._y(at), highest)

        used = points(self.y_shape[1:])
        if used == self.sample_bytes:
            emit_maximum(block)
        else:
            is_place = tirx.LT(element, tir.index(used))
            block.when(is_place, emit_maximum, lambda inner: inner.store(place_bytes, item, tir.literal(0, "uint8")))

    def gradient(self, here: Here, block: Block, item: Value) -> None:
        """d_x at one position: what the windows give whose maximum is there."""
        at = self._axes(block, item, self.x_shape)
        if self.spec.kind == "max_grad":
            places, sample = here.operands.workspace, points(self.y_shape[1:])
        else:
            places, sample = _bytes(block, here.operands.inputs[0]), self.sample_bytes

        def tap(inner: Block, row: Value, column: Value) -> Value:
            window = (at[0], row, column, at[3])
            element = inner.let((row * self.spec.ow + column) * self.spec.c + at[3], "element")
            place = inner.let(tirx.Cast("int32", tir.load(places, at[0] * sample + element)), "at")
            is_here = tirx.EQ(place, self._place(window, at[1], at[2]))
            d_y = tir.load(here.operands.inputs[1], self._y(window))
            return inner.let(tirx.if_then_else(is_here, d_y, number(0.0)), "given")

        self._store(here, block, at, item, _sum(block, self._covering(block, at), tap, self._covering_size()))

    # -------------------------------------------------------------------------------------------------------- operands

    def _axes(self, block: Block, item: Value, shape: tuple[int, int, int, int]) -> Axes:
        image, row, column, channel = place_of(block, item, shape)
        return image, row, column, channel

    def _x(self, at: Axes, h: Value, w: Value) -> Value:
        return ((at[0] * self.spec.h + h) * self.spec.w + w) * self.spec.c + at[3]

    def _y(self, at: Axes) -> Value:
        return ((at[0] * self.spec.oh + at[1]) * self.spec.ow + at[2]) * self.spec.c + at[3]

    def _load(self, block: Block, buffer: Buffer, flat: Value) -> Value:
        return block.let(tir.load(buffer, flat), "x")

    def _store(self, here: Here, block: Block, at: Axes, flat: Value, value: Value) -> None:
        """The epilogue of one result, to the first output."""
        main_count = len(here.operands.inputs) - len(self.spec.epilogue_inputs)
        inputs = list(zip(here.operands.inputs[main_count:], self.spec.epilogue_inputs, strict=True))
        result = epilogue(block, self.spec.epilogue, value, inputs, Point(at), DEVICE)
        block.store(here.operands.outputs[0], flat, result)


def _sum(
    block: Block,
    where: tuple[Range, Range],
    tap: Callable[[Block, Value, Value], Value],
    size: tuple[int, int] | None,
) -> Value:
    """The sum of `tap(block, row, column)` over a rectangle, row by row; `size`: its extents, if always the same."""
    rows, columns = where
    total = Accumulators(block, "sum", "float32", 1, 1)

    def one_row(inner: Block, i: Value) -> None:
        row, sums = inner.let(rows[0] + i, "row"), Accumulators(inner, "sum", "float32", 1, 1)

        def add_tap(innermost: Block, j: Value) -> None:
            sums.add(innermost, 0, tap(innermost, row, innermost.let(columns[0] + j, "column")))

        inner.loop(columns[1] - columns[0] if size is None else size[1], add_tap, name="dw")
        total.add(inner, 0, inner.let(sums.get(0), "of_row"))

    block.loop(rows[1] - rows[0] if size is None else size[0], one_row, name="dh")
    return block.let(total.get(0), "total")


def _bytes(block: Block, words: Buffer) -> Buffer:
    """Words seen as the bytes that they are."""
    view = tirx.decl_buffer((int(words.shape[0]) * WORD_BYTES,), "uint8", name="bytes")
    block.add(tirx.DeclBuffer(view, data=tirx.buffer_data(words)))
    return view
