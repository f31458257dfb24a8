"""Running values: one row after the other, each from the row written before it; vectors along a row."""

from __future__ import annotations

from compiler.codegen.scan.plan import plan
from compiler.codegen.tile.positions import Columns, column_tasks
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Operands, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import ScanSpec
from compiler.targets import CpuTarget


def emit(spec: ScanSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a running sum or a linear recurrence."""
    operands = tir.declare(spec)
    body = tir.Block()

    def task(block: Block, outer: Value, columns: Columns) -> None:
        start = block.let(outer * (spec.rows * spec.inner), "start")
        first = start + ((spec.rows - 1) * spec.inner if spec.reverse else 0)
        columns(block, lambda b, i, width: _first(b, spec, operands, first + i, width))

        def emit_row(inner: Block, turn: Value) -> None:
            row = (spec.rows - 2) - turn if spec.reverse else turn + 1
            place = inner.let(start + row * spec.inner, "place")
            columns(inner, lambda b, i, width: _next(b, spec, operands, place + i, width))

        block.loop(spec.rows - 1, emit_row, name="turn")

    column_tasks(body, spec.outer, spec.inner, plan(spec, target, threads), task)
    return tir.finish(spec, operands, body)


def _first(block: Block, spec: ScanSpec, operands: Operands, place: Value, width: int) -> None:
    """The row that nothing comes before."""
    (y,) = operands.outputs
    zero = tir.literal(0, ELEMENT_TYPES[spec.dtype].tir, width)
    block.store(y, place, zero if spec.exclusive else tir.load(operands.inputs[-1], place, width))


def _next(block: Block, spec: ScanSpec, operands: Operands, place: Value, width: int) -> None:
    """A row from the one before it."""
    (y,) = operands.outputs
    before = place + (spec.inner if spec.reverse else -spec.inner)
    running = tir.load(y, before, width)
    if spec.kind == "linear":
        running = running * tir.load(operands.inputs[0], place, width)
    added = tir.load(operands.inputs[-1], before if spec.exclusive else place, width)
    block.store(y, place, running + added)
