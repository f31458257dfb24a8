"""The plan of a contraction: in which tiles and parts it is computed, and what that takes. Loads no TVM.

A group makes one tile of one product, over one part of the steps: it brings `tile.k` steps of both operands to shared
memory at a time, and each item (or warp, on tensor cores) multiplies them into `own_m` x `own_n` sums in registers.
Sums over more than a few steps are sums of such blocks, so that rounding errors stay small. Where there are too few
tiles for a device, several groups take a part of the steps each; a second launch adds up the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product as crossed

from compiler.codegen.grid.contraction.product import PER_WORD, Product, product_of, sums_of
from compiler.codegen.grid.contraction.tile import MMA_M, SIDE, Tile, tile_of, warp_tile_of
from compiler.element_types import SCRATCH
from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.targets import GridTarget

_BLOCK_STEPS = 128
"""Most steps that one sum adds up, one after the other."""
_MOST_PARTS = 128

_PART = 128
"""Work of writing and reading a sum of a part."""
_LAUNCH = 1 << 20
_BUSY = 1 << 15
"""Sums in progress that keep a device busy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A tile, and `parts` of the steps, each of so many blocks of so many tiles' steps."""

    tile: Tile
    parts: int
    blocks: int
    tiles: int

    @property
    def part_steps(self) -> int:
        """Returns the number of steps of each part; some of the last part's may lie after the end."""
        return self.blocks * self.tiles * self.tile.k

    def groups(self, product: Product) -> tuple[int, int, int, int]:
        """Returns the groups of the first launch: parts, products, tiles of rows, tiles of columns."""
        return (self.parts, product.products, -(-product.m // self.tile.m), -(-product.n // self.tile.n))


def plan(product: Product, target: GridTarget) -> Plan:
    """The way that costs least."""
    return _best(product, target.items, target.shared_bytes)


@lru_cache(maxsize=4096)
def _best(product: Product, most_items: int, shared_bytes: int) -> Plan:
    candidates = [
        _plan(product, tile, 1 << parts)
        for tile in _tiles(product, most_items, shared_bytes)
        for parts in range(_MOST_PARTS.bit_length())
        if parts == 0 or product.k >= _BLOCK_STEPS << parts
    ]
    return min(candidates, key=lambda candidate: cost(product, candidate))


def cost(product: Product, plan: Plan) -> float:
    """Work of a product on a whole device."""
    parts, products, rows, columns = plan.groups(product)
    groups = parts * products * rows * columns
    in_progress = groups * plan.tile.items * plan.tile.waiting
    idle = max(1.0, _BUSY / in_progress)
    added = 0 if parts == 1 else _LAUNCH + _PART * parts * product.sums
    return idle * groups * plan.part_steps * plan.tile.work + added


def _tiles(product: Product, most_items: int, shared_bytes: int) -> list[Tile]:
    """Yields the tiles worth comparing: not much wider than the product, and such that the device can run them."""
    of_warps = partial(warp_tile_of, per_word=PER_WORD[product.factors])
    make_tile, least = (of_warps, MMA_M) if product.is_on_tensor_cores else (tile_of, 1)
    tiles = [make_tile(m, n) for m, n in crossed(_sides(product.m, least), _sides(product.n, least))]
    most = shared_bytes // SCRATCH.item_bytes
    fit = [tile for tile in tiles if tile.items <= most_items and tile.elements <= most]
    return fit or [make_tile(max(8, least), max(8, least))]


def _sides(extent: int, least: int) -> list[int]:
    """Returns the sides of tiles over so many rows or columns, the largest first."""
    most = max(least, min(SIDE, 1 << (extent - 1).bit_length()))
    return [most] + [side for side in (32, 16) if side < most]


def _plan(product: Product, tile: Tile, parts: int) -> Plan:
    """Returns a plan with the same number of steps for each part and block, and few after the end."""
    tiles = max(-(-product.k // tile.k), 1)
    of_part = -(-tiles // parts)
    fewest = -(-of_part * tile.k // max(_BLOCK_STEPS, tile.k))
    blocks = min(range(fewest, 2 * fewest), key=lambda count: count * -(-of_part // count))
    of_block = -(-of_part // blocks)
    return Plan(tile, -(-tiles // (blocks * of_block)), blocks, of_block)


def workspace_bytes(spec: MatmulSpec | ConvSpec, target: GridTarget, threads: int) -> int:
    """Returns the bytes of workspace for the sums of parts, where there are any."""
    products = [product_of(spec), *([sums_of(spec)] if spec.sums else [])]
    parts = [(plan(product, target).parts, product.sums) for product in products]
    return max(count * sums if count > 1 else 0 for count, sums in parts) * SCRATCH.item_bytes


def can_update(spec: MatmulSpec | ConvSpec, target: GridTarget) -> bool:
    """Whether a weight gradient may become the update itself: one item has the whole sum of a point in the end."""
    return isinstance(spec, MatmulSpec) and spec.batch == 1 and spec.a_transposed and not spec.extra_outputs
