"""A depth-wise convolution on a grid: forward and input gradient by `rows`, weight gradient by `weights`.

Depth-wise convolution on a grid, forward and input gradient: an item forms some columns of an output row.

A strided input gradient has several phases (see `conv.phases`): each phase of rows is a launch; an item holds the
columns of all phases at its place.

Weight gradient of a depth-wise convolution on a grid: an item forms a kernel row of a channel over some rows of d_y.

Groups beside those of the kernel rows form the gradient of the bias, the sums of d_y itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from compiler.codegen.conv.phases import AxisPhase, axis_phases, forward_axis, tap_run
from compiler.codegen.grid.depthwise.plan import columns_of, rows_of_weights, split_of, sums_of_weights, workspace_bytes
from compiler.codegen.grid.functions import DEVICE
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.grid.summing import Partials, Share, of_group, share_of, summed
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators
from compiler.codegen.tir.expressions import epilogue
from compiler.codegen.tir.tir import Block, Operands, Point, Value, load
from compiler.element_types import SCRATCH
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import GridTarget

_COLUMNS = 4
"""Columns of d_y whose products an item forms together: they share what they read of x."""
_TOGETHER = 8
"""Most sums that a group combines at a time: each takes shared memory."""


class DepthwiseWeights:
    """Writes the launches of one kernel."""

    def __init__(self, spec: DepthwiseSpec, target: GridTarget) -> None:
        self.spec, self.split = spec, split_of(spec, target)
        self.rows, self.columns = forward_axis(spec, 0), forward_axis(spec, 1)
        self.partials = Partials(self.split.parts, sums_of_weights(spec))

    def emit(self, grid: Grid) -> None:
        """The sums of groups, then those of their parts."""
        grid.launch(self.split.groups * rows_of_weights(self.spec), self.split.items, self._sums)
        self.partials.finish(grid, self._write)

    def _sums(self, here: Here) -> None:
        """Sums one kernel row (or d_y) for some channels and some rows of d_y."""
        rest, number = tir.divide(here.block, here.group, self.split.blocks)
        part, row = tir.divide(here.block, rest, rows_of_weights(self.spec))
        share, taps = share_of(here, self.split, number=number, part=part), self.spec.kernel[1]

        def terms(block: Block, unit: Value) -> list[Value]:
            return self._row(here.operands, block, unit, row, share.result)

        item_sums = summed(here.block, self.split, share, "sum", [SCRATCH.tir] * taps, terms)
        totals = self._of_group(here, share, item_sums)

        def deliver(first: int, block: Block) -> None:
            """Sums are numbered as weights lie; those of d_y behind them, as first taps of one more kernel row."""
            for tap, total in enumerate(totals[first : taps if first else 1], start=first):
                place = (row * taps + tap) * self.spec.c + share.result
                self.partials.deliver(here, block, part, place, total, self._write)

        here.block.when(share.delivers, partial(deliver, 0))
        if taps > 1:
            is_weight = tirx.LT(row, tir.index(self.spec.kernel[0]))
            here.block.when(tirx.And(share.delivers, is_weight), partial(deliver, 1))

    def _of_group(self, here: Here, share: Share, item_sums: Sequence[Value]) -> list[Value]:
        """The group's sums, some at a time."""
        if self.split.down == 1:
            return list(item_sums)
        shared = [here.shared(self.split.items, SCRATCH.tir, "sums") for _ in item_sums[:_TOGETHER]]
        totals: list[Value] = []
        for first in range(0, len(item_sums), _TOGETHER):
            values = item_sums[first : first + _TOGETHER]
            totals += of_group(here, self.split, share, "sum", values, shared[: len(values)])
        return totals

    def _write(self, here: Here, block: Block, number: Value, total: Value) -> None:
        """A finished sum, of a weight (with the epilogue) or of d_y."""
        shape = (*self.spec.kernel, self.spec.c)
        weights = shape[0] * shape[1] * shape[2]

        def weight(inner: Block) -> None:
            point = Point(place_of(inner, inner.let(number, "number"), shape))
            inputs = list(zip(here.operands.inputs[2:], self.spec.epilogue_inputs, strict=True))
            value = epilogue(inner, self.spec.epilogue, total, inputs, point, DEVICE)
            inner.store(here.operands.outputs[0], number, value)

        if not self.spec.sums:
            weight(block)
            return
        is_weight = tirx.LT(number, tir.index(weights))
        block.when(is_weight, weight, lambda b: b.store(here.operands.outputs[1], number - weights, total))

    # ---------------------------------------------------------------------------------------------------- a row of d_y

    def _row(self, operands: Operands, block: Block, unit: Value, row: Value, channel: Value) -> list[Value]:
        """The sums of each tap of a kernel row over one row of d_y."""
        spec, taps = self.spec, self.spec.kernel[1]
        image, q = tir.divide(block, unit, spec.oh)
        sums = [Accumulators(block, "sum", SCRATCH.tir, 1, 1) for _ in range(taps)]
        d_y = block.let(unit * (spec.ow * spec.c) + channel, "d_y")
        place = block.let(q * spec.strides[0] + row * spec.dilations[0] - spec.pads[0], "place")
        start = block.let((image * spec.h + place) * (spec.w * spec.c) + channel, "x")
        sweep = _Sweep(self, operands, d_y, start, sums)
        is_inside = tirx.And(tirx.LE(tir.index(0), place), tirx.LT(place, tir.index(spec.h)))

        def of_kernel(inner: Block) -> None:
            if self.rows.interior == (0, self.rows.count):
                sweep.products(inner)
            else:
                inner.when(is_inside, sweep.products)

        if spec.sums:
            block.when(tirx.LT(row, tir.index(spec.kernel[0])), of_kernel, sweep.alone)
        else:
            of_kernel(block)
        return [block.let(total.get(0), "row") for total in sums]


