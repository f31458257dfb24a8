"""Attention kernels: how an `AttentionSpec` is cut into blocks, tiles and threads. The TIR is in `attention_*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_shape
from compiler.kernels.spec import AttentionSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir.tir import PrimFunc

_MOST_ROWS = 64
"""Queries of a block: enough that reading the keys from the second-level cache does not show."""
_LEAST_ROWS = 8
_LONG = 64
"""Steps that every product here is tiled for: the shape of a tile hardly depends on them."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """One product's register tile: `rows` high and `vectors` wide."""

    rows: int
    vectors: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One way to compute attention.

    Threads share out (batch, key/value head) pairs, each cut into `chunks` interleaved sets of query blocks. A thread
    keeps its head's packed keys and values and the scores of `block_rows` queries, `score_stride` floats apart, in
    its part of the workspace.
    """

    slots: int
    chunks: int
    block_rows: int
    score_stride: int
    scores: Tiling
    """q k' and d_y v': queries x keys."""
    rows_out: Tiling
    """y and d_q: queries x (value) width."""
    keys_out: Tiling
    """d_k and d_v: keys x (value) width."""
    lanes: int

    def columns(self, tiling: Tiling, count: int, *, padded: bool = False) -> Columns:
        """`count` columns in tiles of a product."""
        return columns(count, tiling.vectors, self.lanes, padded=padded)

    @property
    def stat_floats(self) -> int:
        """One number for each query of a block, in whole vectors."""
        return -(-self.block_rows // self.lanes) * self.lanes

    @property
    def score_floats(self) -> int:
        """The scores of a block."""
        return self.block_rows * self.score_stride


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a thread's scratch tensors begin, in floats from its part of the workspace."""

    starts: dict[str, int]
    total: int


def layout(spec: AttentionSpec, plan: AttentionPlan) -> Layout:
    """The scratch of one thread."""
    keys, width, value_width = spec.keys, spec.width, spec.value_width
    padded = plan.columns(plan.scores, keys, padded=True).padded
    sizes = {"keys_across": width * padded, "scores": plan.score_floats}
    if spec.kind == "forward":
        sizes |= {"values": keys * value_width, "highest": plan.stat_floats, "sums": plan.stat_floats}
    else:
        sizes |= {
            "values_across": value_width * padded,
            "keys": keys * width,
            "d_scores": plan.score_floats,
            "q": plan.block_rows * width,
            "d_y": plan.block_rows * value_width,
        }
    starts, total = {}, 0
    for name, size in sizes.items():
        starts[name] = total
        total += -(-size // 16) * 16
    return Layout(starts, total)


def plan(spec: AttentionSpec, target: Target, threads: int) -> AttentionPlan:
    """The plan from the target's figures."""
    products = 2 if spec.kind == "forward" else 5
    flops = 2.0 * products * spec.batch * spec.heads * spec.queries * spec.keys * spec.width
    slots = slots_of(flops, threads)
    heads = spec.batch * spec.groups
    uneven = heads % slots and heads < 4 * slots
    precision, width = Precision.of(spec.dtype, target), max(spec.width, spec.value_width)
    lanes = precision.lanes
    lines = -(-spec.keys * 4 // 64) | 1  # an odd number of cache lines, so that a column of scores uses every set
    stride = lines * 16
    fitting = target.l2_bytes // (4 * 4 * stride)
    most = max(_LEAST_ROWS, min(_MOST_ROWS, fitting))
    blocks = -(-spec.queries // most)
    rows = -(-spec.queries // blocks)
    return AttentionPlan(
        slots,
        slots if uneven and spec.kind == "forward" else 1,
        rows,
        stride,
        Tiling(*tile_shape(target, precision, rows=rows, count=spec.keys, steps=_LONG)),
        Tiling(*tile_shape(target, precision, rows=rows, count=width, steps=_LONG)),
        Tiling(*tile_shape(target, precision, rows=spec.keys, count=width, steps=_LONG)),
        lanes,
    )


def workspace_bytes(spec: AttentionSpec, target: Target, threads: int) -> int:
    """Scratch of every thread."""
    chosen = plan(spec, target, threads)
    return 4 * chosen.slots * layout(spec, chosen).total


def emit(spec: AttentionSpec, target: Target, threads: int) -> PrimFunc:
    """TIR of attention or of its gradient."""
    from compiler.codegen.attention.attention_backward import Backward
    from compiler.codegen.attention.attention_forward import Forward
    from compiler.codegen.tir import tir

    operands = tir.declare(spec, workspace_bytes(spec, target, threads))
    chosen = plan(spec, target, threads)
    body = tir.Block()
    kernel = Forward if spec.kind == "forward" else Backward
    kernel(spec, chosen, layout(spec, chosen), operands).emit(body)
    return tir.finish(spec, operands, body)
