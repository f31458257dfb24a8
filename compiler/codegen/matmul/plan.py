"""The schedule of a matrix product: register tile, cache blocks, packing, and what threads share out.

Loops of one thread's part, outermost first (after Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008):

    order "columns": blocks of the reduction, blocks of rows, column tiles, row tiles
                     (a panel of B stays in the first-level cache, a block of A in the second; sums wait in memory)
    order "parts":   blocks of columns, blocks of rows, blocks of the reduction, column tiles, row tiles
                     (sums of a part of C wait in the second-level cache, A and B are fetched ahead in short blocks)
    order "rows":    row tiles, column tiles
                     (all of B stays in the cache, A is read and C written once, in order)

Which schedules a matrix product may have: those that make sense, the one of least estimated cost first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.matmul.candidate import Candidate, Order, PanelPlace, Strategy, candidate_of
from compiler.codegen.matmul.cost import Core, blocks_of, cost, few_sets, is_streamed
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import BAND_ROWS, BANDS, Columns, columns, divisor_near, slots_of, tile_can_hold
from compiler.codegen.tir.iteration import flatten_access, indexed_axes
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.expressions import Expr, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.targets import CpuTarget

LONG = 1024
"""Steps of a reduction that is worth splitting."""
BLOCK_STEPS = 256
_LONG_BLOCK_STEPS = 384
"""Most steps that all tiles do before the next block of the reduction; and where the second-level cache then still
holds a high block of A."""
_HIGH_BLOCK_ROWS = 256
_UNBLOCKED_STEPS = 384
_STREAMED_STEPS = 64
"""Most steps of a streamed block, beside which the panels of a tile stay in the first-level cache."""
_FLAT_ROWS = 8
_MOST_ROWS = 16
_FAR_ROWS = 8
"""The number of rows that no load reaches from one address: with more, LLVM keeps vectors of A on the stack."""
_MOST_VECTORS = 4
_MOST_CHOICES = 8


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
    hard_to_read = spec.a_transposed or few_sets(spec.k, core.precision.line)
    copied = replace(candidate, copies_a=hard_to_read and _may_copy(spec, candidate))
    if copied == candidate:
        return candidate
    return min(candidate, copied, key=lambda option: cost(spec, core, slots, option))


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
    """Yields every sensible way to share out and to pack, without a tile."""
    in_place: tuple[PanelPlace, ...] = () if spec.b_transposed else ("direct",)
    packed: tuple[PanelPlace, ...] = () if spec.b_panel else ("private",)
    whole: tuple[PanelPlace, ...] = () if spec.b_panel else ("shared",)
    if spec.products == "f16":  # in one pass: sums that wait would be rounded, or twice as large
        yield Candidate(0, 0, "rows", "rows", "shared", spec.k)
        yield Candidate(0, 0, "rows", "columns", "shared", spec.k)
        yield Candidate(0, 0, "columns", "columns", "shared", spec.k)
        return
    k_block = spec.k if spec.k <= _UNBLOCKED_STEPS else _even_block(spec, core)
    if spec.products == "i8":
        yield from _ways_of_bytes(spec, core, k_block)
        return
    if spec.products:
        in_place, packed = (), whole
    if spec.batch >= 2 * slots and spec.batch > 1:
        yield from (Candidate(0, 0, "batch", "columns", panels, k_block) for panels in (*in_place, *packed))
        return
    if is_streamed(spec):
        steps, copies = _streamed_steps(spec, core), few_sets(spec.m, core.precision.line)
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


def _ways_of_bytes(spec: MatmulSpec, core: Core, k_block: int) -> Iterator[Candidate]:
    """Yields the ways of a product whose A is packed first, by its nature, and B always."""
    yield Candidate(0, 0, "columns", "columns", "private", k_block)  # a panel is packed where it is hot
    if core.item_bytes * spec.k * spec.n <= core.l2_bytes // 2:
        yield Candidate(0, 0, "rows", "rows", "shared", spec.k)


def _tiled(spec: MatmulSpec, core: Core, way: Candidate) -> Iterator[Candidate]:
    if core.tiles:
        for bands in range(1, min(BANDS, -(-spec.m // BAND_ROWS)) + 1):
            for width in range(1, min(BANDS, -(-spec.n // core.lanes)) + 1):
                yield replace(way, rows=bands * BAND_ROWS, vectors=width)
        return
    registers = core.vector_registers - core.spare_registers
    vectors = -(-spec.n // core.lanes)
    widths = [spec.b_panel // core.lanes] if spec.b_panel else range(1, min(_MOST_VECTORS, vectors) + 1)
    reached = _MOST_ROWS if spec.a_transposed else 1 + core.reach_bytes // (core.item_bytes * spec.k)
    most_rows = min(_MOST_ROWS, spec.m, max(reached, _FAR_ROWS))
    for width in widths:
        each = width * core.precision.sum_size + core.vectors_of_a
        for height in range(1, min(most_rows, (registers - width) // each) + 1):
            yield replace(way, rows=height, vectors=width)


def _even_block(spec: MatmulSpec, core: Core) -> int:
    """Steps of a block of a reduction that is longer."""
    long = core.l2_bytes // (2 * core.item_bytes * _LONG_BLOCK_STEPS) >= _HIGH_BLOCK_ROWS
    most = _LONG_BLOCK_STEPS if long else BLOCK_STEPS
    if core.tiles:  # whole registers of steps, but for the last block
        return most
    return divisor_near(spec.k, most // 2, most)


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


Waiting = Literal["registers", "output", "workspace"]
WHOLE_STEPS = 512
"""Longest reduction whose sums stay in registers if they cannot wait in C (measured: as fast as in blocks)."""
_STREAM_STEPS = 384
"""Longest reduction whose tiles are so short that memory, not arithmetic, sets their pace."""
_WORTH_STORING = 0.95
"""Cost of a product with stored panels, as a part of its cost without, above which B is left as it is."""


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """A way to compute a product.

    `strategy` says what threads share out: whole products, row tiles, column tiles, or steps of the reduction (whose
    partial sums a second phase adds). `panels`: B is read where it lies, packed whole by all threads first, or
    packed by each thread just before use. `k_block` steps are done for all tiles before the next; meanwhile the sums
    are `waiting` in C or in the workspace. `m_block` is in rows, `n_block` in columns. Sizes in the workspace are in
    stored elements.
    """

    precision: Precision
    batch: int
    m: int
    n: int
    k: int
    rows: int
    columns: Columns
    slots: int
    strategy: Strategy
    order: Order
    panels: PanelPlace
    k_block: int
    m_block: int
    n_block: int
    waiting: Waiting
    copies_a: bool
    """Whether a block of A is copied first into the order in which row tiles read it."""
    streams_a: bool
    streams_b: bool
    streams_c: bool
    """Whether the next row tile's part of A and of C, and the next column tile's part of B, is fetched ahead."""
    streams_blocks: bool = False
    """Whether the next block of the reduction is fetched ahead, both of its operands, a part by each tile."""
    packs_a: bool = False
    """Whether the whole of A is packed first, several steps in a word."""
    rounds_a: bool = False
    """Whether its rows are rounded to whole numbers then, each with a scale behind them all."""
    tiles: bool = False
    """Whether tile registers multiply: then steps of a row of A lie side by side, packed so if they do not."""
    shift: int = 0
    """The number that is added to those: then each block of a panel ends in a step of sums, for what that adds to
    products.
    """

    @property
    def row_tiles(self) -> int:
        """Tiles along m, the last one perhaps shorter."""
        return -(-self.m // self.rows)

    @property
    def column_tiles(self) -> int:
        """Tiles along n, the last one perhaps narrower."""
        return self.columns.full + (1 if self.columns.tail else 0)

    @property
    def blocks(self) -> int:
        """Blocks of the reduction."""
        return -(-self.k // self.k_block)

    @property
    def panel_steps(self) -> int:
        """Steps of a whole panel, and for each block one of sums behind them, if there are such."""
        return self.k + (self.blocks if self.shift else 0)

    @property
    def shared_panel_elements(self) -> int:
        """Returns the number of elements of one product's B, packed whole."""
        return self.panel_steps * self.columns.padded if self.panels == "shared" else 0

    @property
    def private_panel_elements(self) -> int:
        """Returns the number of elements of one thread's packed part of B."""
        if self.panels != "private":
            return 0
        widest = max(self.columns.tile.width if self.columns.full else 0, self._tail_width)
        steps = self.k_block + (1 if self.shift else 0)
        return steps * (self.columns.padded if self.strategy == "split" else widest)

    @property
    def _tail_width(self) -> int:
        return self.columns.tail.width if self.columns.tail else 0

    @property
    def a_tile_elements(self) -> int:
        """Distance of row tiles in a copied block of A, whose parts of a step must not meet in one set of a cache."""
        return self.precision.odd_lines(self.rows * self.k_block)

    @property
    def a_block_elements(self) -> int:
        """Returns the number of elements of one thread's copied block of A."""
        if not self.copies_a:
            return 0
        return self.precision.aligned(-(-min(self.m_block, self.m) // self.rows) * self.a_tile_elements)

    @property
    def packed_a_elements(self) -> int:
        """A in words, and the scales of its rows."""
        return self.batch * self.m * (self.k + (1 if self.rounds_a else 0)) if self.packs_a else 0

    @property
    def sums_elements(self) -> int:
        """Returns the number of elements of one thread's partial sums of a split reduction, and of B's columns behind
        them.
        """
        if self.strategy != "split":
            return 0
        return (self.m + 1) * self.columns.padded * self.precision.sum_size

    @property
    def slot_elements(self) -> int:
        """Returns the number of elements of one thread's scratch."""
        return self.private_panel_elements + self.a_block_elements + self.sums_elements

    @property
    def waiting_elements(self) -> int:
        """Scratch of all threads for sums that wait between blocks."""
        return self.batch * self.m * self.n * self.precision.sum_size if self.waiting == "workspace" else 0


def choices(spec: MatmulSpec, target: CpuTarget, threads: int) -> tuple[Choice, ...]:
    """The schedules that are worth measuring; the first is the default."""
    return tuple(candidate.choice for candidate in _ranked(folded(spec), target, threads))


def folded(spec: MatmulSpec) -> MatmulSpec:
    """The spec with a batch over a shared B made rows of A, where layout and epilogue allow it; steps that are
    multiplied at once count as one."""
    return replace(_folded(spec), k=spec.k // spec.steps_at_once)


def _folded(spec: MatmulSpec) -> MatmulSpec:
    if spec.batch == 1 or spec.b_batched or not spec.a_batched or spec.a_transposed:
        return spec
    if 0 in indexed_axes(spec.epilogue) or 1 in indexed_axes(spec.epilogue):
        return spec
    for access in spec.epilogue_inputs:
        strides = flatten_access(access, (spec.batch, spec.m, spec.n)).strides
        if strides[0] != strides[1] * spec.m:
            return spec
    return replace(spec, batch=1, m=spec.batch * spec.m)


def _ranked(spec: MatmulSpec, target: CpuTarget, threads: int) -> tuple[Candidate, ...]:
    """Candidates depend on the product alone: one search for all its epilogues.

    Sums that cannot wait in C stay in registers where the reduction is short: waiting elsewhere costs memory traffic.
    """
    product = replace(spec, epilogue=Ref(0), epilogue_inputs=(), extra_outputs=(), sums=False)
    core = Core.of(target, spec.dtype, spec.products)
    candidates = ranked(product, core, threads)
    if spec.k > WHOLE_STEPS or _waiting(spec, core.precision) == "output":
        return candidates
    slots = slots_of(2.0 * spec.batch * spec.m * spec.n * spec.k, threads)
    whole = (
        candidate if candidate.strategy == "split" else replace(candidate, k_block=spec.k) for candidate in candidates
    )
    return tuple(dict.fromkeys(with_copies(product, core, slots, candidate) for candidate in whole))


def frugal(spec: MatmulSpec, target: CpuTarget, threads: int) -> Choice:
    """The schedule of least scratch; of those, the fastest by estimate."""
    shape = folded(spec)
    candidates = _ranked(shape, target, threads)
    if not shape.b_panel and not shape.products:  # a panel of B at a time
        steps = shape.k if shape.k <= WHOLE_STEPS else BLOCK_STEPS
        narrow = Candidate(candidates[0].rows, 1, "columns", "columns", "private", steps)
        candidates = (*candidates, replace(narrow, vectors=candidates[0].vectors), narrow)
    sizes = [workspace_bytes(spec, target, threads, candidate.choice) for candidate in candidates]
    best = sizes.index(min(sizes))
    return candidates[best].choice if best else DEFAULT


def plan(spec: MatmulSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> MatmulPlan:
    """The plan for a (folded) spec: the analytic default, or what `choice` says. Raises: ValueError for nonsense."""
    default, core = _ranked(spec, target, threads)[0], Core.of(target, spec.dtype, spec.products)
    precision = core.precision
    chosen = candidate_of(choice, default) if choice else default
    by_rows = chosen.order == "rows"
    vectors = min(chosen.vectors, -(-spec.n // precision.lanes))
    one_pass = by_rows or chosen.strategy == "split"
    k_block = spec.k if by_rows else min(chosen.k_block, spec.k)
    slots = slots_of(2.0 * spec.batch * spec.m * spec.n * spec.k, threads)
    by_parts = chosen.order == "parts"
    m_block, n_block = blocks_of(core, replace(chosen, vectors=vectors), spec, slots)
    short = by_rows and spec.k <= _STREAM_STEPS
    far = target.l2_bytes // 2
    return MatmulPlan(
        precision=precision,
        batch=spec.batch,
        m=spec.m,
        n=spec.n,
        k=spec.k,
        rows=min(chosen.rows, spec.m),
        columns=columns(spec.n, vectors, precision.lanes, padded=chosen.panels != "direct"),
        slots=slots,
        strategy=chosen.strategy,
        order=chosen.order,
        panels=chosen.panels,
        k_block=k_block,
        m_block=m_block,
        n_block=n_block,
        waiting="registers" if one_pass or k_block == spec.k else _waiting(spec, precision),
        copies_a=chosen.copies_a and not one_pass,
        streams_blocks=chosen.sums_wait
        and spec.a_transposed
        and not spec.b_transposed
        and not spec.products
        and spec.k % k_block == 0
        and precision.item_bytes * spec.k * (spec.m + spec.n) > target.l1_bytes,
        packs_a=spec.products == "i8"
        or (spec.products == "bf16" and (spec.a_transposed or spec.stored[0] != spec.products)),
        rounds_a=spec.products == "i8",
        tiles=core.tiles,
        shift=target.byte_shift if spec.products == "i8" else 0,
        streams_a=short
        and not spec.products
        and not spec.a_transposed
        and precision.item_bytes * spec.m * spec.k > target.l2_bytes,
        streams_b=not one_pass
        and not by_parts
        and not spec.products
        and precision.item_bytes * spec.k * spec.n > far // 2,
        streams_c=(short or not one_pass) and not by_parts and precision.item_bytes * spec.m * spec.n > far,
    )


def panel_width(spec: MatmulSpec, target: CpuTarget, threads: int) -> int:
    """Columns of the panels in which a B that never changes is stored best; 0: as it is."""
    core = Core.of(target, spec.dtype)
    product = replace(folded(spec), epilogue=Ref(0), epilogue_inputs=(), extra_outputs=(), sums=False)
    if spec.sums or spec.b_panel or spec.products or (product.b_batched and product.batch > 1):
        return 0
    slots = slots_of(2.0 * product.batch * product.m * product.n * product.k, threads)
    stored = [
        replace(product, b_transposed=False, b_batched=False, b_panel=width) for width in panel_widths(product.n, core)
    ]
    costs = {
        variant.b_panel: cost(variant, core, slots, ranked(variant, core, threads)[0]) for variant in (product, *stored)
    }
    best = min(costs, key=lambda width: (costs[width], -width))
    return best if costs[best] < _WORTH_STORING * costs[0] else 0


def _waiting(spec: MatmulSpec, precision: Precision) -> Waiting:
    """Sums may wait in C, if it holds them exactly, unless the epilogue reads something that may share its storage."""
    if precision.sum_size > 1 or (spec.stored and ELEMENT_TYPES[spec.stored[2]].is_half):
        return "workspace"
    size = spec.batch * spec.m * spec.n
    return "workspace" if any(access.type.size >= size for access in spec.epilogue_inputs) else "output"


def workspace_bytes(spec: MatmulSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> int:
    """Scratch for packed panels, copies and partial sums."""
    spec = folded(spec)
    chosen = plan(spec, target, threads, choice)
    shared = chosen.shared_panel_elements * (spec.batch if spec.b_batched else 1)
    return chosen.precision.item_bytes * (
        shared + chosen.slots * chosen.slot_elements + chosen.waiting_elements + chosen.packed_a_elements
    )


def can_hold(spec: MatmulSpec, expr: Expr, target: CpuTarget) -> bool:
    """Whether the kernel may also apply `expr` to what it writes today."""
    return tile_can_hold(expr)


def can_update(spec: MatmulSpec, target: CpuTarget) -> bool:
    """Whether a weight gradient may become the update itself: its sums stay in registers.

    The sums of longer reductions would wait in memory, as the gradient does, and their arithmetic outweighs the update.
    """
    return spec.batch == 1 and spec.a_transposed and not spec.extra_outputs and spec.k <= WHOLE_STEPS
