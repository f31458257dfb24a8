"""Weight gradient of a depth-wise convolution on a grid: an item forms a kernel row of a channel over some rows of d_y.

Groups beside those of the kernel rows form the gradient of the bias, the sums of d_y itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx

from compiler.codegen.conv.phases import forward_axis
from compiler.codegen.grid.depthwise.plan import rows_of_weights, split_of, sums_of_weights
from compiler.codegen.grid.functions import DEVICE
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import place_of
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
