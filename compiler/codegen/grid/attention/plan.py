"""The schedule of attention on a grid: how it is cut into blocks of queries and keys, and a block of scores into what
each item holds of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.element_types import SCRATCH
from compiler.errors import BuildError
from compiler.kernels.spec import AttentionSpec
from compiler.targets import GridTarget

DEPTH = 16
"""Terms of a product that the group loads at a time; a power of two."""
_MOST_SUMS = 32
"""Sums that an item keeps over all blocks, beside its scores, without spilling registers."""
_PIECE = 4
"""Columns that an item sums at a time."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A block has so many queries and keys; `tall` x `wide` items take every `tall`-th query and `wide`-th key."""

    block: int
    tall: int
    wide: int

    @property
    def items(self) -> int:
        """Returns the number of items of a group."""
        return self.tall * self.wide

    @property
    def rows(self) -> int:
        """Queries (or owned keys) of an item."""
        return self.block // self.tall

    @property
    def columns(self) -> int:
        """Keys of an item's scores."""
        return self.block // self.wide

    @property
    def stride(self) -> int:
        """Returns the distance from row to row of shared memory: odd, so that columns too lie in different banks."""
        return self.block + 1

    @property
    def loaded(self) -> int:
        """Elements of shared memory for one operand's part of a product."""
        return DEPTH * max(self.stride, _PIECE * self.wide)

    @property
    def shared_bytes(self) -> int:
        """Two operands' parts, a block of weights, and what a maximum over the items of a row takes."""
        return SCRATCH.item_bytes * (2 * self.loaded + self.block * self.stride + self.rows * self.items)

    def depth(self, width: int) -> int:
        """Terms of rows of `width` elements that are loaded at a time: no more than there are, if each item has one."""
        return max(self.items // self.block, min(DEPTH, 1 << (width - 1).bit_length()))

    def sums(self, width: int) -> int:
        """Columns of an item, of `width`."""
        return -(-width // self.wide)

    def pieces(self, width: int) -> list[tuple[int, int]]:
        """An item's columns as (first, count)."""
        count = self.sums(width)
        return [(first, min(_PIECE, count - first)) for first in range(0, count, _PIECE)]


CUTS = (Cut(64, 16, 16), Cut(32, 8, 8), Cut(32, 16, 16))
"""Larger blocks read less; more items have room for more sums."""


def cut_for(target: GridTarget, *, positions: int, widths: tuple[int, ...]) -> Cut:
    """The cut of a launch whose groups own blocks of so many positions and keep sums of these widths.

    Raises: BuildError if a device has too small groups.
    """
    fitting = [cut for cut in CUTS if _fits(cut, target)]
    if not fitting:
        least = min(CUTS, key=lambda cut: cut.shared_bytes)
        raise BuildError(
            f"attention takes groups of {least.items} items and {least.shared_bytes} shared bytes,"
            f" more than the {target.items} and {target.shared_bytes} of {target.name}",
            where=target.name,
        )
    smallest = min(cut.block for cut in fitting)
    for cut in fitting:
        sum_count = cut.rows * sum(cut.sums(width) for width in widths)
        if sum_count <= _MOST_SUMS and (cut.block == smallest or positions > smallest):
            return cut
    return fitting[-1]


def _fits(cut: Cut, target: GridTarget) -> bool:
    return cut.items <= target.items and cut.shared_bytes <= target.shared_bytes


def goes_through_scores(spec: AttentionSpec) -> bool:
    """Whether a gradient needs that of the scores, and so each query's sum of d_y y."""
    return spec.kind == "backward" and (spec.wanted[0] or spec.wanted[1])


def workspace_bytes(spec: AttentionSpec, target: GridTarget, threads: int) -> int:
    """The sums of d_y y of every query and head."""
    return SCRATCH.item_bytes * spec.batch * spec.queries * spec.heads if goes_through_scores(spec) else 0
