"""Row-wise kernels (softmax, norms, cross-entropy, their gradients): some neighbouring items for each row.

A row's items walk along it for the statistics, meet in shared memory, and walk along it again for the outputs, which
may lie where inputs do: all statistics are known by then, and a point is written by the item that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.codegen.grid.functions import DEVICE
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.split import Split, split_sums
from compiler.codegen.grid.summing import Share, each_term, of_group, share_of, summed
from compiler.codegen.row.plan import dtype_in_row
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import Evaluator
from compiler.codegen.tir.iteration import FlatAccess, flatten_access
from compiler.codegen.tir.tir import Block, Operands, Point, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.expressions import Binary, Expr, Ref, Select, Stat, Unary
from compiler.kernels.spec import RowSpec
from compiler.targets import GridTarget


def emit(spec: RowSpec, target: GridTarget, threads: int) -> Grid:
    """A row-wise kernel."""
    grid = Grid(spec)
    kernel = _Rows(spec, target)
    if spec.rows and spec.width:
        grid.launch(kernel.split.groups, kernel.split.items, kernel.rows)
    return grid


class _Rows:
    """Writes the one launch."""

    def __init__(self, spec: RowSpec, target: GridTarget) -> None:
        extents = (spec.rows, spec.width)
        self.spec = spec
        self.inputs = tuple(flatten_access(access, extents) for access in spec.inputs)
        self.outputs = tuple(flatten_access(access, extents) for access in spec.outputs)
        self.split = _split(spec, self.inputs or self.outputs, target)

    def rows(self, here: Here) -> None:
        """Emits every stage, then every output."""
        share = share_of(here, self.split)
        row = Point((share.result, tir.index(0)))
        fixed = {
            number: tir.read(here.block, here.operands.inputs[number], access, row)
            for number, access in enumerate(self.inputs)
            if _is_per_row(access)
        }
        stats: list[Value] = []
        for stages in passes(self.spec):
            stats += self._statistics(here, share, _Row(self, here.operands, row, fixed, tuple(stats)), stages)
        last = _Row(self, here.operands, row, fixed, tuple(stats))
        moving = [number for number, access in enumerate(self.outputs) if not _is_per_row(access)]

        def along(block: Block) -> None:
            each_term(block, self.split, share, lambda inner, column: last.write(inner, row.at(1, column), moving))

        if moving and share.exists is None:
            along(here.block)
        elif moving:
            here.block.when(share.exists, along)
        once = [number for number in range(len(self.outputs)) if number not in moving]
        if once:
            here.block.when(share.delivers, lambda block: last.write(block, row, once))

    def _statistics(self, here: Here, share: Share, row: _Row, stages: Sequence[int]) -> list[Value]:
        """Returns the statistics of some stages that combine alike, in one walk along the row."""
        chosen = [self.spec.stages[stage] for stage in stages]
        combine, kinds = chosen[0][0], [_kind(expr, self.spec) for _, expr in chosen]

        def terms(block: Block, column: Value) -> list[Value]:
            return row.values(block, row.start.at(1, column), [expr for _, expr in chosen], kinds)

        item_sums = summed(here.block, self.split, share, combine, kinds, terms)
        return of_group(here, self.split, share, combine, item_sums)


class _Row:
    """A row, of which some statistics are known. `fixed`: inputs that do not move along it."""

    def __init__(
        self, kernel: _Rows, operands: Operands, start: Point, fixed: Mapping[int, Value], stats: tuple[Value, ...]
    ) -> None:
        self.kernel, self.operands, self.start, self.fixed, self.stats = kernel, operands, start, fixed, stats

    def values(self, block: Block, point: Point, exprs: Sequence[Expr], kinds: Sequence[str]) -> list[Value]:
        """Expressions at a point of the row; a bare constant is of its `kind`."""
        used = _leaves(*exprs)[0]
        refs = [
            self.fixed[n] if n in self.fixed else tir.read(block, buffer, access, point) if n in used else None
            for n, (buffer, access) in enumerate(zip(self.operands.inputs, self.kernel.inputs, strict=True))
        ]
        evaluator = Evaluator(block, refs, stats=self.stats, point=point, functions=DEVICE)
        return [evaluator.value(expr, kind) for expr, kind in zip(exprs, kinds, strict=True)]

    def write(self, block: Block, point: Point, numbers: Sequence[int]) -> None:
        """Writes some outputs at a point: all that is read there is read before any of them is written."""
        spec, accesses = self.kernel.spec, self.kernel.outputs
        kinds = [accesses[n].type.element.tir_value for n in numbers]
        values = self.values(block, point, [spec.exprs[n] for n in numbers], kinds)
        for n, value in zip(numbers, values, strict=True):
            tir.write(block, self.operands.outputs[n], accesses[n], point, value)


def passes(spec: RowSpec) -> list[list[int]]:
    """The stages in the order of their walks along the row: a walk's combine alike, and use no other's statistic."""
    walks: list[list[int]] = []
    for stage, (combine, expr) in enumerate(spec.stages):
        available = all(other < walks[-1][0] for other in _leaves(expr)[1]) if walks else False
        if available and spec.stages[walks[-1][0]][0] == combine:
            walks[-1].append(stage)
        else:
            walks.append([stage])
    return walks


def _leaves(*exprs: Expr) -> tuple[set[int], set[int]]:
    """The operands and the statistics that expressions read; shared parts (an expression is a graph) are met once."""
    operands, stats, met = set[int](), set[int](), set[int]()
    todo = list(exprs)
    while todo:
        expr = todo.pop()
        if id(expr) in met:
            continue
        met.add(id(expr))
        match expr:
            case Ref(operand):
                operands.add(operand)
            case Stat(stage):
                stats.add(stage)
            case Unary(_, x):
                todo.append(x)
            case Binary(_, x, y):
                todo += (x, y)
            case Select(cond, then, other):
                todo += (cond, then, other)
    return operands, stats


def _split(spec: RowSpec, accesses: Sequence[FlatAccess], target: GridTarget) -> Split:
    """Items side by side along the rows; along the other axis, where the largest input lies so."""
    strides = max(accesses, key=lambda access: access.type.size).strides
    is_turned = strides[0] == 1 and strides[1] != 1 and spec.width > 1
    return split_sums(spec.rows, spec.width, target, columns=is_turned, splits=False)


def _is_per_row(access: FlatAccess) -> bool:
    return not access.strides[1] and not any(axis == 1 for guard in access.guards for axis, _ in guard.terms)


def _kind(expr: Expr, spec: RowSpec) -> str:
    """The type in which a stage's terms are combined."""
    return ELEMENT_TYPES[dtype_in_row(expr, spec)].sum.tir
