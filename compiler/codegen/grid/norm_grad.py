"""Gradient of layer norm and RMS norm on a grid.

With n = (x - mean) scale, g = d_y weight: d_x = scale (g - mean(g) - n mean(g n)), d_weight = sum over rows of d_y n,
d_bias that of d_y. The first launch walks along rows, for d_x, and leaves each row's mean and scale; the second adds
up columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from compiler.codegen.grid.functions import DEVICE, number
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.norm_grad_plan import plan, workspace_bytes
from compiler.codegen.grid.summing import Partials, Share, Terms, each_term, of_group, share_of, summed
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import epilogue
from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, Value, load
from compiler.element_types import SCRATCH
from compiler.kernels.spec import NormGradSpec
from compiler.targets import GridTarget


def emit(spec: NormGradSpec, target: GridTarget, threads: int) -> Grid:
    """The gradient."""
    grid, kernel = Grid(spec, workspace_bytes(spec, target, threads)), _Gradient(spec, target)
    of_x, of_weight, of_bias = spec.wanted
    if of_x or of_weight:
        grid.launch(kernel.plan.rows.groups, kernel.plan.rows.items, kernel.rows)
    if of_weight or of_bias:
        grid.launch(kernel.plan.columns.groups, kernel.plan.columns.items, kernel.columns)
        kernel.partials.finish(grid, kernel.write_sum)
    return grid


@dataclass(frozen=True)
class _Row:
    """The start of a row of x, and the row's statistics as far as they are known (a norm that is not centred has no
    mean).
    """

    x: Buffer
    base: Value
    mean: Value = None
    scale: Value = None

    def centred(self, block: Block, column: Value) -> Value:
        """x - mean."""
        value = block.let(load(self.x, self.base + column), "x")
        return value if self.mean is None else block.let(value - self.mean, "x")

    def n(self, block: Block, column: Value) -> Value:
        """An element of the norm, before the weight."""
        return block.let(self.centred(block, column) * self.scale, "n")


class _Gradient:
    """Writes the launches of one kernel."""

    def __init__(self, spec: NormGradSpec, target: GridTarget) -> None:
        self.spec, self.plan, self.sums = spec, plan(spec, target), sum(spec.wanted[1:])
        self.partials = Partials(self.plan.columns.parts, self.sums * spec.width, start=self.plan.statistics)

    # ------------------------------------------------------------------------------------------------------------ rows

    def rows(self, here: Here) -> None:
        """The statistics of rows, and d_x."""
        share = share_of(here, self.plan.rows)
        row = self._row(here, share)
        if self.plan.statistics:
            here.block.when(share.delivers, lambda block: self._keep(here.operands, block, share.result, row))
        if not self.spec.wanted[0]:
            return

        def terms(block: Block, column: Value) -> list[Value]:
            return self._terms_of_x(here.operands, block, row, column)

        means = self._means(here, share, terms, 1 + self.spec.centred)

        def along(block: Block) -> None:
            def emit_column(inner: Block, column: Value) -> None:
                self._write(here.operands, inner, row, means, Point((share.result, column)))

            each_term(block, self.plan.rows, share, emit_column)

        if share.exists is None:
            along(here.block)
        else:
            here.block.when(share.exists, along)

    def _row(self, here: Here, share: Share) -> _Row:
        """The mean first: of a large one, a variance from sums of squares would leave nothing."""
        row = _Row(here.operands.inputs[0], here.block.let(share.result * self.spec.width, "base"))
        if self.spec.centred:
            (mean,) = self._means(here, share, lambda block, column: [row.centred(block, column)])
            row = replace(row, mean=mean)

        def square(block: Block, column: Value) -> list[Value]:
            value = row.centred(block, column)
            return [value * value]

        (variance,) = self._means(here, share, square)
        root = tirx.sqrt(variance + number(self.spec.epsilon))
        return replace(row, scale=here.block.let(tirx.Div(number(1.0), root), "scale"))

    def _means(self, here: Here, share: Share, terms: Terms, count: int = 1) -> list[Value]:
        """The means of `count` terms along the row."""
        item_sums = summed(here.block, self.plan.rows, share, "sum", [SCRATCH.tir] * count, terms)
        totals = of_group(here, self.plan.rows, share, "sum", item_sums)
        return [here.block.let(total * number(1.0 / self.spec.width), "mean") for total in totals]

    def _keep(self, operands: Operands, block: Block, number: Value, row: _Row) -> None:
        """A row's statistics, to the workspace: all means, then all scales."""
        if row.mean is not None:
            block.store(operands.workspace, number, row.mean)
        block.store(operands.workspace, number + self.spec.rows, row.scale)

    def _terms_of_x(self, operands: Operands, block: Block, row: _Row, column: Value) -> list[Value]:
        """g n and, if centred, g."""
        g = self._g(operands, block, row, column)
        product = block.let(g * row.n(block, column), "gn")
        return [product, g] if self.spec.centred else [product]

    def _g(self, operands: Operands, block: Block, row: _Row, column: Value) -> Value:
        _, weight, d_y = operands.inputs[:3]
        return block.let(load(d_y, row.base + column) * load(weight, column), "g")

    def _write(self, operands: Operands, block: Block, row: _Row, means: Sequence[Value], point: Point) -> None:
        """An element of d_x, with the epilogue."""
        column = point.axes[1]
        rest = self._g(operands, block, row, column) - row.n(block, column) * means[0]
        if self.spec.centred:
            rest = rest - means[1]
        inputs = list(zip(operands.inputs[3:], self.spec.epilogue_inputs, strict=True))
        value = epilogue(block, self.spec.epilogue, block.let(rest * row.scale, "d_x"), inputs, point, DEVICE)
        block.store(operands.outputs[0], row.base + column, value)

    # --------------------------------------------------------------------------------------------------------- columns

    def columns(self, here: Here) -> None:
        """The sums of d_weight and d_bias over the group's rows."""
        split = self.plan.columns
        share = share_of(here, split)

        def terms(block: Block, number: Value) -> list[Value]:
            return self._terms_of_column(here.operands, block, number, share.result)

        item_sums = summed(here.block, split, share, "sum", [SCRATCH.tir] * self.sums, terms)
        totals = of_group(here, split, share, "sum", item_sums)

        def deliver(block: Block) -> None:
            for place, total in enumerate(totals):
                number = share.result + place * self.spec.width
                self.partials.deliver(here, block, share.part, number, total, self.write_sum)

        here.block.when(share.delivers, deliver)

    def _terms_of_column(self, operands: Operands, block: Block, number: Value, column: Value) -> list[Value]:
        """d_y n and d_y, as far as they are wanted."""
        base = block.let(number * self.spec.width, "base")
        d_y = block.let(load(operands.inputs[2], base + column), "d_y")
        terms = [d_y] if self.spec.wanted[2] else []
        if not self.spec.wanted[1]:
            return terms
        workspace = operands.workspace
        mean = block.let(load(workspace, number), "mean") if self.spec.centred else None
        row = _Row(operands.inputs[0], base, mean, block.let(load(workspace, number + self.spec.rows), "scale"))
        return [block.let(d_y * row.n(block, column), "d_w"), *terms]

    def write_sum(self, here: Here, block: Block, number: Value, total: Value) -> None:
        """A finished sum: those of d_weight are numbered before those of d_bias."""
        first, *second = here.operands.outputs[int(self.spec.wanted[0]) :]
        if not second:
            block.store(first, number, total)
            return
        width = tir.index(self.spec.width)
        block.when(
            tirx.LT(number, width),
            lambda inner: inner.store(first, number, total),
            lambda inner: inner.store(second[0], number - width, total),
        )
