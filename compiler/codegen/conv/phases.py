"""Convolutions as lists of taps: which input positions an output position reads, along one image axis at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from compiler.errors import InternalError
from compiler.kernels.spec import ConvSpec, DepthwiseSpec


@dataclass(frozen=True, slots=True)
class AxisPhase:
    """Outputs `first + q * step`, q in [0, count), read inputs `q * input_step + offset` for each tap (kernel index,
    offset)."""

    first: int
    step: int
    count: int
    input_step: int
    input_extent: int
    taps: tuple[tuple[int, int], ...]

    def inside(self, offset: int) -> tuple[int, int]:
        """The range of q whose input at this offset exists."""
        low = -(offset // self.input_step) if offset < 0 else 0
        high = (self.input_extent - 1 - offset) // self.input_step + 1
        low = min(max(low, 0), self.count)
        return low, max(min(high, self.count), low)

    @property
    def interior(self) -> tuple[int, int]:
        """The range of q all of whose inputs exist."""
        ranges = [self.inside(offset) for _, offset in self.taps]
        low = max((low for low, _ in ranges), default=0)
        high = min((high for _, high in ranges), default=self.count)
        return (low, high) if low < high else (0, 0)

    def taps_at(self, q: int) -> tuple[tuple[int, int], ...]:
        """The taps whose input exists for one output."""
        return tuple((tap, off) for tap, off in self.taps if 0 <= q * self.input_step + off < self.input_extent)

    @property
    def first_input(self) -> int:
        """The lowest input position that any tap of any output names (it may not exist)."""
        return min((offset for _, offset in self.taps), default=0)

    @property
    def span(self) -> int:
        """Input positions from the first tap of an output to its last, both counted."""
        offsets = [offset for _, offset in self.taps] or [0]
        return max(offsets) - min(offsets) + 1


@dataclass(frozen=True, slots=True)
class TapRun:
    """`count` taps in the order of their offsets, evenly spaced in both offset and kernel index."""

    count: int
    offset: int
    offset_step: int
    tap: int
    tap_step: int


@dataclass(frozen=True, slots=True)
class AlikePhases:
    """`turns` phases; each is as the one before, its first output one further, its taps `tap_shift` further."""

    phase: AxisPhase
    turns: int = 1
    tap_shift: int = 0


LEAST_ALIKE = 8
"""Phases that are written as one loop; of fewer, each has code of its own, which knows where it is."""


def alike_phases(phases: tuple[AxisPhase, ...]) -> tuple[AlikePhases, ...]:
    """Runs of phases that differ only in where they are: of a stride of 128 there are 128 phases and a few kinds."""
    runs: list[tuple[int, list[AxisPhase]]] = []
    for phase in phases:
        shift, run = runs[-1] if runs else (0, [])
        next_shift = _shift(run[-1], phase) if run else None
        if next_shift is None or (len(run) > 1 and next_shift != shift):
            runs.append((0, [phase]))
        else:
            run.append(phase)
            runs[-1] = (next_shift, run)
    alike: list[AlikePhases] = []
    for shift, run in runs:
        alike += [AlikePhases(run[0], len(run), shift)] if len(run) >= LEAST_ALIKE else map(AlikePhases, run)
    return tuple(alike)


def _shift(before: AxisPhase, after: AxisPhase) -> int | None:
    """Returns how much further the taps of the next phase are; None if it differs in anything else."""
    shifts = {tap - other for (tap, _), (other, _) in zip(after.taps, before.taps, strict=False)}
    offsets = [[offset for _, offset in phase.taps] for phase in (before, after)]
    is_next = replace(after, first=before.first, taps=before.taps) == before and after.first == before.first + 1
    if not is_next or offsets[0] != offsets[1] or len(shifts) > 1:
        return None
    return shifts.pop() if shifts else 0


def tap_run(phase: AxisPhase) -> TapRun:
    """The taps of a phase, lowest offset first. A phase without taps gives a run of none."""
    taps = sorted(phase.taps, key=lambda pair: pair[1])
    if not taps:
        return TapRun(0, 0, 0, 0, 0)
    if len(taps) == 1:
        return TapRun(1, taps[0][1], 0, taps[0][0], 0)
    steps = {(b[1] - a[1], b[0] - a[0]) for a, b in pairwise(taps)}
    if len(steps) != 1:
        raise InternalError(f"taps {taps} are not evenly spaced")
    offset_step, tap_step = steps.pop()
    return TapRun(len(taps), taps[0][1], offset_step, taps[0][0], tap_step)


def several(phases: tuple[AxisPhase, ...], times: int) -> tuple[AxisPhase, ...]:
    """Returns phases that cover the same outputs, `times` as many: those of so many places q side by side become phases
    of one place.
    """
    return tuple(
        AxisPhase(
            phase.first + turn * phase.step,
            phase.step * times,
            -(-(phase.count - turn) // times),
            phase.input_step * times,
            phase.input_extent,
            tuple((tap, offset + turn * phase.input_step) for tap, offset in phase.taps),
        )
        for turn in range(times)
        for phase in phases
    )


def forward_axis(spec: ConvSpec | DepthwiseSpec, axis: int) -> AxisPhase:
    """The positions of x that the outputs y along one image axis meet."""
    extent, out_extent = ((spec.h, spec.oh), (spec.w, spec.ow))[axis]
    dilation, pad = spec.dilations[axis], spec.pads[axis]
    taps = tuple((tap, tap * dilation - pad) for tap in range(spec.kernel[axis]))
    return AxisPhase(0, 1, out_extent, spec.strides[axis], extent, taps)


def axis_phases(spec: ConvSpec | DepthwiseSpec, axis: int) -> tuple[AxisPhase, ...]:
    """The phases along image axis 0 (height) or 1 (width) of a forward or input-gradient convolution.

    Forward: one phase. Input gradient with stride s: s phases, since only every s-th tap meets an output position.
    """
    extent, out_extent = ((spec.h, spec.oh), (spec.w, spec.ow))[axis]
    kernel, stride, dilation, pad = spec.kernel[axis], spec.strides[axis], spec.dilations[axis], spec.pads[axis]
    if spec.kind == "forward":
        return (forward_axis(spec, axis),)
    if spec.kind != "input_grad":
        raise InternalError(f"a {spec.kind} has no phases")
    phases = []
    for first in range(min(stride, extent)):
        reach = [(tap, first + pad - tap * dilation) for tap in range(kernel)]
        taps = tuple((tap, place // stride) for tap, place in reach if place % stride == 0)
        phases.append(AxisPhase(first, stride, -(-(extent - first) // stride), 1, out_extent, taps))
    return tuple(phases)
