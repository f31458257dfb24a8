"""How a recurrent layer is cut: threads share out the samples and take every step of theirs, without waiting.

The recurrent weight is packed into panels once; each step is a product with them, then the cell's arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import LINE_BYTES, Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_shape
from compiler.element_types import SCRATCH
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from compiler.targets import Target


@dataclass(frozen=True, slots=True)
class RecurrencePlan:
    """The schedule of one kernel.

    A step multiplies the rows of `terms` numbers of a thread's samples by panels of `columns`, in register tiles of
    `rows` rows. The workspace holds the panels, then (forward) per sample the products and the states.
    """

    precision: Precision
    slots: int
    rows: int
    terms: int
    columns: Columns
    products: int
    """Where the products begin in the workspace, in elements of `SCRATCH`."""
    states: int
    total: int

    @property
    def lanes(self) -> int:
        """Elements in one vector register."""
        return self.precision.lanes


def plan(spec: RecurrenceSpec, target: Target, threads: int) -> RecurrencePlan:
    """The schedule from the target's figures."""
    cell, precision = CELLS[spec.cell], Precision.of(spec.dtype, target)
    gates, forward = cell.gates * spec.width, spec.kind == "forward"
    terms, count = (spec.width, gates) if forward else (gates, spec.width)
    slots = min(slots_of(2.0 * spec.steps * spec.batch * gates * spec.width, threads), spec.batch)
    share = -(-spec.batch // slots)
    most, vectors = tile_shape(target, precision, rows=share, count=count, steps=terms)
    cut = columns(count, vectors, precision.lanes, padded=True)
    products = _lines(terms * cut.padded)
    states = products + (_lines(spec.batch * cut.padded) if forward else 0)
    total = states + (_lines(spec.batch * cell.states * spec.width) if forward else 0)
    return RecurrencePlan(precision, slots, -(-share // -(-share // most)), terms, cut, products, states, total)


def _lines(elements: int) -> int:
    """Room for so many elements of the workspace, in whole cache lines."""
    line = LINE_BYTES // SCRATCH.item_bytes
    return -(-elements // line) * line


def workspace_bytes(spec: RecurrenceSpec, target: Target, threads: int) -> int:
    """Panels, products and states."""
    return SCRATCH.item_bytes * plan(spec, target, threads).total
