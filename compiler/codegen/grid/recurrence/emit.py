"""Recurrent layers for a grid: in every step the products with the recurrent weight, then the cell of every pair.

A cell's arithmetic on one item's numbers; every result is computed once.

The work of the items of a group in every step of a recurrent layer: they own columns of samples, and share their
sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.checks import when_all
from compiler.codegen.grid.functions import DEVICE, number
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS
from compiler.codegen.grid.recurrence.plan import RecurrencePlan, plan, workspace_bytes
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from compiler.targets import GridTarget

_BLOCK = 64
"""Terms of a sum that are added up by themselves first, so that errors do not grow with all of them."""

Weights = Callable[[Value, Value], list[Value]]
"""(term, column) -> what the term's factor is multiplied by for each of the column's sums."""


class Group:
    """The samples of one group.

    A *pair* is a sample's column of the layer. The same item owns it in all steps, so it may read again what it wrote
    of it; what others read goes through shared memory.
    """

    def __init__(self, here: Here, plan: RecurrencePlan, batch: int) -> None:
        self.here, self.plan, self.batch = here, plan, batch
        self.first = here.block.let(here.group * tir.index(plan.samples), "first")
        self.part, self.lane = tir.divide(here.block, here.item, plan.columns)
        self.factors = here.shared(plan.samples * plan.terms, name="factors")
        self.partial = here.shared(plan.samples * plan.items * plan.sums, name="partial")

    def each_pair(self, block: Block, turn: Value, body: Callable[[Block, Value, Value], None]) -> None:
        """`body(block, sample of the group, column)` for every pair of an item in one turn."""
        plan = self.plan

        def emit_pair(inner: Block, i: Value) -> None:
            sample = inner.let(self.part + i * tir.index(plan.parts), "sample")
            column = inner.let(turn * tir.index(plan.columns) + self.lane, "column")
            checks = [tirx.LT(sample, tir.index(plan.samples))] if plan.samples % plan.parts else []
            checks += [tirx.LT(self.first + sample, tir.index(self.batch))] if self.batch % plan.samples else []
            checks += [tirx.LT(column, tir.index(plan.width))] if plan.width % plan.columns else []
            when_all(inner, checks, lambda b: body(b, sample, column))

        block.loop(-(-plan.samples // plan.parts), emit_pair, name="pair")

    def each_pair_of_turns(self, block: Block, body: Callable[[Block, Value, Value], None]) -> None:
        """Emits `body` for each pair of an item, in all turns."""
        block.loop(self.plan.turns, lambda b, turn: self.each_pair(b, turn, body), name="turn")

    def share(self, block: Block, read: Callable[[Block, Value, Value, int], Value]) -> None:
        """Puts `read(block, sample, column, term's block)` of every pair into shared memory."""

        def put_pair(inner: Block, sample: Value, column: Value) -> None:
            at = inner.let(sample * tir.index(self.plan.terms) + column, "at")
            for which in range(self.plan.at_once):
                inner.store(self.factors, at + tir.index(which * self.plan.width), read(inner, sample, column, which))

        self.each_pair_of_turns(block, put_pair)
        self.here.barrier(block)

    def add_products(self, block: Block, turn: Value, totals: Buffer, weights: Weights) -> None:
        """Adds the products of an item's share of the terms to its totals [sums, samples] of a column of the turn."""
        plan = self.plan
        share = -(-plan.terms // plan.parts)
        column = block.let(turn * tir.index(plan.columns) + self.lane, "column")
        start = block.let(self.part * tir.index(share), "start")
        count: int | Value = share
        if plan.terms % plan.parts:
            remaining = tirx.max(tir.index(0), tir.index(plan.terms) - start)
            count = block.let(tirx.min(tir.index(share), remaining), "count")
        checks = [tirx.LT(column, tir.index(plan.width))] if plan.width % plan.columns else []

        def run(inner: Block, totals: Buffer, first: Value, turns: int | Value) -> None:
            inner.loop(turns, lambda b, i: self._term(b, b.let(first + i, "term"), column, totals, weights), name="i")

        def all_terms(inner: Block) -> None:
            if share <= _BLOCK:
                run(inner, totals, start, count)
            else:
                self._in_blocks(inner, start, count, totals, run)

        when_all(block, checks, all_terms)

    def _in_blocks(
        self,
        block: Block,
        start: Value,
        count: int | Value,
        totals: Buffer,
        run: Callable[[Block, Buffer, Value, int | Value], None],
    ) -> None:
        """Sums over blocks of terms, and then over the blocks."""
        count = tir.index(count)
        blocks = block.let(tirx.truncdiv(count + tir.index(_BLOCK - 1), tir.index(_BLOCK)), "blocks")

        def add_block(inner: Block, i: Value) -> None:
            offset = inner.let(i * tir.index(_BLOCK), "done")
            sums = self.zeros(inner)
            run(
                inner,
                sums,
                inner.let(start + offset, "from"),
                inner.let(tirx.min(tir.index(_BLOCK), count - offset), "n"),
            )
            for place in range(self._total_count):
                inner.store(totals, place, tir.load(totals, place) + tir.load(sums, place))

        block.loop(blocks, add_block, name="block")

    def _term(self, block: Block, term: Value, column: Value, totals: Buffer, weights: Weights) -> None:
        """Adds one term to all sums of an item."""
        plan = self.plan
        factors = [
            block.let(tir.load(self.factors, term + tir.index(s * plan.terms)), "factor") for s in range(plan.samples)
        ]
        for place, weight in enumerate(weights(term, column)):
            w = block.let(weight, "w")
            for s, factor in enumerate(factors):
                at = place * plan.samples + s
                block.store(totals, at, tir.load(totals, at) + w * factor)

    @property
    def _total_count(self) -> int:
        """Sums of an item."""
        return self.plan.sums * self.plan.samples

    def zeros(self, block: Block) -> Buffer:
        """An item's totals at their start."""
        registers = block.local(self._total_count, name="totals")
        for place in range(self._total_count):
            block.store(registers, place, number(0.0))
        return registers

    def publish(self, block: Block, totals: Buffer) -> None:
        """Writes an item's totals to where the owners of pairs see them."""
        for place in range(self._total_count):
            at = self.here.item + tir.index(place * self.plan.items)
            block.store(self.partial, at, tir.load(totals, place))
        self.here.barrier(block)

    def sums(self, block: Block, sample: Value) -> Sequence[Value]:
        """Returns the totals of all parts, added up, of a pair of an item."""
        plan, products = self.plan, []
        for place in range(plan.sums):
            at = (tir.index(place * plan.samples) + sample) * tir.index(plan.items) + self.lane
            at = block.let(at, "at")
            parts = [tir.load(self.partial, at + tir.index(part * plan.columns)) for part in range(plan.parts)]
            while len(parts) > 1:
                parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
            products.append(block.let(parts[0], "product"))
        return products


@dataclass(frozen=True)
class ItemArithmetic:
    """Writes to a block; see `compiler.kernels.cells.Arithmetic`."""

    block: Block

    def add(self, x: Value, y: Value) -> Value:
        return self.block.let(x + y, "sum")

    def sub(self, x: Value, y: Value) -> Value:
        return self.block.let(x - y, "difference")

    def mul(self, x: Value, y: Value) -> Value:
        return self.block.let(x * y, "product")

    def rest(self, x: Value) -> Value:
        return self.block.let(number(1.0) - x, "rest")

    def sigmoid(self, x: Value) -> Value:
        return self.block.let(DEVICE.unary["sigmoid"](self.block, x), "sigmoid")

    def tanh(self, x: Value) -> Value:
        return self.block.let(DEVICE.unary["tanh"](self.block, x), "tanh")

    def relu(self, x: Value) -> Value:
        return self.where_positive(x, x)

    def where_positive(self, x: Value, y: Value) -> Value:
        return self.block.let(tirx.Select(tirx.LE(x, number(0.0)), number(0.0), y), "part")


def emit(spec: RecurrenceSpec, target: GridTarget, threads: int) -> Grid:
    """A layer or its gradient. Raises: BuildError if it is too wide."""
    schedule = plan(spec, target)
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    groups = -(-spec.batch // schedule.samples)
    if spec.kind == "backward":
        grid.launch(groups, schedule.items, lambda here: _Backward(spec, schedule, here).write())
        return grid
    rows = CELLS[spec.cell].gates * spec.width

    def transpose(here: Here, block: Block, place: Value) -> None:
        column, row = tir.divide(block, place, rows)
        value = tir.load(here.operands.inputs[1], row * tir.index(spec.width) + column)
        block.store(here.operands.workspace, place, value)

    grid.each(rows * spec.width, min(ITEMS, target.items), transpose)
    grid.launch(groups, schedule.items, lambda here: _Forward(spec, schedule, here).write())
    return grid


class _Layer(ABC):
    """The base of both directions: where operands and scratch lie."""

    def __init__(self, spec: RecurrenceSpec, schedule: RecurrencePlan, here: Here) -> None:
        self.spec, self.plan, self.here, self.cell = spec, schedule, here, CELLS[spec.cell]
        self.group = Group(here, schedule, spec.batch)

    def at(self, step: Value, sample: Value, column: Value, count: int) -> Value:
        """Returns where `count` tensors of the layer's width, side by side in [T, B, count, H], hold a pair."""
        row = step * tir.index(self.spec.batch) + self.group.first + sample
        return row * tir.index(count * self.spec.width) + column

    def parts(self, block: Block, buffer: Buffer | None, at: Value, count: int) -> list[Value]:
        """A pair's numbers in tensors that lie side by side."""
        places = [at + tir.index(i * self.spec.width) for i in range(count)]
        return [block.let(tir.load(buffer, place), "part") for place in places]

    def put(self, block: Block, buffer: Buffer, at: Value, values: Sequence[Value]) -> None:
        """The inverse of `parts`."""
        for i, value in enumerate(values):
            block.store(buffer, at + tir.index(i * self.spec.width), value)

    def before(self, block: Block, step: Value, sample: Value, column: Value, which: int) -> Value:
        """A pair's state before a step: the start's before the first one taken, else the one that y has."""
        spec, count = self.spec, self.cell.states
        y, start = self.states
        offset = tir.index(which * spec.width)
        initial = tir.load(start, self.at(tir.index(0), sample, column, count) + offset)
        if spec.steps == 1:
            return block.let(initial, "before")
        earlier = step + tir.index(1 if spec.reverse else -1)
        later = tir.load(y, self.at(earlier, sample, column, count) + offset)
        is_first = tirx.EQ(step, tir.index(spec.steps - 1 if spec.reverse else 0))
        return block.let(tirx.if_then_else(is_first, initial, later), "before")

    @property
    @abstractmethod
    def states(self) -> tuple[Buffer, Buffer]:
        """y and start."""


class _Forward(_Layer):
    @property
    def states(self) -> tuple[Buffer, Buffer]:
        return self.here.operands.outputs[0], self.here.operands.inputs[2]

    def write(self) -> None:
        """Emits every step of the group's samples."""
        last = tir.index(self.spec.steps - 1)
        self.here.block.loop(
            self.spec.steps,
            lambda block, number: self._step(block, block.let(last - number, "step") if self.spec.reverse else number),
            name="step",
        )

    def _step(self, block: Block, step: Value) -> None:
        self.group.share(block, lambda b, sample, column, _: self.before(b, step, sample, column, 0))

        def turn(inner: Block, number: Value) -> None:
            totals = self.group.zeros(inner)
            self.group.add_products(inner, number, totals, self._weights)
            self.group.publish(inner, totals)
            self.group.each_pair(inner, number, lambda b, sample, column: self._cell(b, step, sample, column))
            if self.plan.turns > 1:  # whose sums take the place of these
                self.here.barrier(inner)

        block.loop(self.plan.turns, turn, name="turn")

    def _weights(self, term: Value, column: Value) -> list[Value]:
        """Returns the elements of the transposed weight, for every gate."""
        width, gates = self.spec.width, self.cell.gates
        at = term * tir.index(gates * width) + column
        return [tir.load(self.here.operands.workspace, at + tir.index(g * width)) for g in range(gates)]

    def _cell(self, block: Block, step: Value, sample: Value, column: Value) -> None:
        cell, (x, _, _, *bias), (y, *saved) = self.cell, self.here.operands.inputs, self.here.operands.outputs
        gates = self.parts(block, x, self.at(step, sample, column, cell.gates), cell.gates)
        products = self.group.sums(block, sample)
        before = [self.before(block, step, sample, column, which) for which in range(cell.states)]
        added = block.let(tir.load(bias[0], column), "bias") if bias else None
        outputs = cell.forward(ItemArithmetic(block), gates, products, before, added)
        self.put(block, y, self.at(step, sample, column, cell.states), outputs.states)
        if saved:
            self.put(block, saved[0], self.at(step, sample, column, cell.saved), outputs.saved)


class _Backward(_Layer):
    """`d_start` carries the gradients of a pair's states from step to step."""

    def __init__(self, spec: RecurrenceSpec, schedule: RecurrencePlan, here: Here) -> None:
        super().__init__(spec, schedule, here)
        self.r, self.start, self.y, *saved, self.d_y = here.operands.inputs
        self.saved = saved[0] if saved else None
        self.d_x, self.d_start, *products = here.operands.outputs
        self.d_products = products[0] if products else None

    @property
    def states(self) -> tuple[Buffer, Buffer]:
        return self.y, self.start

    def write(self) -> None:
        """Emits every step of the group's samples, from the last one taken."""
        last = tir.index(self.spec.steps - 1)
        self.group.each_pair_of_turns(self.here.block, self._begin)
        self.here.block.loop(
            self.spec.steps,
            lambda block, number: self._step(block, number if self.spec.reverse else block.let(last - number, "step")),
            name="step",
        )

    def _begin(self, block: Block, sample: Value, column: Value) -> None:
        self.put(block, self.d_start, self._carried(sample, column), [number(0.0)] * self.cell.states)

    def _carried(self, sample: Value, column: Value) -> Value:
        return self.at(tir.index(0), sample, column, self.cell.states)

    def _step(self, block: Block, step: Value) -> None:
        self.group.each_pair_of_turns(block, lambda b, sample, column: self._cell(b, step, sample, column))

        def turn(inner: Block, number: Value) -> None:
            totals = self.group.zeros(inner)
            inner.loop(self.plan.rounds, lambda b, i: self._round(b, step, number, i, totals), name="round")
            self.group.publish(inner, totals)
            self.group.each_pair(inner, number, self._carry)

        block.loop(self.plan.turns, turn, name="turn")

    def _cell(self, block: Block, step: Value, sample: Value, column: Value) -> None:
        cell, arithmetic = self.cell, ItemArithmetic(block)
        at = block.let(self.at(step, sample, column, cell.states), "at")
        carried_base = block.let(self._carried(sample, column), "carried")
        after = self.parts(block, self.y, at, cell.states)
        direct, later = (
            self.parts(block, *source, cell.states) for source in ((self.d_y, at), (self.d_start, carried_base))
        )
        d_after = [arithmetic.add(x, y) for x, y in zip(direct, later, strict=True)]
        count = cell.states if cell.reads_before else 0
        before = [self.before(block, step, sample, column, which) for which in range(count)]
        saved = self.parts(block, self.saved, self.at(step, sample, column, cell.saved), cell.saved)
        gradients = cell.backward(arithmetic, saved, before, after, d_after)
        gates = block.let(self.at(step, sample, column, cell.gates), "gates")
        self.put(block, self.d_x, gates, gradients.d_x)
        if self.d_products is not None:
            self.put(block, self.d_products, gates, gradients.d_products)
        self.put(block, self.d_start, carried_base, [number(0.0) if d is None else d for d in gradients.d_states])

    def _round(self, block: Block, step: Value, turn: Value, i: Value, totals: Buffer) -> None:
        """Adds what comes through the products of `at_once` gates."""
        spec, schedule = self.spec, self.plan
        gate_gradients = self.d_x if self.d_products is None else self.d_products
        first = block.let(i * tir.index(schedule.terms), "first_term")

        def read(inner: Block, sample: Value, column: Value, gate: int) -> Value:
            at = self.at(step, sample, column, self.cell.gates) + first + tir.index(gate * spec.width)
            return tir.load(gate_gradients, at)

        def weights(term: Value, column: Value) -> list[Value]:
            return [tir.load(self.r, (first + term) * tir.index(spec.width) + column)]

        self.group.share(block, read)
        self.group.add_products(block, turn, totals, weights)
        if schedule.rounds > 1:
            self.here.barrier(block)

    def _carry(self, block: Block, sample: Value, column: Value) -> None:
        """Adds what came through the products to the hidden state before."""
        at = block.let(self._carried(sample, column), "carried")
        (total,) = self.group.sums(block, sample)
        block.store(self.d_start, at, tir.load(self.d_start, at) + total)
