"""The schedule of a recurrent layer: threads share out the samples and take every step of theirs, without waiting.

The recurrent weight is packed into panels once; each step is a product with them, then the cell's arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import LINE_BYTES, Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_shape
from compiler.element_types import SCRATCH
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from compiler.targets import CpuTarget

_LATENCY = 8
"""Independent multiply-adds that keep the pipelines full."""


@dataclass(frozen=True, slots=True)
class RecurrencePlan:
    """The schedule of one kernel.

    A step multiplies the rows of `terms` numbers of a thread's samples by panels of `columns`, in register tiles of
    `rows` rows. The workspace holds the panels, then (forward) per sample the products, then per sample, `stride` apart
    so that they do not fall on the same cache set, what is multiplied: the states, or the gates' gradients.
    """

    precision: Precision
    slots: int
    rows: int
    terms: int
    columns: Columns
    products: int
    """The start of the products in the workspace, in elements of `SCRATCH`."""
    factors: int
    stride: int
    total: int

    @property
    def lanes(self) -> int:
        """Elements in one vector register."""
        return self.precision.lanes


def plan(spec: RecurrenceSpec, target: CpuTarget, threads: int) -> RecurrencePlan:
    """The schedule from the target's figures."""
    cell, precision = CELLS[spec.cell], Precision.of(spec.dtype, target)
    gates, forward = cell.gates * spec.width, spec.kind == "forward"
    terms, count = (spec.width, gates) if forward else (gates, spec.width)
    slots = min(slots_of(2.0 * spec.steps * spec.batch * gates * spec.width, threads), spec.batch)
    share = -(-spec.batch // slots)
    most, vectors = tile_shape(target, precision, rows=share, count=count, steps=terms)
    cut = columns(count, vectors, precision.lanes, padded=True)
    products = _lines(terms * cut.padded)
    factors = products + (_lines(spec.batch * cut.padded) if forward else 0)
    stride = precision.odd_lines(cell.states * spec.width if forward else gates)
    rows, total = _height(share, most, vectors), factors + spec.batch * stride
    return RecurrencePlan(precision, slots, rows, terms, cut, products, factors, stride, total)


def _height(share: int, most: int, vectors: int) -> int:
    """Rows of a tile: the least work for `share` rows, of which those that fill no tile are taken one by one."""

    def work(height: int) -> int:
        return share // height * max(height * vectors, _LATENCY) + share % height * max(vectors, _LATENCY)

    return min(range(1, most + 1), key=lambda height: (work(height), -height))


def _lines(elements: int) -> int:
    """Room for so many elements of the workspace, in whole cache lines."""
    line = LINE_BYTES // SCRATCH.item_bytes
    return -(-elements // line) * line


def workspace_bytes(spec: RecurrenceSpec, target: CpuTarget, threads: int) -> int:
    """Panels, products and states."""
    return SCRATCH.item_bytes * plan(spec, target, threads).total
