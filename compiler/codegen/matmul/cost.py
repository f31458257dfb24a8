"""Estimates the cost of a schedule of a matrix product.

In multiply-adds of one vector, of the thread that has most to do. The figures were fitted on AVX-512 cores that do one
of them in a cycle (Zen 4) and two (Cascade Lake: all that concerns caches and copies); only their ratios matter, and a
device may measure the choices instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from compiler.codegen.matmul.candidate import Candidate
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import BAND_ROWS, Columns, columns
from compiler.element_types import DType
from compiler.kernels.spec import MatmulSpec
from compiler.targets import CpuTarget

_STREAMED = 512
"""Longest reduction of a weight gradient that is not streamed: its sums stay in registers."""
_UNFETCHED = 1.6
"""Work of a weight gradient whose operands are not fetched ahead, against that of a streamed one (measured)."""
_LATENCY = 8
"""Independent multiply-adds that keep the pipelines full."""
_LOAD = 0.05
_TILE = 10.0
_MATRIX_TILE = 60.0
_STORE = 1.5
_FAR_STORE = 10.0
_WRITE_STREAMS = 0.6
"""Per tile, and if its sums are in tile registers, which are configured for it; per vector of a tile, and if it waits
outside the second-level cache; and per pair of a tile's rows, if C is written to memory (rows are far apart)."""
_PACK = 4.0
_TRANSPOSE = 8.0
"""Packing of one vector of B."""
_IN_PLACE = 0.1
"""Extra for one vector of B read where it lies."""
_APART = 0.45
_FAR_APART = 4.0
_CONFLICT = 2.5
"""Extra for a tile's part of one row of B where rows are far apart; where they are and the first-level cache does not
hold a tile's; and where they meet in few sets of the cache."""
_FAR_LINES = 32
_WIDE_LINES = 8
"""Cache lines between rows that prefetching does not bridge; that are far more than a tile's own."""
_CROWDED = 15.0
"""Extra for a tile's part of one step of A or B that other lines of the block drive out of the second-level cache."""
_EVERY_STEP = 6.0
"""Extra for a tile's part of one step of a transposed A, as far as the first-level cache has given up its line."""
_ROWS_MEET = 1.2
_ROWS_CROWD = 7.0
"""Extra for a tile's part of one step of an A whose rows meet in few sets of the cache; if those have too few ways."""
_L1_WAYS = 8
_L2_SETS = 1024
_COPY = 20.0
"""Copying of one cache line of A."""
_LINE = 1.5
"""Getting a cache line from outside the second-level cache, as far as it is not hidden."""
_REMOTE = 20.0
"""Getting a vector of sums from another slot's cache."""
_PHASE = 5000.0
"""Meeting of the threads between two phases."""


@dataclass(frozen=True, slots=True)
class Core:
    """The figures of a target that the estimate uses, for products of one element type."""

    precision: Precision
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    spare_registers: int
    """Registers that a tile leaves to the elements of A and of the next step: of 32, LLVM moves and spills accumulators
    in some unrolled loops with fewer."""
    reach_bytes: int
    """Farthest row of A that a load reaches from the first one's address."""
    vectors_of_a: int = 0
    """Registers that hold each row's part of A, where several steps of it are read at once."""
    tiles: bool = False
    """Whether tile registers multiply, 16 rows in the time of one."""

    @staticmethod
    def of(target: CpuTarget, dtype: DType, products: str = "") -> Core:
        """Describes one core of a target."""
        spare = 3 if target.vector_registers >= 32 else 1
        reach_bytes = 65520 if target.architecture == "aarch64" else 1 << 31
        precision = Precision.of("f16" if products == "f16" else dtype, target)
        multiplier_registers = int(products == "i8" and target.architecture == "aarch64")
        return Core(
            precision,
            target.vector_registers,
            target.l1_bytes,
            target.l2_bytes,
            spare - multiplier_registers,
            reach_bytes,
            multiplier_registers,
            tiles=products == "bf16" and target.has_tiles,
        )

    @property
    def lanes(self) -> int:
        """Elements in one vector register."""
        return self.precision.lanes

    @property
    def item_bytes(self) -> int:
        """Returns the size of one element of an operand."""
        return self.precision.item_bytes


def is_streamed(spec: MatmulSpec) -> bool:
    """Whether a product is a weight gradient whose operands are read in order, a few steps at a time, while all sums,
    or those of a part, wait in the second-level cache."""
    return spec.batch == 1 and spec.a_transposed and not spec.products and spec.k > _STREAMED


