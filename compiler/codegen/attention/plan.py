"""The schedule of an attention kernel: how it is cut into blocks, tiles and threads."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import LINE_BYTES, Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_shape
from compiler.element_types import SCRATCH
from compiler.kernels.spec import AttentionSpec
from compiler.targets import CpuTarget

_MOST_ROWS = 64
"""Queries of a block: enough that reading the keys from the second-level cache does not show."""
_LEAST_ROWS = 8
_SHARE_OF_CACHE = 4
"""A block's scores take a quarter of the second-level cache at most."""
_LONG = 64
"""Steps that every product here is tiled for: the shape of a tile hardly depends on them."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The register tile of one product: `rows` high and `vectors` wide."""

    rows: int
    vectors: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A way to compute attention.

    Threads share out (batch, key/value head) pairs, each cut into `chunks` interleaved sets of query blocks. A thread
    keeps its head's packed keys and values as they are stored, and the scores of `block_rows` queries, `score_stride`
    sums apart, in its part of the workspace.
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
    precision: Precision

    @property
    def lanes(self) -> int:
        """Elements in one vector register."""
        return self.precision.lanes

    def columns(self, tiling: Tiling, count: int, *, padded: bool = False) -> Columns:
        """`count` columns in tiles of a product."""
        return columns(count, tiling.vectors, self.lanes, padded=padded)

    @property
    def stat_sums(self) -> int:
        """Returns the size of one number for each query of a block, in whole vectors."""
        return -(-self.block_rows // self.lanes) * self.lanes

    @property
    def score_sums(self) -> int:
        """The scores of a block."""
        return self.block_rows * self.score_stride


@dataclass(frozen=True, slots=True)
class Layout:
    """The starts of a thread's scratch tensors, in elements of the workspace (`SCRATCH`) from its part of it."""

    starts: dict[str, int]
    total: int


def layout(spec: AttentionSpec, plan: AttentionPlan) -> Layout:
    """The scratch of one thread."""
    keys, width, value_width = spec.keys, spec.width, spec.value_width
    padded = plan.columns(plan.scores, keys, padded=True).padded
    copies, sums = {"keys_across": width * padded}, {"scores": plan.score_sums}
    if spec.kind == "forward":
        copies |= {"values": keys * value_width}
        sums |= {"highest": plan.stat_sums, "sums": plan.stat_sums}
    else:
        copies |= {
            "values_across": value_width * padded,
            "keys": keys * width,
            "q": plan.block_rows * width,
            "d_y": plan.block_rows * value_width,
        }
        sums |= {"d_scores": plan.score_sums}
    return _laid_out(copies, sums, plan.precision)


_ORDER = ("keys_across", "scores", "values", "highest", "sums", "values_across", "keys", "d_scores", "q", "d_y")


def _laid_out(copies: dict[str, int], sums: dict[str, int], precision: Precision) -> Layout:
    """Tensors one after the other, each from a cache line on: copies of operands as stored, sums as accumulated."""
    sizes = {name: size * precision.item_bytes for name, size in copies.items()}
    sizes |= {name: size * precision.sum_bytes for name, size in sums.items()}
    starts, total = {}, 0
    for name in (name for name in _ORDER if name in sizes):
        starts[name] = total
        total += -(-sizes[name] // LINE_BYTES) * (LINE_BYTES // SCRATCH.item_bytes)
    return Layout(starts, total)


def plan(spec: AttentionSpec, target: CpuTarget, threads: int) -> AttentionPlan:
    """The plan from the target's figures."""
    products = 2 if spec.kind == "forward" else 5
    flops = 2.0 * products * spec.batch * spec.heads * spec.queries * spec.keys * spec.width
    slots = slots_of(flops, threads)
    heads = spec.batch * spec.groups
    uneven = heads % slots and heads < 4 * slots
    precision, width = Precision.of(spec.dtype, target), max(spec.width, spec.value_width)
    line = LINE_BYTES // precision.sum_bytes
    stride = (-(-spec.keys // line) | 1) * line  # an odd number of lines, so that a column of scores uses every set
    fitting = target.l2_bytes // (_SHARE_OF_CACHE * precision.sum_bytes * stride)
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
        precision,
    )


def workspace_bytes(spec: AttentionSpec, target: CpuTarget, threads: int) -> int:
    """Scratch of every thread."""
    chosen = plan(spec, target, threads)
    return SCRATCH.item_bytes * chosen.slots * layout(spec, chosen).total
