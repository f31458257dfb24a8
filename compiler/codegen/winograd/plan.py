"""Winograd convolutions F(2|4|6, 3): when they pay, and how one is cut into tiles, blocks and threads.

A kernel goes over blocks of output tiles. In each, the tiles' inputs are transformed [product, tile, channel]; then
for each column tile (output channels) weights are transformed into a panel that stays in the thread's cache,
multiplied, and the results transformed back, finished by the epilogue and stored. Where there are many tiles each
thread has blocks of its own; where there are few, all threads share out a block's tiles and then its columns. Nothing
of this goes through memory: a block is cut so that its inputs fit the last-level cache. The weight gradient multiplies
transformed inputs with transformed output gradients over the tiles of a block in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_shape
from compiler.codegen.winograd.points import TAPS, Winograd, winograd
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import ConvSpec
from compiler.targets import CpuTarget

CHANNELS = 16
"""Channel counts must be multiples of this, and of a vector."""
SUM_STEPS = 64
"""Products that one accumulator sums before they are added up: keeps the error near that of direct convolution."""
_ACCURATE = (2, 4)
"""Tiles whose error stays about three times that of direct convolution or less, at any number of channels."""
_LEAST_CHANNELS = 32
_WORTH = 1.25
"""Times faster that a Winograd kernel must be by this estimate: it takes more memory and loses some accuracy."""
_PRODUCT_RATE = 0.9
"""Vector multiply-adds a cycle in products."""
_TRANSFORM = 14.0
"""Cycles a transform spends on each vector it reads or writes, most of them waiting for the cache (measured)."""
_TILES = 64
"""Tiles that share one transformed panel of weights, at most (results wait in the cache until they are whole)."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """An image side of the transform: positions read [images, height, width, channels] for outputs [rows, columns].

    Output (y, x) reads inputs from (y - top, x - left) on.
    """

    images: int
    height: int
    width: int
    channels: int
    rows: int
    columns: int
    top: int
    left: int


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """Sizes of one kernel, in stored elements. `block` tiles are transformed at a time, `blocks` times."""

    precision: Precision
    slots: int
    outputs: int
    geometry: Geometry
    tiles_down: int
    tiles_across: int
    blocks: int
    block: int
    split: Literal["tiles", "columns"]
    """The way threads share the work: each thread has its own blocks, or all threads share the columns (and input
    channels) of one block.
    """
    part: int
    """Tiles that are multiplied at a time (data kernels); parts cover the block."""
    steps: int
    """Input channels of one panel of weights (data kernels) or rows of one piece of the result (weight gradient)."""
    rows: int
    columns: Columns

    @property
    def matrices(self) -> Winograd:
        """The transforms."""
        return winograd(self.outputs)

    @property
    def tiles(self) -> int:
        """Output tiles of all images."""
        return self.geometry.images * self.tiles_down * self.tiles_across

    @property
    def parts(self) -> int:
        """Parts of a block."""
        return -(-self.block // self.part)


def _unit(precision: Precision) -> int:
    """Returns the number of which channel counts must be multiples: a power of two, as vectors are."""
    return max(CHANNELS, precision.lanes)


def applies(spec: ConvSpec, precision: Precision) -> bool:
    """Whether there may be such a kernel at all."""
    if spec.direct or spec.groups > 1:
        return False
    plain = spec.kernel == (TAPS, TAPS) and spec.strides == (1, 1) and spec.dilations == (1, 1)
    unit = _unit(precision)
    return plain and spec.c % unit == 0 and spec.k % unit == 0 and max(spec.pads) < TAPS


def default_outputs(spec: ConvSpec, precision: Precision) -> int:
    """Outputs of a tile along one axis that take the least time, or 0 where direct convolution is as good."""
    if not applies(spec, precision) or min(spec.c, spec.k) < _LEAST_CHANNELS:
        return 0
    lanes = precision.lanes
    multiplies = spec.n * spec.oh * spec.ow * spec.c * spec.k * TAPS**2 / lanes
    costs = {size: _cost(spec, lanes, size) for size in _ACCURATE}
    best = min(costs, key=costs.__getitem__)
    return best if costs[best] * _WORTH <= multiplies / _PRODUCT_RATE else 0


def _cost(spec: ConvSpec, lanes: int, outputs: int) -> float:
    """Cycles: vector multiply-adds of the products, and transforms of inputs, outputs and weights by vector."""
    products = (outputs + TAPS - 1) ** 2
    geometry = geometry_of(spec)
    tiles = spec.n * -(-geometry.rows // outputs) * -(-geometry.columns // outputs)
    vectors = tiles * (spec.c + spec.k) / lanes + spec.c * spec.k / lanes
    return products * (tiles * spec.c * spec.k / lanes / _PRODUCT_RATE + _TRANSFORM * vectors)


def geometry_of(spec: ConvSpec) -> Geometry:
    """Returns the geometry of what is transformed as input. An input gradient is a convolution of d_y with turned
    weights and other pads.
    """
    if spec.kind == "input_grad":
        top, left = TAPS - 1 - spec.pads[0], TAPS - 1 - spec.pads[1]
        return Geometry(spec.n, spec.oh, spec.ow, spec.k, spec.h, spec.w, top, left)
    return Geometry(spec.n, spec.h, spec.w, spec.c, spec.oh, spec.ow, spec.pads[0], spec.pads[1])


def plan(spec: ConvSpec, target: CpuTarget, threads: int, outputs: int) -> WinogradPlan:
    """The plan from the target's figures, for tiles of `outputs` x `outputs`."""
    flops = 2.0 * spec.n * spec.oh * spec.ow * spec.c * spec.k * TAPS**2 / outputs
    slots, precision = slots_of(flops, threads), Precision.of(spec.dtype, target)
    geometry = geometry_of(spec)
    down, across = -(-geometry.rows // outputs), -(-geometry.columns // outputs)
    products, tiles = (outputs + TAPS - 1) ** 2, spec.n * down * across
    weights = spec.kind == "weight_grad"
    split = _split(spec, target, precision, tiles, slots)
    shares = slots if split == "tiles" else 1
    tile_elements = products * (spec.c + spec.k if weights else geometry.channels)
    budget = max(target.l3_bytes // 4, target.l2_bytes // 2) // precision.item_bytes // shares
    blocks = -(-tiles // max(budget // tile_elements, 16))
    count = spec.c if spec.kind == "input_grad" else spec.k
    steps = _divisor(geometry.channels, 2 * SUM_STEPS if weights else SUM_STEPS, _unit(precision))
    many = not weights and geometry.channels > 2 * steps
    if many:
        blocks = max(blocks, -(-tiles // (2 * _TILES)))
    blocks = -(-blocks // shares) * shares
    block = -(-tiles // blocks)
    part = block if weights or many else -(-block // -(-block // _TILES))
    reach = -(-count // (slots // shares))
    if weights:
        rows, vectors = tile_shape(target, precision, rows=steps, count=reach, steps=block)
    else:
        rows, vectors = tile_shape(target, precision, rows=part, count=reach, steps=steps)
    cut = columns(count, vectors, precision.lanes, padded=False)
    return WinogradPlan(precision, slots, outputs, geometry, down, across, blocks, block, split, part, steps, rows, cut)


def _split(
    spec: ConvSpec, target: CpuTarget, precision: Precision, tiles: int, slots: int
) -> Literal["tiles", "columns"]:
    """Threads that share nothing transform the same weights; that pays where each has many tiles."""
    many = slots > 1 and 2 * tiles >= _TILES * slots
    sums_bytes = precision.sum_bytes * TAPS**2 * spec.c * spec.k if spec.kind == "weight_grad" else 0
    return "tiles" if many and sums_bytes <= target.l2_bytes else "columns"


def _divisor(extent: int, high: int, unit: int) -> int:
    """The largest divisor of `extent`, at most `high`, that is a multiple of `unit` (as `extent` is)."""
    return max(size for size in range(unit, high + 1, unit) if extent % size == 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """The places in the workspace, in stored elements. What is transformed is stored as the images are; sums and
    results of products as they are accumulated.

    inputs [product, tile of the block, channel]; gradients the same of d_y (weight gradient only); sums [kh, kw, c, k]
    (weight gradient in several blocks); then for each thread: panel [product, step, column], results [product, tile or
    row, column], patch [a tile's inputs at the border of the image], taps [kh * kw, step, column], d_y_sums [2, k]
    (if the bias gradient is wanted).
    """

    row: int
    plane: int
    gradients: int
    gradient_row: int
    gradient_plane: int
    sums: int
    private: int
    d_y_sums: int
    stride: int
    taps: int
    tap_plane: int
    panel_plane: int
    panel_part: int
    results: int
    result_plane: int
    patch: int
    elements: int


def layout(spec: ConvSpec, chosen: WinogradPlan) -> Layout:
    """The workspace of a kernel."""
    products, width = chosen.matrices.products, chosen.columns.tile.width
    odd_lines, sum_size = chosen.precision.odd_lines, chosen.precision.sum_size
    weights = spec.kind == "weight_grad"
    row = odd_lines(chosen.geometry.channels)
    plane = odd_lines(row * chosen.block)
    gradient_row = odd_lines(spec.k) if weights else 0
    gradient_plane = odd_lines(gradient_row * chosen.block) if weights else 0
    gradients = products * plane
    sums = gradients + products * gradient_plane
    private = sums + (TAPS * TAPS * spec.c * spec.k * sum_size if weights and needs_sums(spec, chosen) else 0)
    panel_plane = 0 if weights else odd_lines(chosen.steps * width)
    panel_part = products * panel_plane
    panel_parts = 1 if chosen.parts == 1 else chosen.geometry.channels // chosen.steps
    results = panel_part * panel_parts
    result_plane = odd_lines((chosen.steps if weights else chosen.part) * width * sum_size)
    patch = results + products * result_plane
    channels = max(chosen.geometry.channels, spec.k) if weights else chosen.geometry.channels
    taps = patch + products * channels
    tap_plane = 0 if weights else odd_lines(chosen.steps * width)
    d_y_sums = taps + TAPS * TAPS * tap_plane
    slot_size = odd_lines(d_y_sums + (2 * spec.k * sum_size if spec.sums else 0))
    stride = slot_size if chosen.split == "columns" else private + slot_size
    elements = private + slot_size + (chosen.slots - 1) * stride
    return Layout(
        row,
        plane,
        gradients,
        gradient_row,
        gradient_plane,
        sums,
        private,
        d_y_sums,
        stride,
        taps,
        tap_plane,
        panel_plane,
        panel_part,
        results,
        result_plane,
        patch,
        elements,
    )


def workspace_bytes(spec: ConvSpec, chosen: WinogradPlan) -> int:
    """Returns the bytes of all scratch of a kernel."""
    return chosen.precision.item_bytes * layout(spec, chosen).elements


def needs_sums(spec: ConvSpec, chosen: WinogradPlan) -> bool:
    """Weight gradient: whether blocks are added up in the workspace (not in the output, nor all in one block)."""
    in_place = spec.epilogue == Ref(0) and chosen.precision.sum_size == 1
    return chosen.split == "tiles" or (chosen.blocks > 1 and not in_place)