def cost(spec: MatmulSpec, core: Core, slots: int, candidate: Candidate) -> float:
    """Cycles of the busiest slot."""
    cut = columns(spec.n, candidate.vectors, core.lanes, padded=candidate.panels != "direct")
    shares = slots if candidate.strategy == "split" else 1
    blocks = -(-spec.k // candidate.k_block)
    steps = -(-blocks // shares) * candidate.k_block if shares > 1 else spec.k
    rows, wide = _largest_share(spec, slots, candidate, cut)
    batch = -(-spec.batch // slots) if candidate.strategy == "batch" else spec.batch
    far = core.item_bytes * spec.m * spec.n > core.l2_bytes
    streams = _WRITE_STREAMS if far and not candidate.sums_wait else 0.0
    store = _FAR_STORE if far and candidate.strategy == "split" else _STORE
    work = sum(
        row_tiles
        * column_tiles
        * (
            steps * _step(core, height, width)
            + (blocks / shares) * ((_MATRIX_TILE if core.tiles else _TILE) + store * height * width)
            + streams * height * height
        )
        for height, row_tiles in rows.items()
        for width, column_tiles in wide.items()
    )
    row_tiles = sum(rows.values())
    vectors = sum(width * count for width, count in wide.items())
    height = sum(size * count for size, count in rows.items())
    if is_streamed(spec) and not candidate.sums_wait:
        work *= _UNFETCHED
    total = batch * (work + _panels(spec, core, slots, candidate, steps, row_tiles, vectors))
    total += batch * steps * _block_of_a(spec, core, candidate, height, row_tiles * sum(wide.values()))
    total += _LINE * batch * steps * _lines_of_step(spec, core, slots, candidate, height, vectors)
    if candidate.strategy == "split":
        total += spec.m * vectors * (3 + _REMOTE * (slots - 1) / slots) + (_PHASE if slots > 1 else 0)
    return total + (_PHASE if candidate.panels == "shared" and slots > 1 else 0)


def _lines_of_step(spec: MatmulSpec, core: Core, slots: int, candidate: Candidate, height: int, vectors: int) -> float:
    """Cache lines of A and B that one step brings in.

    Lines come in pairs: a slot that reads less than a pair of each row of an operand, and skips the rest, wastes some.
    """
    line = core.precision.line
    a, b = height / line, vectors * core.lanes / line
    if slots > 1 and candidate.strategy == "rows" and spec.a_transposed:
        a = max(a, 2.0)
    if slots > 1 and candidate.strategy == "columns" and not spec.b_transposed and not spec.b_panel:
        b = max(b, 2.0)
    return a + b


def _step(core: Core, height: int, width: int) -> float:
    """Cycles of one step of a tile."""
    if core.tiles:  # a register of 16 steps is multiplied in 16 cycles, and loaded in 8
        bands = -(-height // BAND_ROWS)
        return max(bands * width, 0.5 * (bands + width)) + _LOAD * (bands + width)
    return max(height * width * core.precision.sum_size, _LATENCY, 0.5 * height + width) + _LOAD * (height + width)


def _panels(
    spec: MatmulSpec, core: Core, slots: int, candidate: Candidate, steps: int, row_tiles: int, vectors: int
) -> float:
    if spec.b_panel:
        return 0.0
    each = _TRANSPOSE if spec.b_transposed else _PACK
    if candidate.panels == "shared":
        return each * steps * vectors / slots
    if candidate.panels == "private":
        blocks = -(-spec.m // blocks_of(core, candidate, spec, slots)[0]) if candidate.strategy != "split" else 1
        return each * steps * vectors * blocks
    if 2 * core.item_bytes * spec.k * spec.n <= core.l1_bytes:
        return 0.0
    return _in_place(spec, core, candidate, row_tiles) * steps * vectors


def _in_place(spec: MatmulSpec, core: Core, candidate: Candidate, row_tiles: int) -> float:
    """Extra for one vector of B that all row tiles read where it lies."""
    line, extra = core.precision.line, 0.0
    if few_sets(spec.n, line):
        extra = _CONFLICT * row_tiles
    elif not _panel_is_near(spec, core, candidate) and spec.n >= _WIDE_LINES * line:
        extra = _FAR_APART * row_tiles
    elif spec.n >= _FAR_LINES * line:
        extra = _APART * row_tiles
    if crowded(core, min(candidate.k_block, spec.k), candidate.vectors * core.lanes, spec.n):
        extra += _CROWDED * (row_tiles - 1)
    return extra / candidate.vectors if extra else _IN_PLACE * row_tiles


def _panel_is_near(spec: MatmulSpec, core: Core, candidate: Candidate) -> bool:
    """Whether a block's part of B for one tile takes at most half of the first-level cache."""
    steps = spec.k if candidate.order == "rows" else min(candidate.k_block, spec.k)
    return 2 * steps * candidate.vectors * core.precision.vector_bytes <= core.l1_bytes


def _block_of_a(spec: MatmulSpec, core: Core, candidate: Candidate, height: int, tiles: int) -> float:
    """Per step of the reduction: copying the block's rows, or finding them gone from a cache."""
    if candidate.copies_a:
        return _COPY * height / core.precision.line
    if not spec.a_transposed:
        if candidate.rows == 1 or not few_sets(spec.k, core.precision.line):
            return 0.0
        return (_ROWS_MEET if candidate.rows <= _L1_WAYS else _ROWS_CROWD) * tiles
    if not candidate.goes_by_columns:
        return 0.0
    steps, rows = min(candidate.k_block, spec.k), min(blocks_of(core, candidate, spec, 1)[0], spec.m)
    if crowded(core, steps, rows, spec.m):
        return _CROWDED * tiles
    return _EVERY_STEP * tiles * min(1.0, 2 * steps * core.precision.line_bytes / core.l1_bytes)


def crowded(core: Core, runs: int, length: int, distance: int) -> bool:
    """Whether `runs` runs of `length` elements, that far apart, need half of the second-level cache's sets that they
    fall into."""
    apart, rest = divmod(distance, core.precision.line)
    lines = -(-length // core.precision.line)
    between = 1 if rest else math.gcd(apart, _L2_SETS)
    sets = _L2_SETS // between * min(lines, between)
    ways = core.l2_bytes // (_L2_SETS * core.precision.line_bytes)
    return 2 * runs * lines >= sets * ways


def few_sets(elements: int, line: int) -> bool:
    """Whether rows that far apart meet in one or two of a cache's (at least 64) sets."""
    lines, rest = divmod(elements, line)
    return rest == 0 and 64 // math.gcd(lines, 64) <= 2


def _largest_share(
    spec: MatmulSpec, slots: int, candidate: Candidate, cut: Columns
) -> tuple[dict[int, int], dict[int, int]]:
    """Tiles of the slot that has most to do: {rows: count}, {vectors: count}."""
    full, rest = divmod(spec.m, candidate.rows)
    tail = len(cut.tail.widths) if cut.tail else 0
    rows = busiest(full, candidate.rows, rest, slots if candidate.strategy == "rows" else 1)
    wide = busiest(cut.full, candidate.vectors, tail, slots if candidate.strategy == "columns" else 1)
    return rows, wide


@lru_cache(maxsize=4096)
def busiest(full: int, size: int, rest: int, slots: int) -> dict[int, int]:
    """Returns the largest share of `full` tiles of `size` and one of `rest` that are shared out in order."""
    units = full + (1 if rest else 0)
    shares = []
    for slot in range(slots):
        first, end = slot * units // slots, (slot + 1) * units // slots
        whole = max(min(end, full) - first, 0)
        shares.append((whole, 1 if rest and end == units else 0))
    whole, short = max(shares, key=lambda share: share[0] * size + share[1] * rest)
    if rest == size:  # a tail of as many vectors, the last of them partly empty
        whole, short = whole + short, 0
    return {tiles: count for tiles, count in ((size, whole), (rest, short)) if count > 0}


def blocks_of(core: Core, candidate: Candidate, spec: MatmulSpec, slots: int) -> tuple[int, int]:
    """(rows, columns) of a block, in whole tiles: half of the second-level cache holds A's rows, or a part's sums."""
    item_bytes, width = core.item_bytes, candidate.vectors * core.lanes
    if candidate.order != "parts":
        most = core.l2_bytes // (2 * item_bytes * candidate.k_block)
        return _even(spec.m, candidate.rows, most), _even(spec.n, width, spec.n)
    sums = core.l2_bytes // (2 * core.precision.sum_bytes)
    slot_columns = -(-spec.n // slots) if candidate.strategy == "columns" else spec.n
    columns = _even(slot_columns, width, max(math.isqrt(sums), sums // spec.m))
    return _even(spec.m, candidate.rows, sums // columns), columns


def _even(extent: int, tile: int, most: int) -> int:
    """Blocks of about one size, of whole tiles."""
    if extent <= most:
        return -(-extent // tile) * tile
    blocks = -(-extent // max(most, 1))
    return max(-(-extent // (blocks * tile)), 1) * tile
