"""The way sums over many terms are shared out among groups and items: plain arithmetic, for plans."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.targets import GridTarget

ENOUGH_ITEMS = 16384
"""Items that keep a device busy."""
LEAST_TERMS = 8
"""Fewest terms that are worth an item of their own, if a term is a number or two that are read."""
_MOST_PARTS = 64
_ACROSS = 64
"""Results beside each other in a group: so many items read memory in whole lines."""
_ALONG = 32
"""Items beside each other along the terms of a result: as many as that, they read memory in whole lines."""


@dataclass(frozen=True, slots=True)
class Split:
    """`results` sums of `terms` terms each. A group forms `across` of them; `down` items share the terms of one.

    `parts` groups share what a result has to add up: each writes a partial sum, which a second launch adds.
    `columns`: neighbouring items are at neighbouring results, the same term; else at neighbouring terms of a result.
    `across` and `down` are powers of two.
    """

    results: int
    terms: int
    across: int
    down: int
    parts: int
    columns: bool

    @property
    def items(self) -> int:
        """Returns the number of items of a group."""
        return self.across * self.down

    @property
    def blocks(self) -> int:
        """Groups beside each other that form all results."""
        return -(-self.results // self.across)

    @property
    def groups(self) -> int:
        """Returns the number of groups of the launch."""
        return self.blocks * self.parts

    @property
    def share(self) -> int:
        """Terms of a part; the last one may have fewer."""
        return -(-self.terms // self.parts)

    @property
    def turns(self) -> int:
        """Most terms of an item."""
        return -(-self.share // self.down)


def split_sums(
    results: int,
    terms: int,
    target: GridTarget,
    *,
    columns: bool,
    splits: bool = True,
    alike: int = 1,
    least_terms: int = LEAST_TERMS,
) -> Split:
    """The sharing out of `results` sums of `terms` terms.

    `splits`: whether several groups may share a result. `alike`: how often the same is done beside it in the launch.
    `least_terms`: fewest that are worth an item of their own.
    """
    across = min(_power_above(results), _ACROSS) if columns else 1

    def items_of(down: int) -> int:
        return alike * -(-results // across) * across * down

    down = 1
    while down * 2 * least_terms <= terms and across * down * 2 <= target.items:
        if items_of(down) >= ENOUGH_ITEMS and (columns or down >= _ALONG):
            break
        down *= 2
    if not columns:
        across = max(1, min(_power_above(results), _ACROSS // down))
    parts = min(ENOUGH_ITEMS // items_of(down), terms // (down * least_terms), _MOST_PARTS) if splits else 1
    share = -(-terms // max(parts, 1))
    return Split(results, terms, across, down, max(1, -(-terms // max(share, 1))), columns)


def _power_above(number: int) -> int:
    """The lowest power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()
