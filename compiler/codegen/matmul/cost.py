"""Which schedule a matrix product gets: the one of least estimated cost, and the others that are worth measuring.

Cost is in cycles of the thread that has most to do, where a multiply-add of one vector takes one. The figures were
fitted on one AVX-512 core; only their ratios matter, and a device may measure the choices instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from compiler.codegen.matmul.candidate import Candidate, PanelPlace
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import Columns, columns, divisor_near, slots_of
from compiler.element_types import DType
from compiler.kernels.spec import MatmulSpec
from compiler.targets import Target

LONG = 1024
"""Steps of a reduction that is worth splitting."""
BLOCK_STEPS = 256
"""Most steps that all tiles do before the next block of the reduction."""
_UNBLOCKED_STEPS = 384
_STREAMED = 512
"""Longest reduction of a weight gradient that is not streamed: its sums stay in registers."""
_STREAMED_STEPS = 64
"""Most steps of a streamed block, beside which the panels of a tile stay in the first-level cache."""
_UNFETCHED = 1.6
"""Work of a weight gradient whose operands are not fetched ahead, against that of a streamed one (measured)."""
_FLAT_ROWS = 8
_MOST_ROWS = 16
_FAR_ROWS = 8
"""Of rows that no load reaches from one address: with more, LLVM keeps vectors of A on the stack."""
_MOST_VECTORS = 4
_LATENCY = 8
"""Independent multiply-adds that keep the pipelines full."""
_LOAD = 0.05
_TILE = 10.0
_STORE = 1.5
_WRITE_STREAMS = 0.6
"""Per tile; per vector of a tile; and per pair of a tile's rows, if C is written to memory (rows are far apart)."""
_PACK = 4.0
_TRANSPOSE = 8.0
"""Packing of one vector of B."""
_IN_PLACE = 0.1
"""Extra for one vector of B read where it lies."""
_APART = 0.45
_CONFLICT = 2.5
"""Extra for a tile's part of one row of B where rows are far apart; and where they meet in few sets of the cache."""
_FAR_LINES = 32
"""Cache lines between rows that prefetching does not bridge."""
_CROWDED = 15.0
"""Extra for a tile's part of one step of A or B that other lines of the block drive out of the second-level cache."""
_EVERY_STEP = 1.0
"""Extra for a tile's part of one step of a transposed A, whose line the first-level cache has given up."""
_L2_SETS = 1024
_COPY = 4.0
"""Copying of one vector of A."""
_LINE = 1.5
"""Getting a cache line from outside the second-level cache, as far as it is not hidden."""
_REMOTE = 20.0
"""Getting a vector of sums from another slot's cache."""
_PHASE = 5000.0
"""Meeting of the threads between two phases."""
_MOST_CHOICES = 8


@dataclass(frozen=True, slots=True)
class Core:
    """The figures of a target that the estimate uses, for products of one element type."""

    precision: Precision
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    spare_registers: int
    """Registers that a tile leaves to the elements of A: NEON has no multiply-add that reads one from memory, and with
    fewer LLVM moves and spills accumulators in some unrolled loops."""
    reach_bytes: int
    """Farthest row of A that a load reaches from the first one's address."""

    @staticmethod
    def of(target: Target, dtype: DType, products: str = "") -> Core:
        """One core of a target."""
        spare, reach_bytes = (3, 65520) if target.architecture == "aarch64" else (1, 1 << 31)
        precision = Precision.of("f16" if products == "f16" else dtype, target)
        return Core(precision, target.vector_registers, target.l1_bytes, target.l2_bytes, spare, reach_bytes)

    @property
    def lanes(self) -> int:
        """Elements in one vector register."""
        return self.precision.lanes

    @property
    def item_bytes(self) -> int:
        """Of one element of an operand."""
        return self.precision.item_bytes


@lru_cache(maxsize=4096)
def ranked(spec: MatmulSpec, core: Core, threads: int) -> tuple[Candidate, ...]:
    """The best tile for each way to share and pack, best first, then near variants of the first."""
    slots = slots_of(2.0 * spec.batch * spec.m * spec.n * spec.k, threads)
    best: list[tuple[float, Candidate]] = []
    for way in _ways(spec, core, slots):
        tiles = (with_copies(spec, core, slots, tiled) for tiled in _tiled(spec, core, way))
        priced = [(cost(spec, core, slots, tiled), tiled) for tiled in tiles]
        best.append(min(priced, key=lambda entry: (entry[0], -entry[1].rows * entry[1].vectors)))
    best.sort(key=lambda entry: entry[0])
    first = best[0][1]
    limit = 1.3 * best[0][0]
    near = [candidate for price, candidate in best if price <= limit]
    return tuple(dict.fromkeys([first, *near[1:5], *_variants(spec, core, slots, first)]))[:_MOST_CHOICES]


