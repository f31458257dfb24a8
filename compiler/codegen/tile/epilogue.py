"""Operations on accumulated values before they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.tile.register_tile import Place, RegisterTile
from compiler.codegen.tir.expressions import Evaluator
from compiler.codegen.tir.iteration import FlatAccess, flatten_access
from compiler.codegen.tir.tir import Block, Buffer, Point, Value, broadcast, read
from compiler.errors import InternalError
from compiler.kernels.access import Access
from compiler.kernels.expressions import Expr, Ref


@dataclass(frozen=True)
class Epilogue:
    """The operations on an accumulated value before it is stored."""

    expr: Expr
    inputs: tuple[tuple[Buffer, FlatAccess], ...]
    extra: tuple[tuple[Expr, Buffer], ...] = ()
    """Expressions that are stored too, at the same place of other buffers."""

    @staticmethod
    def of(
        expr: Expr,
        buffers: Sequence[Buffer],
        accesses: Sequence[Access],
        axes: int,
        extra: Sequence[tuple[Expr, Buffer]] = (),
    ) -> Epilogue:
        """The epilogue of a spec whose output has `axes` axes. Raises: InternalError if an access has a fill."""
        if any(access.fill is not None for access in accesses):
            raise InternalError("an epilogue input must be in bounds everywhere")
        flat = (flatten_access(access, (1,) * axes) for access in accesses)
        return Epilogue(expr, tuple(zip(buffers, flat, strict=True)), tuple(extra))

    def apply(self, block: Block, accumulated: Value, point: Point) -> Value:
        """The value to store at `point`, of an epilogue that stores nothing else."""
        return self._values(block, accumulated, self._reads(block, point), point)[0]

    def finish(self, block: Block, accumulated: Value, point: Point, buffer: Buffer, flat: Value) -> None:
        """Stores everything that belongs to `point`, element `flat` of each output."""
        self._store(block, self._values(block, accumulated, self._reads(block, point), point), buffer, flat)

    def _reads(self, block: Block, point: Point) -> list[Value]:
        return [read(block, buffer, access, point) for buffer, access in self.inputs]

    def _values(self, block: Block, accumulated: Value, reads: list[Value], point: Point) -> list[Value]:
        exprs = (self.expr, *(expr for expr, _ in self.extra))
        if exprs == (Ref(0),):
            return [accumulated]
        evaluator = Evaluator(block, [block.let(accumulated, "acc"), *reads], point=point)
        return [broadcast(evaluator.value(expr), point.lanes) for expr in exprs]

    def _store(self, block: Block, values: list[Value], buffer: Buffer, flat: Value) -> None:
        """Computes all values before it stores the first: outputs may share storage with what they read."""
        if self.extra:
            values = [block.let(value, "new") for value in values]
        for target, value in zip((buffer, *(other for _, other in self.extra)), values, strict=True):
            block.store(target, flat, value)

    def tile(self, block: Block, tile: RegisterTile, place: Place, earlier: Place | None = None) -> None:
        """Applies the epilogue to every value of a tile (plus what lies in `earlier`) and stores it.

        What does not vary with the row is read once.
        """
        per_column: dict[tuple[int, int, int], Value] = {}

        def fetch(number: int, start: int, lanes: int, point: Point) -> Value:
            buffer, access = self.inputs[number]
            if access.strides[place.row_axis]:
                return read(block, buffer, access, point)
            if (number, start, lanes) not in per_column:
                per_column[number, start, lanes] = read(block, buffer, access, point)
            return per_column[number, start, lanes]

        for row in range(tile.rows):
            for start, lanes, accumulated in tile.pieces(block, row):
                if earlier is not None:
                    accumulated = accumulated + earlier.load(row, start, lanes)
                point = Point(place.axes(row, start))
                point = point.vector(len(point.axes) - 1, lanes) if lanes > 1 else point
                reads = [fetch(number, start, lanes, point) for number in range(len(self.inputs))]
                values = self._values(block, accumulated, reads, point)
                self._store(block, values, place.buffer, place.base + (row * place.row_stride + start))
