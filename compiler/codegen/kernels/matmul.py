"""Matrix products: how a `MatmulSpec` is cut into register tiles, panels and threads. The TIR is in `gemm`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from compiler.codegen.iteration import flatten_access, indexed_axes
from compiler.codegen.kernels.tiling import Columns, columns, divisor_near, slots_of, tile_shape, vector_pieces
from compiler.kernel_spec import MatmulSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir import PrimFunc

_LONG = 1024
"""Steps of a reduction that is worth splitting."""
_STREAM_STEPS = 256
"""Longest reduction whose tiles are so short that memory, not arithmetic, sets their pace."""
_BLOCK_STEPS = 256
"""Steps of a split reduction that a tile sums before it adds to the sums in memory."""
Strategy = Literal["batch", "rows", "columns", "split"]
Panels = Literal["direct", "shared", "private"]


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """One way to compute a product.

    `strategy` says what threads share out: whole products, row tiles, column tiles, or steps of the reduction (whose
    partial sums a second phase adds). `panels`: B is read where it lies, packed whole by all threads first, or
    packed by each thread just before use. `k_block` steps of a split reduction are done for all tiles before the next.
    """

    batch: int
    m: int
    n: int
    k: int
    rows: int
    columns: Columns
    slots: int
    strategy: Strategy
    panels: Panels
    k_block: int
    streams_a: bool
    streams_c: bool
    """Whether the next row tile's part of A, and of C, is fetched while a tile is computed."""

    @property
    def fetches_ahead(self) -> bool:
        """Whether anything is."""
        return self.streams_a or self.streams_c

    @property
    def shared_panel_floats(self) -> int:
        """One product's B, packed whole."""
        return self.k * self.columns.padded if self.panels == "shared" else 0

    @property
    def private_panel_floats(self) -> int:
        """One thread's packed part of B."""
        if self.panels != "private":
            return 0
        if self.strategy == "split":
            return self.k_block * self.columns.padded
        return self.k * max(self.columns.tile.width if self.columns.full else 0, self._tail_width)

    @property
    def _tail_width(self) -> int:
        return self.columns.tail.width if self.columns.tail else 0

    @property
    def sums_floats(self) -> int:
        """One thread's partial sums."""
        return self.m * self.columns.padded if self.strategy == "split" else 0


def folded(spec: MatmulSpec) -> MatmulSpec:
    """The spec with a batch over a shared B made rows of A, where layout and epilogue allow it."""
    if spec.batch == 1 or spec.b_batched or not spec.a_batched or spec.a_transposed:
        return spec
    if 0 in indexed_axes(spec.epilogue) or 1 in indexed_axes(spec.epilogue):
        return spec
    for access in spec.epilogue_inputs:
        strides = flatten_access(access, (spec.batch, spec.m, spec.n)).strides
        if strides[0] != strides[1] * spec.m:
            return spec
    return replace(spec, batch=1, m=spec.batch * spec.m)


def plan(spec: MatmulSpec, target: Target, threads: int) -> MatmulPlan:
    """The plan for a (folded) spec from the target's figures."""
    slots = slots_of(2.0 * spec.batch * spec.m * spec.n * spec.k, threads)
    # A weight gradient streams both operands from memory, like a product with few steps streams its output.
    streams = spec.a_transposed and spec.k >= _LONG
    rows, vectors = tile_shape(target, rows=spec.m, count=spec.n, steps=1 if streams else spec.k)
    strategy = _strategy(spec, target, slots, rows, vectors)
    panels = _panels(spec, target, strategy, rows, vectors)
    cut = columns(spec.n, vectors, target.lanes, padded=panels != "direct")
    most_steps = _BLOCK_STEPS
    if panels == "direct":
        # Whole rows of B are read once from memory, and a block of them again and again from the first-level cache.
        most_steps = max(16, min(most_steps, target.l1_bytes // (4 * spec.n)))
    k_block = divisor_near(spec.k, most_steps // 2, most_steps)
    short = strategy == "rows" and spec.k <= _STREAM_STEPS
    streams_a = short and not spec.a_transposed and 4 * spec.m * spec.k > target.l2_bytes
    streams_c = short and 4 * spec.m * spec.n > target.l2_bytes
    return MatmulPlan(
        spec.batch, spec.m, spec.n, spec.k, rows, cut, slots, strategy, panels, k_block, streams_a, streams_c
    )  # fmt: skip


def _strategy(spec: MatmulSpec, target: Target, slots: int, rows: int, vectors: int) -> Strategy:
    row_tiles = -(-spec.m // rows)
    column_tiles = -(-spec.n // (vectors * target.lanes))
    b_bytes = 4 * spec.k * spec.n
    if spec.batch == 1 and not spec.b_transposed and spec.m <= 2 * rows and b_bytes > target.l2_bytes // 2:
        return "split"
    if spec.batch == 1 and spec.k >= _LONG and (spec.a_transposed or row_tiles * column_tiles < 4 * slots):
        return "split"
    if spec.batch >= 2 * slots and spec.batch > 1:
        return "batch"
    return "columns" if row_tiles < 2 * slots else "rows"


def _panels(spec: MatmulSpec, target: Target, strategy: Strategy, rows: int, vectors: int) -> Panels:
    one_panel = spec.n % target.lanes == 0 and spec.n <= vectors * target.lanes
    # A narrow vector costs as much as a whole one: with several of them in the last tile, packing pays.
    odd = len(vector_pieces(spec.n % target.lanes, target.lanes)) > 2
    small = spec.m <= 2 * rows or (4 * spec.k * spec.n <= target.l1_bytes and not odd)
    if not spec.b_transposed and (one_panel or small):
        return "direct"
    return "shared" if strategy == "rows" else "private"


def workspace_floats(chosen: MatmulPlan, b_products: int) -> int:
    """Scratch elements: packed B (`b_products` of them if whole), then partial sums."""
    per_slot = chosen.private_panel_floats + chosen.sums_floats
    return b_products * chosen.shared_panel_floats + chosen.slots * per_slot


def workspace_bytes(spec: MatmulSpec, target: Target, threads: int) -> int:
    """Scratch for packed panels and partial sums."""
    spec = folded(spec)
    return 4 * workspace_floats(plan(spec, target, threads), spec.batch if spec.b_batched else 1)


def emit(spec: MatmulSpec, target: Target, threads: int) -> PrimFunc:
    """TIR of a matrix product."""
    from compiler.codegen import tir
    from compiler.codegen.kernels.gemm import Gemm

    operands = tir.declare(spec, workspace_bytes(spec, target, threads))
    body = tir.Block()
    shape = folded(spec)
    Gemm(shape, plan(shape, target, threads), operands, target.lanes).emit(body)
    return tir.finish(spec, operands, body)
