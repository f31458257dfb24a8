"""Weight gradient of a depth-wise convolution: for each row of the output gradient and each vector of channels, the
taps' sums (and the bias gradient, the sum of d_y itself, if it is wanted) are in registers; rows are shared out among
threads, whose sums a second phase adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

from tvm import tirx

from compiler.codegen.conv.phases import forward_axis
from compiler.codegen.depthwise.plan import DepthwisePlan
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.packing import zero_run
from compiler.codegen.tile.register_tile import Stream, fma, load_wide, wide
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import divisor_near, vector_pieces
from compiler.codegen.tir.tir import Block, Buffer, Operands, Point, Value, index, literal, load
from compiler.kernels.spec import DepthwiseSpec

_FEWEST_COLUMNS = 3
Taps = tuple[tuple[int, int], ...]
Sums = dict[tuple[int, int], Buffer]
"""(kernel row, kernel column) -> its accumulator."""
_D_Y = (-1, -1)
"""The key among `Sums` of the sums of d_y itself (the bias gradient), if they are wanted."""


@dataclass(frozen=True, slots=True)
class _Corner:
    """The place where a sweep begins: image, row of d_y, first channel, number of channels; and which of how many
    vectors of channels it is.
    """

    image: Value
    q: Value
    c: Value
    lanes: int
    share: tuple[Value, int]


class DepthwiseWeights:
    """The emitter of one kernel."""

    def __init__(self, spec: DepthwiseSpec, operands: Operands, plan: DepthwisePlan) -> None:
        self.spec, self.plan, self.slots, self.lanes = spec, plan, plan.slots, plan.lanes
        self.x, self.d_y, *extra = operands.inputs
        self.d_w, *self.d_bias = operands.outputs
        self.workspace = operands.workspace
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 3)
        self.rows, self.columns = forward_axis(spec, 0), forward_axis(spec, 1)
        self.sums = sums_of(spec)

    def emit(self, block: Block) -> None:
        """Emits both phases: each thread's sums, then their combination."""

        def slot_body(body: Block, slot: Value, first: Value, end: Value) -> None:
            sums = body.let(slot * (len(self.sums) * self.spec.c), "sums")
            zero_run(body, self.workspace, sums, len(self.sums) * self.spec.c, self.lanes)
            body.loop(end - first, lambda b, i: self._row(b, b.let(first + i, "unit"), sums), name="row")

        share_out(block, self.slots, self.spec.n * self.spec.oh, slot_body)
        self._combine(block)

    def _row(self, block: Block, unit: Value, sums: Value) -> None:
        image = block.let(tirx.truncdiv(unit, index(self.spec.oh)), "image")
        q = block.let(unit - image * self.spec.oh, "q")
        whole = self.spec.c // self.lanes
        tails = vector_pieces(self.spec.c - whole * self.lanes, self.lanes)

        def channels(body: Block, number: Value, c: Value, lanes: int) -> None:
            accumulators = {key: body.local(lanes, name="acc") for key in self.sums}
            at = _Corner(image, q, c, lanes, (number, whole + len(tails)))
            if self.plan.all_taps:
                self._in_registers(body, at, accumulators, sums)
            else:
                self._row_by_row(body, at, accumulators, sums)

        block.loop(whole, lambda b, i: channels(b, i, b.let(i * self.lanes, "c"), self.lanes), name="channels")
        for number, (start, lanes) in enumerate(tails, start=whole):
            channels(block, index(number), index(whole * self.lanes + start), lanes)

    def _in_registers(self, block: Block, at: _Corner, accumulators: Sums, sums: Value) -> None:
        """Emits all kernel rows in one sweep along the row; at the image's edge, one sweep for each that exists."""
        for buffer in accumulators.values():
            block.store(buffer, 0, literal(0.0, "float32", at.lanes))
        low, high = self.rows.interior
        rows = self.rows.taps
        if (low, high) == (0, self.rows.count):
            self._sweep(block, at, accumulators, rows)
        else:
            block.when(
                tirx.And(tirx.LE(index(low), at.q), tirx.LT(at.q, index(high))),
                lambda b: self._sweep(b, at, accumulators, rows),
                lambda b: self._edge(b, at, accumulators),
            )
        self._add(block, accumulators, sums, at)

    def _edge(self, block: Block, at: _Corner, accumulators: Sums) -> None:
        def sweep(row: tuple[int, int], body: Block) -> None:
            self._sweep(body, at, _of_row(accumulators, row[0]), (row,))

        self._sweep(block, at, _of_row(accumulators, _D_Y[0]), ())
        for tap, offset in self.rows.taps:
            block.when(self._row_exists(at.q, offset), partial(sweep, (tap, offset)))

    def _row_by_row(self, block: Block, at: _Corner, accumulators: Sums, sums: Value) -> None:
        """Sweeps once for each kernel row: for kernels with more taps than registers."""

        def sweep(rows: Taps, row_sums: Sums, body: Block) -> None:
            for buffer in row_sums.values():
                body.store(buffer, 0, literal(0.0, "float32", at.lanes))
            self._sweep(body, at, row_sums, rows)
            self._add(body, row_sums, sums, at)

        sweep((), _of_row(accumulators, _D_Y[0]), block)
        for tap, offset in self.rows.taps:
            exists = self._row_exists(at.q, offset)
            block.when(exists, partial(sweep, ((tap, offset),), _of_row(accumulators, tap)))

    def _row_exists(self, q: Value, offset: int) -> Value:
        place = q * self.rows.input_step + offset
        return tirx.And(tirx.LE(index(0), place), tirx.LT(place, index(self.spec.h)))

    def _sweep(self, block: Block, at: _Corner, accumulators: Sums, rows: Taps) -> None:
        """Along one row of d_y, for some kernel rows."""
        if not accumulators:
            return
        spec = self.spec
        low, high = self.columns.interior
        d_y = block.let(wide((at.image * spec.oh + at.q) * (spec.ow * spec.c) + at.c), "dy_base")
        x = {
            tap: block.let(
                wide((at.image * spec.h + at.q * self.rows.input_step + offset) * (spec.w * spec.c) + at.c), "x_base"
            )
            for tap, offset in rows
        }

        def part(body: Block, first: Value, width: int, taps: Taps) -> None:
            self._products(body, d_y, x, first, width, taps, at.lanes, accumulators)

        for column in (*range(low), *range(max(high, low), self.columns.count)):
            part(block, index(column), 1, self.columns.taps_at(column))
        count = high - low
        if not count:
            return
        width = divisor_near(count, min(_FEWEST_COLUMNS, self.plan.columns), self.plan.columns)
        turns = count // width

        def turn(body: Block, i: Value) -> None:
            if self.plan.ahead and self.rows.taps[-1] in rows:
                self._fetch_ahead(body, at, i, turns)
            part(body, body.let(i * width + low, "column"), width, self.columns.taps)

        block.loop(turns, turn, name="columns")
        if count % width:
            part(block, index(high - count % width), count % width, self.columns.taps)

    def _products(
        self,
        block: Block,
        d_y: Value,
        x: dict[int, Value],
        first: Value,
        width: int,
        taps: Taps,
        lanes: int,
        accumulators: Sums,
    ) -> None:
        """`width` columns from `first`: each value of d_y with every tap; shared values of x are loaded once."""
        c = self.spec.c
        step = self.columns.input_step
        start = block.let(wide(first * c), "first")
        x_start = block.let(wide(first * (step * c)), "x_first")
        loaded: dict[tuple[int, int], Value] = {}
        for column in range(width):
            gradient = block.let(load_wide(self.d_y, d_y + start + wide(column * c), lanes), "dy")
            if _D_Y in accumulators:
                total = accumulators[_D_Y]
                block.store(total, 0, load(total, 0, lanes) + gradient)
            for row, base in x.items():
                for tap, offset in taps:
                    key = (row, column * step + offset)
                    if key not in loaded:
                        loaded[key] = block.let(load_wide(self.x, base + x_start + wide(key[1] * c), lanes), "x")
                    total = accumulators[row, tap]
                    block.store(total, 0, fma(loaded[key], gradient, load(total, 0, lanes), lanes))

    def _fetch_ahead(self, block: Block, at: _Corner, turn: Value, turns: int) -> None:
        """Prefetches this turn's part of what the next row will need for the first time, in the order of memory.

        A sweep takes a vector of channels of each column, which memory's own prefetching does not follow.
        """
        spec, step = self.spec, self.rows.input_step
        (number, vectors), newest = at.share, self.rows.taps[-1][1]
        share = (number * turns + turn, vectors * turns)
        row = at.image * spec.h + at.q * step + newest + 1
        x = Stream.part(self.x, row * (spec.w * spec.c), step * spec.w * spec.c, share)
        d_y = Stream.part(self.d_y, (at.image * spec.oh + at.q + 1) * (spec.ow * spec.c), spec.ow * spec.c, share)
        for stream in (x, d_y):
            replace(stream, base=block.let(wide(stream.base), "ahead"), near=False).fetch(block, wide(0), 1)

    def _add(self, block: Block, accumulators: Sums, sums: Value, at: _Corner) -> None:
        for key, buffer in accumulators.items():
            place = sums + at.c + self.sums.index(key) * self.spec.c
            block.store(self.workspace, place, load(self.workspace, place, at.lanes) + load(buffer, 0, at.lanes))

    def _combine(self, block: Block) -> None:
        """Adds the sums of all threads."""
        c_count, whole = self.spec.c, self.spec.c // self.lanes

        def total(c: Value, number: int, lanes: int) -> Value:
            parts = (slot * len(self.sums) + number for slot in range(self.slots))
            return reduce(add, (load(self.workspace, c + part * c_count, lanes) for part in parts))

        def taps(body: Block, c: Value, lanes: int) -> None:
            for number, (row, column) in enumerate(self.sums):
                value = body.let(total(c, number, lanes), "sum")
                if (row, column) == _D_Y:
                    body.store(self.d_bias[0], c, value)
                    continue
                point = Point((index(row), index(column), c))
                point = point.vector(2, lanes) if lanes > 1 else point
                body.store(self.d_w, c + number * c_count, self.epilogue.apply(body, value, point))

        block.loop(whole, lambda b, i: taps(b, b.let(i * self.lanes, "c"), self.lanes), name="channels")
        for start, lanes in vector_pieces(c_count - whole * self.lanes, self.lanes):
            taps(block, index(whole * self.lanes + start), lanes)


def sums_of(spec: DepthwiseSpec) -> tuple[tuple[int, int], ...]:
    """The keys of `Sums`: every tap in the order of the weights, then `_D_Y` if the spec wants it."""
    taps = tuple((row, column) for row in range(spec.kernel[0]) for column in range(spec.kernel[1]))
    return (*taps, _D_Y) if spec.sums else taps


def _of_row(accumulators: Sums, row: int) -> Sums:
    return {key: buffer for key, buffer in accumulators.items() if key[0] == row}
