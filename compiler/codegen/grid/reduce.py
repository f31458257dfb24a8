"""Reductions over any axes: items side by side along results (column sums) or along terms (row sums)."""

from __future__ import annotations

from compiler.codegen.grid.functions import DEVICE
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import place_of
from compiler.codegen.grid.reduce_plan import ReducePlan, plan, workspace_bytes
from compiler.codegen.grid.summing import Partials, of_group, share_of, summed
from compiler.codegen.reduce.plan import element_dtype
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import Evaluator, spec_point
from compiler.codegen.tir.tir import Block, Point, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.spec import ReduceSpec
from compiler.targets import GridTarget


def emit(spec: ReduceSpec, target: GridTarget, threads: int) -> Grid:
    """A reduction: the sums of groups and, where several groups share a result, a launch that adds those."""
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    chosen = plan(spec, target)
    kernel = _Reduction(spec, chosen)
    if chosen.split.results:
        grid.launch(chosen.split.groups, chosen.split.items, kernel.sums)
        kernel.partials.finish(grid, kernel.write)
    return grid


class _Reduction:
    """Writes the launches of one plan."""

    def __init__(self, spec: ReduceSpec, chosen: ReducePlan) -> None:
        self.spec, self.plan, self.space = spec, chosen, chosen.space
        self.element = ELEMENT_TYPES[element_dtype(spec)].sum.tir
        self.partials = Partials(chosen.split.parts, chosen.split.results, spec.combine)

    def sums(self, here: Here) -> None:
        """Emits each item's terms, combined over the group."""
        split = self.plan.split
        share = share_of(here, split)
        origin = self._kept_point(here.block, share.result)

        def terms(block: Block, number: Value) -> tuple[Value]:
            return (self._term(here, block, self._moved(block, origin, self.plan.reduced, number)),)

        item_sums = summed(here.block, split, share, self.spec.combine, [self.element], terms)
        (total,) = of_group(here, split, share, self.spec.combine, item_sums)
        here.block.when(
            share.delivers,
            lambda block: self.partials.deliver(here, block, share.part, share.result, total, self.write),
        )

    def write(self, here: Here, block: Block, number: Value, total: Value) -> None:
        """The epilogue of a finished result: what it reads may share storage with what it writes."""
        point, count = self._kept_point(block, number), len(self.spec.inputs)
        accesses = self.space.accesses
        refs = [block.let(total, "acc")]
        for buffer, access in zip(here.operands.inputs[count:], accesses[count + 1 :], strict=True):
            refs.append(tir.read(block, buffer, access, point))
        result = self._value(block, refs, point).value(self.spec.epilogue, accesses[count].type.element.tir_value)
        tir.write(block, here.operands.outputs[0], accesses[count], point, result)

    def _term(self, here: Here, block: Block, point: Point) -> Value:
        accesses = self.space.accesses[: len(self.spec.inputs)]
        refs = [
            tir.read(block, buffer, access, point)
            for buffer, access in zip(here.operands.inputs, accesses, strict=False)
        ]
        return self._value(block, refs, point).value(self.spec.expr, self.element)

    def _value(self, block: Block, refs: list[Value], point: Point) -> Evaluator:
        at = spec_point(self.space, len(self.spec.extents), point)
        return Evaluator(block, refs, point=at, functions=DEVICE)

    def _kept_point(self, block: Block, number: Value) -> Point:
        """Returns the point where a result stands; reduced axes are at their start."""
        origin = Point((tir.index(0),) * len(self.space.extents))
        return self._moved(block, origin, self.plan.kept_axes, number)

    def _moved(self, block: Block, point: Point, axes: tuple[int, ...], number: Value) -> Point:
        """`point` moved to place `number` of the space of some axes."""
        places = place_of(block, number, [self.space.extents[axis] for axis in axes])
        for axis, place in zip(axes, places, strict=True):
            point = point.at(axis, place)
        return point