class _Sweep:
    """Along one row of d_y, one kernel row, one channel. `d_y` and `x`: where the rows begin."""

    def __init__(
        self, kernel: DepthwiseWeights, operands: Operands, d_y: Value, x: Value, sums: Sequence[Accumulators]
    ) -> None:
        self.spec, self.columns = kernel.spec, kernel.columns
        self.x, self.d_y = operands.inputs[:2]
        self.d_y_start, self.x_start, self.sums = d_y, x, sums

    def alone(self, block: Block) -> None:
        """The sum of d_y."""
        block.loop(
            self.spec.ow, lambda inner, column: self.sums[0].add(inner, 0, self._gradient(inner, column)), name="column"
        )

    def products(self, block: Block) -> None:
        """Columns at the image's edges by themselves, with a look at each tap; those between several at a time."""
        low, high = self.columns.interior
        self._each(block, 0, low, self._at_edge)
        turns = (high - low) // _COLUMNS
        block.loop(turns, lambda b, i: self._inside(b, b.let(i * _COLUMNS + low, "column"), _COLUMNS), name="columns")
        self._each(block, low + turns * _COLUMNS, high, lambda b, column: self._inside(b, column, 1))
        self._each(block, high, self.columns.count, self._at_edge)

    def _each(self, block: Block, first: int, end: int, body: Callable[[Block, Value], None]) -> None:
        block.loop(end - first, lambda inner, i: body(inner, inner.let(i + first, "column")), name="column")

    def _gradient(self, block: Block, column: Value) -> Value:
        return block.let(load(self.d_y, self.d_y_start + column * self.spec.c), "g")

    def _inside(self, block: Block, first: Value, width: int) -> None:
        """`width` columns from `first`, all of whose taps exist; what they share of x is loaded once."""
        step = self.columns.input_step
        start = block.let(self.x_start + first * (step * self.spec.c), "start")
        loaded: dict[int, Value] = {}
        for column in range(width):
            gradient = self._gradient(block, first + column)
            for tap, offset in self.columns.taps:
                place = column * step + offset
                if place not in loaded:
                    loaded[place] = block.let(load(self.x, start + place * self.spec.c), "x")
                self.sums[tap].add(block, 0, loaded[place] * gradient)

    def _at_edge(self, block: Block, column: Value) -> None:
        """Adds one column, some of whose taps do not exist."""
        gradient = self._gradient(block, column)
        for tap, offset in self.columns.taps:
            place = block.let(column * self.columns.input_step + offset, "w")
            inside = tirx.And(tirx.LE(tir.index(0), place), tirx.LT(place, tir.index(self.spec.w)))
            value = load(self.x, self.x_start + place * self.spec.c)
            value = block.let(tirx.if_then_else(inside, value, tir.literal(0.0, SCRATCH.tir)), "x")
            self.sums[tap].add(block, 0, value * gradient)


_Sums = Sequence[Accumulators]
"""Sums, one for each of an item's columns."""


@dataclass(frozen=True)
class _Corner:
    """The place where an item stands: image, place among rows and among columns, channel."""

    image: Value
    row: Value
    column: Value
    channel: Value


