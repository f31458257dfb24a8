"""Depth-wise convolution on a grid, forward and input gradient: an item forms some columns of an output row.

A strided input gradient has several phases (see `conv.phases`): each phase of rows is a launch; an item holds the
columns of all phases at its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.conv.phases import AxisPhase, axis_phases, tap_run
from compiler.codegen.grid.depthwise.plan import columns_of
from compiler.codegen.grid.functions import DEVICE
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators
from compiler.codegen.tir.expressions import epilogue
from compiler.codegen.tir.tir import Block, Point, Value, load
from compiler.element_types import SCRATCH
from compiler.kernels.spec import DepthwiseSpec

_Sums = Sequence[Accumulators]
"""Sums, one for each of an item's columns."""


@dataclass(frozen=True)
class _Corner:
    """Where an item stands: image, place among rows and among columns, channel."""

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
        """All columns of one item: a loop over kernel rows, whose taps are unrolled."""
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
        """All products with one row of the input, of which each element is loaded once.

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
