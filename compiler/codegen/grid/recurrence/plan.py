"""The schedule of a recurrent layer on a grid: a group takes a few samples through all steps, without leaving the
launch.

The text of one launch for each step would grow with the steps, and starting it would take longer than most steps do.
So the items of a group wait for each other at barriers instead; groups, whose samples have nothing in common, never do.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.element_types import SCRATCH
from compiler.errors import BuildError
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from compiler.targets import GridTarget

_MOST_SAMPLES = 4
"""The most samples of a group: each element of the recurrent weight that an item reads is multiplied by as many
numbers.
"""
_ENOUGH_GROUPS = 8
"""The number of groups that there have to be before samples share a weight."""
_ITEMS = 64
"""The items of a small group; at least `_FEWEST_PARTS` and at most `_MOST_PARTS` items then share the sums of a
column.
"""
_FEWEST_PARTS, _MOST_PARTS = 4, 16


@dataclass(frozen=True, slots=True)
class RecurrencePlan:
    """The schedule of one kernel.

    `columns` (a power of two) of the layer's `width` at a time, in `turns`; `parts` items share the terms of a column's
    sums. Shared memory holds the factors of `at_once` blocks of `width` terms (of `blocks`), and the items' sums.
    """

    width: int
    samples: int
    columns: int
    parts: int
    blocks: int
    at_once: int
    sums: int
    """Sums of a column of one sample: a product for each gate, or their sum."""

    @property
    def items(self) -> int:
        """Returns the number of items of a group."""
        return self.columns * self.parts

    @property
    def turns(self) -> int:
        """Blocks of columns."""
        return -(-self.width // self.columns)

    @property
    def rounds(self) -> int:
        """Blocks of terms whose factors come to shared memory one after the other."""
        return self.blocks // self.at_once

    @property
    def terms(self) -> int:
        """Returns the number of terms of a round."""
        return self.at_once * self.width

    @property
    def shared_bytes(self) -> int:
        """Factors and sums."""
        return SCRATCH.item_bytes * self.samples * (self.terms + self.items * self.sums)


def plan(spec: RecurrenceSpec, target: GridTarget) -> RecurrencePlan:
    """The schedule that fits shared memory with most samples, then with fewest rounds.

    Raises: BuildError if the layer is too wide.
    """
    gates, forward = CELLS[spec.cell].gates, spec.kind == "forward"
    blocks, sums = (1, gates) if forward else (gates, 1)
    columns = min(target.items, _power_above(spec.width))
    parts = min(target.items // columns, max(_FEWEST_PARTS, min(_MOST_PARTS, _ITEMS // columns)))
    samples = _MOST_SAMPLES
    while samples > 1 and -(-spec.batch // samples) < _ENOUGH_GROUPS:
        samples //= 2
    while samples:
        for at_once in dict.fromkeys((blocks, 1)):
            schedule = RecurrencePlan(spec.width, samples, columns, parts, blocks, at_once, sums)
            if schedule.shared_bytes <= target.shared_bytes:
                return schedule
        samples //= 2
    raise BuildError(
        f"a recurrent layer of width {spec.width} takes {schedule.shared_bytes} bytes of shared memory,"
        f" more than the {target.shared_bytes} of {target.name}",
        where=f"{spec.cell} of width {spec.width}",
        hint="make the layer narrower",
    )


def _power_above(number: int) -> int:
    """The lowest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def workspace_bytes(spec: RecurrenceSpec, target: GridTarget, threads: int) -> int:
    """Forward: the recurrent weight, transposed, so that neighbouring columns read neighbouring elements."""
    if spec.kind == "backward":
        return 0
    return SCRATCH.item_bytes * CELLS[spec.cell].gates * spec.width * spec.width
