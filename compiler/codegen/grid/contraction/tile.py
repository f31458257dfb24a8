"""Tiles of a product: how large they are, whose items make which of their sums, and what that takes. Loads no TVM."""

from __future__ import annotations

from dataclasses import dataclass

SIDE = 64
"""The side of the largest tile: with 4 x 4 sums an item, that many items and registers suit every device."""
WARP = 32
"""Items that make one product on tensor cores together."""
MMA_M, MMA_N, MMA_K = 16, 8, 8
"""Rows and columns of that product, and its steps in words of 32 bits: one of TF32, or two of sixteen bits."""
_OWN = 4
_WARP_OWN = 32
_FEWEST_ITEMS = 64
"""The fewest items of a group: devices run 16 to 64 items in step."""
_STEPS = 16
"""Brought to shared memory at a time, if the tile is not so narrow that this leaves items without work."""
_MOST_FETCHED = 8
"""Elements of an operand that an item of a warp's tile brings there at a time: all are on their way together."""
_BANKS = 32
"""Banks of shared memory, in elements: items that write so far apart wait for each other."""
_FETCH = 8
"""Work of bringing an element to shared memory, in multiplications; reading it from there counts as one."""
_TENSOR_SPEED = 4
"""Multiplications of tensor cores in the time of one of an item: of TF32 on Orin, by its data sheet, and twice as many
of sixteen bits; not measured."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of a product: its rows, columns and steps, and the rows and columns of an item."""

    m: int
    n: int
    k: int
    own_m: int
    own_n: int

    @property
    def items(self) -> int:
        """Returns how many items compute the tile."""
        return self.m * self.n // (self.own_m * self.own_n)

    @property
    def pad(self) -> int:
        """Elements after each step in shared memory, so that the steps of a row or column lie in different banks."""
        return max(_BANKS // self.k, 1)

    @property
    def sums_pad(self) -> int:
        """Elements after each row of sums in shared memory."""
        return 0

    @property
    def elements(self) -> int:
        """Returns the number of elements of shared memory: both operands', then, in the same place, the sums."""
        return max(self.k * (self.m + self.n + 2 * self.pad), self.m * self.n)

    @property
    def work(self) -> int:
        """Returns the work of a step of the reduction."""
        return self.m * self.n + self.items * (self.own_m + self.own_n) + _FETCH * (self.m + self.n)

    @property
    def waiting(self) -> int:
        """Sums in progress of an item, which count as one side of its tile: they wait together."""
        return max(self.own_m, self.own_n)


@dataclass(frozen=True, slots=True)
class WarpTile(Tile):
    """A tile whose products are made on tensor cores: `own_m` x `own_n` sums are those of a warp.

    `per_word`: steps of a row or column that lie in a word of shared memory. If they are more than one, steps lie side
    by side there.
    """

    per_word: int = 1

    @property
    def items(self) -> int:
        """Returns how many items compute the tile, as `Tile` says."""
        return WARP * self.m * self.n // (self.own_m * self.own_n)

    @property
    def pad(self) -> int:
        """Elements after each step: the 4 steps x 8 rows or columns that a warp reads at once are in 32 banks."""
        return 8

    @property
    def steps_pad(self) -> int:
        """Elements after each row or column, where its steps lie side by side: the same banks, reached across."""
        return 4 * self.per_word

    @property
    def sums_pad(self) -> int:
        """Elements after each row of sums, as `Tile` says: a warp writes 8 rows at once."""
        return 8

    @property
    def elements(self) -> int:
        """Words, as `Tile` says, whichever way the operands lie."""
        words = self.k // self.per_word
        across = 0 if self.per_word > 1 else self.k * self.pad
        pads = sum(max(across, side * self.steps_pad // self.per_word) for side in (self.m, self.n))
        return max(words * (self.m + self.n) + pads, self.m * (self.n + self.sums_pad))

    @property
    def work(self) -> int:
        """Returns the work of the tile, as `Tile` says."""
        read = self.items // WARP * (self.own_m + self.own_n) // self.per_word
        return self.m * self.n // (_TENSOR_SPEED * self.per_word) + read + _FETCH * (self.m + self.n)

    @property
    def waiting(self) -> int:
        """Returns how many elements wait in an item, as `Tile` says: an item has an eighth of a side by a quarter of
        the other.
        """
        return max(self.own_m, self.own_n) // 4


def tile_of(m: int, n: int) -> Tile:
    """The tile of these sides, powers of two; a wider one if a group would have too few items."""
    n = max(n, _FEWEST_ITEMS // m)
    own_m, own_n = min(_OWN, m), min(_OWN, n)
    while m * n < _FEWEST_ITEMS * own_m * own_n:
        own_m, own_n = (own_m // 2, own_n) if own_m >= own_n else (own_m, own_n // 2)
    items = m * n // (own_m * own_n)
    return Tile(m, n, max(_STEPS, items // min(m, n)), own_m, own_n)


def warp_tile_of(m: int, n: int, per_word: int) -> WarpTile:
    """The tile of these sides, powers of two and at least 16, on tensor cores; its warps make as many sums as leaves
    enough of them to bring the operands."""
    own_m, own_n = min(_WARP_OWN, m), min(_WARP_OWN, n)
    items = max(_FEWEST_ITEMS, _STEPS * max(m, n) // _MOST_FETCHED)
    while WARP * m * n < items * own_m * own_n:
        own_m, own_n = (own_m // 2, own_n) if own_m > MMA_M else (own_m, own_n // 2)
    return WarpTile(m, n, _STEPS, own_m, own_n, per_word)


__all__ = ["MMA_K", "MMA_M", "MMA_N", "SIDE", "WARP", "Tile", "WarpTile", "tile_of", "warp_tile_of"]
