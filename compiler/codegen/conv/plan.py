"""Dense convolutions: how a `ConvSpec` is cut into bands of rows, register tiles and threads.

Forward and input gradient are sums over taps (`phases`); the TIR is in `taps`. The weight gradient is one matrix
product per kernel row; the TIR is in `weights`. Where the kernel hangs over the image, each thread copies the
rows it works on into a band with zero borders, small enough for its cache, so that inner loops need no conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from compiler.codegen.choice import DEFAULT, Choice, choose
from compiler.codegen.conv.phases import AxisPhase, axis_phases, forward_axis
from compiler.codegen.tile.precision import Precision
from compiler.codegen.tile.tiling import Columns, columns, slots_of, tile_can_hold, tile_shape
from compiler.codegen.winograd import plan as winograd
from compiler.codegen.winograd.points import SIZES
from compiler.kernels.expressions import Expr, Ref
from compiler.kernels.spec import ConvSpec
from compiler.targets import CpuTarget

_SUM_STEPS = 512
"""Steps of a weight gradient's reduction that one visit of a tile should sum."""
_FRUGAL_ROWS = 4
"""Rows of outputs of the smallest bands: with fewer, most of a band is rows that the next one copies again."""


@dataclass(frozen=True, slots=True)
class Band:
    """The input rows of one unit of work: `images` whole images, or `out_rows` rows of one.

    A row of the band holds input columns `left` .. `left + width`; output row q of a unit that begins at q0 reads from
    band row `(q - q0) * row_step`, which is input row `q * row_step + top`. `copied` is False where the band is the
    image itself. `channels` are those of one group, side by side if `copied`; a pixel lies `pixel` elements after the
    one before.
    """

    images: int
    out_rows: int
    rows: int
    width: int
    top: int
    left: int
    row_step: int
    copied: bool
    channels: int
    pixel: int

    @property
    def image_elements(self) -> int:
        """Returns the number of elements in one image's rows."""
        return self.rows * self.width * self.channels

    @property
    def elements(self) -> int:
        """Scratch elements of one thread."""
        return self.images * self.image_elements if self.copied else 0


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """Sizes of one convolution kernel. `direct`: weights are read where they lie, not packed."""

    precision: Precision
    slots: int
    rows: int
    columns: Columns
    band: Band
    direct: bool
    split: Literal["units", "weights"]
    """Weight gradient: threads share out images and rows (each with its own sums), or parts of the weights."""
    sums: int
    """Sets of partial sums in the workspace (0: they are added up in the output itself)."""
    sum_count: int
    """Sums of one such set: the weights', and behind them (threads that share out units) the sums of d_y."""


def out_rows(phases: tuple[AxisPhase, ...]) -> int:
    """Rows q of the largest phase."""
    return phases[0].count


