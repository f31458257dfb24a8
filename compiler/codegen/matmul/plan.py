"""The schedule of a matrix product: register tile, cache blocks, packing, and what threads share out.

Loops of one thread's part, outermost first (after Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008):

    order "columns": blocks of the reduction, blocks of rows, column tiles, row tiles
                     (a panel of B stays in the first-level cache, a block of A in the second; sums wait in memory)
    order "parts":   blocks of columns, blocks of rows, blocks of the reduction, column tiles, row tiles
                     (sums of a part of C wait in the second-level cache, A and B are fetched ahead in short blocks)
    order "rows":    row tiles, column tiles
                     (all of B stays in the cache, A is read and C written once, in order)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.matmul.candidate import Candidate, Order, PanelPlace, Strategy, candidate_of
from compiler.codegen.matmul.cost import Core, blocks_of, cost
from compiler.codegen.matmul.search import BLOCK_STEPS, panel_widths, ranked, with_copies
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_can_hold
from compiler.codegen.tir.iteration import flatten_access, indexed_axes
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.expressions import Expr, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.targets import CpuTarget

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