class DepthwiseRows:
    """Writes the launches of one kernel."""

    def __init__(self, spec: DepthwiseSpec) -> None:
        self.spec, self.columns = spec, columns_of(spec)
        self.places = max(phase.count for phase in self.columns)
        forward = spec.kind == "forward"
        self.out_shape = (spec.oh, spec.ow) if forward else (spec.h, spec.w)
        self.in_width = spec.w if forward else spec.ow

    def emit(self, grid: Grid) -> None:
        """A launch for each phase of rows."""
        for phase in axis_phases(self.spec, 0):
            shape = (self.spec.n, phase.count, self.places, self.spec.c)

            def emit_item(
                here: Here,
                block: Block,
                number: Value,
                rows: AxisPhase = phase,
                shape: tuple[int, int, int, int] = shape,
            ) -> None:
                image, row, column, channel = place_of(block, number, shape)
                self._item(here, block, rows, _Corner(image, row, column, channel))

            count = shape[0] * shape[1] * shape[2] * shape[3]
            if count:
                grid.each(count, ITEMS, emit_item)

    def _item(self, here: Here, block: Block, rows: AxisPhase, corner: _Corner) -> None:
        """Emits all columns of one item: a loop over kernel rows, whose taps are unrolled."""
        sums = [Accumulators(block, "sum", SCRATCH.tir, 1, 1) for _ in self.columns]
        run = tap_run(rows)

        def one_row(inner: Block, i: Value) -> None:
            place = inner.let(corner.row * rows.input_step + (i * run.offset_step + run.offset), "y")
            start = inner.let((i * run.tap_step + run.tap) * (self.spec.kernel[1] * self.spec.c), "weights")
            if all(rows.inside(offset) == (0, rows.count) for _, offset in rows.taps):
                self._products(here, inner, rows, corner, (place, start), sums)
                return
            is_inside = tirx.And(tirx.LE(tir.index(0), place), tirx.LT(place, tir.index(rows.input_extent)))
            inner.when(is_inside, lambda b: self._products(here, b, rows, corner, (place, start), sums))

        block.loop(run.count, one_row, name="tap")
        self._store(here, block, rows, corner, sums)

    def _products(
        self, here: Here, block: Block, rows: AxisPhase, corner: _Corner, at: tuple[Value, Value], sums: _Sums
    ) -> None:
        """Emits all products with one row of the input, of which each element is loaded once.

        `at`: the row of the input, and where the weights of the kernel row begin.
        """
        x, w = here.operands.inputs[:2]
        first = block.let(corner.column * self.columns[0].input_step, "first")
        row = (corner.image * rows.input_extent + at[0]) * self.in_width
        base = block.let((row + first) * self.spec.c + corner.channel, "base")
        taps = sorted({tap for phase in self.columns for tap, _ in phase.taps})
        weights = {tap: block.let(load(w, at[1] + corner.channel + tap * self.spec.c), "w") for tap in taps}
        for offset in sorted({offset for phase in self.columns for _, offset in phase.taps}):
            value = load(x, base + offset * self.spec.c)
            if not self._is_always_inside(offset):
                place = first + offset
                inside = tirx.And(tirx.LE(tir.index(0), place), tirx.LT(place, tir.index(self.in_width)))
                value = tirx.if_then_else(inside, value, tir.literal(0.0, SCRATCH.tir))
            value = block.let(value, "x")
            for total, phase in zip(sums, self.columns, strict=True):
                for tap, other in phase.taps:
                    if other == offset:
                        total.add(block, 0, value * weights[tap])

    def _is_always_inside(self, offset: int) -> bool:
        """Whether the input has the column that is `offset` from any item's first."""
        last = (self.places - 1) * self.columns[0].input_step
        return offset >= 0 and last + offset < self.in_width

    def _store(self, here: Here, block: Block, rows: AxisPhase, corner: _Corner, sums: _Sums) -> None:
        row = block.let(corner.row * rows.step + rows.first, "row")
        for total, phase in zip(sums, self.columns, strict=True):

            def store_phase(inner: Block, total: Accumulators = total, phase: AxisPhase = phase) -> None:
                column = inner.let(corner.column * phase.step + phase.first, "column")
                axes = (corner.image, row, column, corner.channel)
                self._finish(here, inner, axes, inner.let(total.get(0), "sum"))

            if phase.count == self.places:
                store_phase(block)
            else:
                block.when(tirx.LT(corner.column, tir.index(phase.count)), store_phase)

    def _finish(self, here: Here, block: Block, axes: Sequence[Value], value: Value) -> None:
        """The epilogue of one result."""
        image, row, column, channel = axes
        flat = ((image * self.out_shape[0] + row) * self.out_shape[1] + column) * self.spec.c + channel
        inputs = list(zip(here.operands.inputs[2:], self.spec.epilogue_inputs, strict=True))
        result = epilogue(block, self.spec.epilogue, value, inputs, Point(tuple(axes)), DEVICE)
        block.store(here.operands.outputs[0], flat, result)


def emit(spec: DepthwiseSpec, target: GridTarget, threads: int) -> Grid:
    """A depth-wise convolution."""
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    if spec.kind == "weight_grad":
        DepthwiseWeights(spec, target).emit(grid)
    else:
        DepthwiseRows(spec).emit(grid)
    return grid