def _band(
    spec: ConvSpec,
    budget: int,
    slots: int,
    rows: tuple[AxisPhase, ...],
    cols: tuple[AxisPhase, ...],
    channels: int,
    most_rows: int,
) -> Band:
    """The band of a unit whose rows hold at most `budget` elements (one row may hold more), of all groups together."""
    top = min(phase.first_input for phase in rows)
    last = max(max((offset for _, offset in phase.taps), default=0) for phase in rows)
    left = min(phase.first_input for phase in cols)
    right = max((p.count - 1) * p.input_step + max((off for _, off in p.taps), default=0) for p in cols)
    step, count = rows[0].input_step, out_rows(rows)
    bottom = (count - 1) * step + last
    outside = top < 0 or left < 0 or right >= cols[0].input_extent or bottom >= rows[0].input_extent
    # A copy also brings the taps of a group side by side.
    copied = outside or (spec.groups > 1 and any(phase.span > 1 for phase in cols))
    width = right - left + 1 if copied else cols[0].input_extent

    def rows_in(outputs: int) -> int:
        return (outputs - 1) * step + last - top + 1

    pieces = -(-slots // spec.n)
    most = min(-(-count // pieces), most_rows)
    while most > 1 and rows_in(most) * width * channels > budget:
        most -= 1
    most = -(-count // -(-count // most))
    images = 1
    if most == count:
        images = max(1, min(spec.n // slots, budget // (rows_in(count) * width * channels)))
    group = channels // spec.groups
    return Band(images, most, rows_in(most), width, top, left, step, copied, group, group if copied else channels)


def _band_budget(target: CpuTarget, precision: Precision) -> int:
    """Elements in half of the second-level cache."""
    return target.l2_bytes // (2 * precision.item_bytes)


def plan(spec: ConvSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> ConvPlan:
    """The plan from the target's figures; `choice` may say how many rows of outputs a band serves at most."""
    flops = 2.0 * spec.n * spec.oh * spec.ow * weight_elements(spec)
    slots = slots_of(flops, threads)
    if spec.kind == "weight_grad":
        return _weights_plan(spec, target, slots)
    precision = Precision.of(spec.dtype, target)
    rows, cols = axis_phases(spec, 0), axis_phases(spec, 1)
    channels, count = spec.group if spec.kind == "forward" else spec.group[::-1]
    height, vectors = tile_shape(
        target, precision, rows=cols[0].count, count=count, steps=channels * spec.kernel[0] * spec.kernel[1]
    )
    whole = count % precision.lanes == 0 and count <= vectors * precision.lanes
    direct = spec.kind == "forward" and whole and spec.groups == 1
    cut = columns(count, vectors, precision.lanes, padded=True)
    across = channels * spec.groups
    most_rows = (choice or DEFAULT).integer("band", out_rows(rows))
    band = _band(spec, _band_budget(target, precision), slots, rows, cols, across, most_rows)
    return ConvPlan(precision, slots, height, cut, band, direct, "units", 0, 0)


def weight_rows(spec: ConvSpec) -> int:
    """Rows of the product of one kernel row: kernel columns and channels together where they are contiguous."""
    channels, _ = spec.group
    return spec.kernel[1] * channels if spec.dilations[1] == 1 else channels


def _weights_plan(spec: ConvSpec, target: CpuTarget, slots: int) -> ConvPlan:
    precision = Precision.of(spec.dtype, target)
    rows, cols = (forward_axis(spec, 0),), (forward_axis(spec, 1),)
    height, vectors = tile_shape(
        target, precision, rows=weight_rows(spec), count=spec.group[1], steps=spec.oh * spec.ow
    )
    cut = columns(spec.group[1], vectors, precision.lanes, padded=False)
    many = precision.sum_bytes * weight_elements(spec) * slots > target.l2_bytes
    many = many and spec.groups == 1 and weight_rows(spec) >= 8 * slots * height
    split: Literal["units", "weights"] = "weights" if many else "units"
    sharing, most_rows = 1 if split == "weights" else slots, -(-_SUM_STEPS // spec.ow)
    band = _band(spec, _band_budget(target, precision), sharing, rows, cols, spec.c, most_rows)
    in_place = spec.epilogue == Ref(0) and precision.sum_size == 1
    sums = slots if split == "units" else 0 if in_place else 1
    sum_count = weight_elements(spec) + (spec.k if spec.sums and split == "units" else 0)
    return ConvPlan(precision, slots, height, cut, band, True, split, sums, sum_count)


def weight_elements(spec: ConvSpec) -> int:
    """Elements of the weights."""
    return prod(spec.weight)


def panel_elements(spec: ConvSpec, chosen: ConvPlan) -> int:
    """Elements of the packed weights."""
    if chosen.direct:
        return 0
    return spec.groups * spec.kernel[0] * spec.kernel[1] * chosen.band.channels * chosen.columns.padded


def method_of(spec: ConvSpec, target: CpuTarget, choice: Choice | None) -> int:
    """Outputs of a Winograd tile along one axis; 0: direct."""
    if choice is not None and choice.parameters:
        return choice.integer("winograd", 0)
    return winograd.default_outputs(spec, Precision.of(spec.dtype, target))


def choices(spec: ConvSpec, target: CpuTarget, threads: int) -> tuple[Choice, ...]:
    """Direct and Winograd with each size of tile, where the latter applies."""
    if not winograd.applies(spec, Precision.of(spec.dtype, target)):
        return (DEFAULT,)
    return (DEFAULT, *(choose(winograd=size) for size in (0, *SIZES)))


def frugal(spec: ConvSpec, target: CpuTarget, threads: int) -> Choice:
    """Direct, in bands of few rows, if that takes less scratch."""
    chosen = DEFAULT if spec.kind == "weight_grad" else choose(band=_FRUGAL_ROWS, winograd=0)
    sizes = [workspace_bytes(spec, target, threads, candidate) for candidate in (DEFAULT, chosen)]
    return chosen if sizes[1] < sizes[0] else DEFAULT


def workspace_bytes(spec: ConvSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> int:
    """Packed weights, partial sums, and one band for each thread."""
    outputs = method_of(spec, target, choice)
    if outputs:
        return winograd.workspace_bytes(spec, winograd.plan(spec, target, threads, outputs))
    chosen = plan(spec, target, threads, choice)
    copies = panel_elements(spec, chosen) + chosen.slots * chosen.band.elements
    return chosen.precision.item_bytes * copies + chosen.precision.sum_bytes * chosen.sums * chosen.sum_count


def can_hold(spec: ConvSpec, expr: Expr, target: CpuTarget) -> bool:
    """Whether the kernel may also apply `expr` to what it writes today."""
    return tile_can_hold(expr)