def with_copies(spec: MatmulSpec, core: Core, slots: int, candidate: Candidate) -> Candidate:
    """The candidate with A's rows copied, if a block of them would not stay in the cache where it lies."""
    if candidate.order == "parts":
        return candidate
    copied = replace(candidate, copies_a=spec.a_transposed and _may_copy(spec, candidate))
    if copied == candidate:
        return candidate
    return min(candidate, copied, key=lambda one: cost(spec, core, slots, one))


def _variants(spec: MatmulSpec, core: Core, slots: int, first: Candidate) -> Iterator[Candidate]:
    """Other tiles of the best way, and with A's rows copied, or not."""
    priced = sorted(
        ((cost(spec, core, slots, tiled), tiled) for tiled in _tiled(spec, core, first)), key=lambda e: e[0]
    )
    widths = {first.vectors}
    for _, tiled in priced:
        if tiled.vectors not in widths:
            widths.add(tiled.vectors)
            yield tiled
    if _may_copy(spec, first):
        yield replace(first, copies_a=not first.copies_a)


def _may_copy(spec: MatmulSpec, candidate: Candidate) -> bool:
    return candidate.goes_by_columns and not spec.products


def _ways(spec: MatmulSpec, core: Core, slots: int) -> Iterator[Candidate]:
    """Every sensible way to share out and to pack, without a tile."""
    in_place: tuple[PanelPlace, ...] = () if spec.b_transposed else ("direct",)
    packed: tuple[PanelPlace, ...] = () if spec.b_panel else ("private",)
    whole: tuple[PanelPlace, ...] = () if spec.b_panel else ("shared",)
    if spec.products == "f16":  # in one pass: sums that wait would be rounded, or twice as large
        yield Candidate(0, 0, "rows", "rows", "shared", spec.k)
        yield Candidate(0, 0, "rows", "columns", "shared", spec.k)
        yield Candidate(0, 0, "columns", "columns", "shared", spec.k)
        return
    if spec.products:
        in_place, packed = (), whole
    k_block = spec.k if spec.k <= _UNBLOCKED_STEPS else divisor_near(spec.k, BLOCK_STEPS // 2, BLOCK_STEPS)
    if spec.batch >= 2 * slots and spec.batch > 1:
        yield from (Candidate(0, 0, "batch", "columns", panels, k_block) for panels in (*in_place, *packed))
        return
    if is_streamed(spec):
        steps, copies = _streamed_steps(spec, core), _few_sets(spec.m, core.precision.line)
        for panels in (*in_place, *packed):
            if _sums_stay(spec, core, slots):
                yield Candidate(0, 0, "split", "columns", panels, steps)
            else:
                yield Candidate(0, 0, "columns", "parts", panels, steps, copies)
                yield Candidate(0, 0, "rows", "parts", panels, steps, copies)
    b_stays = core.item_bytes * spec.k * spec.n <= core.l2_bytes // 2
    flat = spec.m <= _FLAT_ROWS and not spec.b_transposed and not b_stays
    if spec.batch == 1 and (spec.k >= LONG or flat) and not is_streamed(spec):
        # With one row tile B is used once, so it is read in the order in which it lies.
        row_bytes = core.item_bytes * spec.n
        fits = core.l1_bytes // row_bytes if flat else core.l2_bytes // (2 * core.item_bytes * (spec.m + spec.n))
        most = max(16, min(BLOCK_STEPS, fits))
        steps = divisor_near(spec.k, most // 2, most)
        yield from (Candidate(0, 0, "split", "columns", panels, steps) for panels in (*in_place, *packed))
        if flat:
            return
    if b_stays and not (spec.a_transposed and spec.k > _UNBLOCKED_STEPS):
        yield from (Candidate(0, 0, "rows", "rows", panels, spec.k) for panels in (*in_place, *whole))
    else:
        yield from (Candidate(0, 0, "rows", "columns", panels, k_block) for panels in (*in_place, *packed))
    yield from (Candidate(0, 0, "columns", "columns", panels, k_block) for panels in (*in_place, *packed))


def _tiled(spec: MatmulSpec, core: Core, way: Candidate) -> Iterator[Candidate]:
    registers = core.vector_registers - core.spare_registers
    vectors = -(-spec.n // core.lanes)
    widths = [spec.b_panel // core.lanes] if spec.b_panel else range(1, min(_MOST_VECTORS, vectors) + 1)
    reached = _MOST_ROWS if spec.a_transposed else 1 + core.reach_bytes // (core.item_bytes * spec.k)
    most_rows = min(_MOST_ROWS, spec.m, max(reached, _FAR_ROWS))
    for width in widths:
        for height in range(1, min(most_rows, (registers - width) // (width * core.precision.sum_size)) + 1):
            yield replace(way, rows=height, vectors=width)


def is_streamed(spec: MatmulSpec) -> bool:
    """Whether a product is a weight gradient whose operands are read in order, a few steps at a time, while all sums,
    or those of a part, wait in the second-level cache."""
    return spec.batch == 1 and spec.a_transposed and not spec.products and spec.k > _STREAMED


def _sums_stay(spec: MatmulSpec, core: Core, slots: int) -> bool:
    """Whether each slot's sums of all of C wait in half of a second-level cache, and all slots' in one."""
    return max(2, slots) * core.precision.sum_bytes * spec.m * spec.n <= core.l2_bytes


def _streamed_steps(spec: MatmulSpec, core: Core) -> int:
    """Steps of a block: more where all of it is a small part of the first-level cache."""
    fits = core.l1_bytes // (4 * core.item_bytes * (spec.m + spec.n))
    most = min(max(fits, _STREAMED_STEPS), BLOCK_STEPS)
    return divisor_near(spec.k, most // 2, most)


def panel_widths(n: int, core: Core) -> list[int]:
    """Columns that panels of a stored B may have: whole vectors, and n whole panels."""
    sizes = (vectors * core.lanes for vectors in range(1, _MOST_VECTORS + 1))
    return [width for width in sizes if n % width == 0]


# ------------------------------------------------------------------------------------------------------------- cost


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
    work = sum(
        row_tiles
        * column_tiles
        * (
            steps * _step(core, height, width)
            + (blocks / shares) * (_TILE + _STORE * height * width)
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
    if _few_sets(spec.n, line):
        extra = _CONFLICT * row_tiles
    elif spec.n >= _FAR_LINES * line:
        extra = _APART * row_tiles
    if crowded(core, min(candidate.k_block, spec.k), candidate.vectors * core.lanes, spec.n):
        extra += _CROWDED * (row_tiles - 1)
    return extra / candidate.vectors if extra else _IN_PLACE * row_tiles


def _block_of_a(spec: MatmulSpec, core: Core, candidate: Candidate, height: int, tiles: int) -> float:
    """Per step of the reduction: copying the block's rows, or finding them gone from a cache."""
    if candidate.copies_a:
        return _COPY * height / core.lanes
    if not (spec.a_transposed and candidate.goes_by_columns):
        return 0.0
    steps, rows = min(candidate.k_block, spec.k), min(blocks_of(core, candidate, spec, 1)[0], spec.m)
    if crowded(core, steps, rows, spec.m):
        return _CROWDED * tiles
    return _EVERY_STEP * tiles if 2 * steps * core.precision.line_bytes >= core.l1_bytes else 0.0


def crowded(core: Core, runs: int, length: int, distance: int) -> bool:
    """Whether `runs` runs of `length` elements, that far apart, need half of the second-level cache's sets that they
    fall into."""
    apart, rest = divmod(distance, core.precision.line)
    lines = -(-length // core.precision.line)
    between = 1 if rest else math.gcd(apart, _L2_SETS)
    sets = _L2_SETS // between * min(lines, between)
    ways = core.l2_bytes // (_L2_SETS * core.precision.line_bytes)
    return 2 * runs * lines >= sets * ways


def _few_sets(elements: int, line: int) -> bool:
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
    """Of `full` tiles of `size` and one of `rest` shared out in order: the largest share."""
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
    own = -(-spec.n // slots) if candidate.strategy == "columns" else spec.n
    columns = _even(own, width, max(math.isqrt(sums), sums // spec.m))
    return _even(spec.m, candidate.rows, sums // columns), columns


def _even(extent: int, tile: int, most: int) -> int:
    """Blocks of about one size, of whole tiles."""
    if extent <= most:
        return -(-extent // tile) * tile
    blocks = -(-extent // max(most, 1))
    return max(-(-extent // (blocks * tile)), 1) * tile
