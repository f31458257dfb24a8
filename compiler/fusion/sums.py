"""Merges bias gradients into weight gradients: both read the output's gradient, so it is read once.

Rewrites: the plain sum of d_y over everything but channels, beside a weight gradient that reads the same d_y, becomes
that call's second output. Ensures: the same values; the order of calls is left to the scheduler. Why: d_y of an early
layer is larger than the caches, and the sum alone is bound by reading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.kernels.affine import Linear, is_identity, linear_form
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, KernelSpec, MatmulSpec, ReduceSpec
from compiler.program.aliases import Alias, storage_of
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason

FAMILIES = (MatmulSpec, ConvSpec, DepthwiseSpec)
"""Families whose weight gradients can sum d_y as well."""

WeightGradient = MatmulSpec | ConvSpec | DepthwiseSpec

NO_WEIGHT_GRADIENT = Reason("sums.no_weight_gradient", "a weight gradient that reads the same d_y and sums nothing yet")


def merge_sums(program: Program) -> PassResult[Program]:
    """The calls with each bias gradient made by the weight gradient of the same d_y, where there is one."""
    makers: dict[Alias, list[int]] = {}
    for position, call in enumerate(program.calls):
        if _weight_gradient(call.spec) is not None:
            makers.setdefault(storage_of(program.aliases, call.inputs[1]), []).append(position)
    calls: list[KernelCall | None] = list(program.calls)
    declined: list[Declined] = []
    for position, call in enumerate(program.calls):
        maker = _maker(program, makers, calls, call)
        if maker is not None:
            calls[position], calls[maker] = None, _merged(calls[maker], call)
        elif call.phase == "backward" and _summed_channels(call.spec) is not None:
            declined.append(NO_WEIGHT_GRADIENT.at(call.layer))
    merged = tuple(call for call in calls if call is not None)
    if len(merged) == len(calls):
        return PassResult(program, False, tuple(declined))
    return PassResult(replace(program, calls=merged, ordered=False), True, tuple(declined))


def _weight_gradient(spec: KernelSpec) -> WeightGradient | None:
    """The spec if it is a weight gradient that may take sums."""
    if not isinstance(spec, FAMILIES) or spec.sums:
        return None
    if isinstance(spec, MatmulSpec):
        return spec if spec.batch == 1 and spec.a_transposed and not spec.b_transposed else None
    return spec if spec.kind == "weight_grad" else None


def _maker(
    program: Program, makers: Mapping[Alias, list[int]], calls: list[KernelCall | None], reduction: KernelCall
) -> int | None:
    """The weight gradient that can make what a reduction makes."""
    channels = _summed_channels(reduction.spec)
    if channels is None or any(name in program.aliases for name in reduction.outputs):
        return None
    for position in makers.get(storage_of(program.aliases, reduction.inputs[0]), []):
        call = calls[position]
        spec = _weight_gradient(call.spec) if call is not None else None
        if spec is not None and channels == _output_channels(spec):
            return position
    return None


def _output_channels(spec: WeightGradient) -> int:
    """The last axis of d_y."""
    match spec:
        case MatmulSpec():
            return spec.n
        case ConvSpec():
            return spec.k
        case DepthwiseSpec():
            return spec.c


def _summed_channels(spec: KernelSpec) -> int | None:
    """Channels of a plain sum of a whole tensor over everything but its last axis; None for any other spec."""
    if not isinstance(spec, ReduceSpec) or spec.combine != "sum" or len(spec.inputs) != 1:
        return None
    last = len(spec.extents) - 1
    if spec.expr != Ref(0) or spec.epilogue != Ref(0) or spec.reduced != tuple(range(last)):
        return None
    strides = (0,) * last + (1,)
    channels = spec.extents[last]
    whole = spec.output.type.size == channels and linear_form(spec.output, last + 1) == Linear(strides)
    return channels if whole and is_identity(spec.inputs[0], spec.extents) else None


def _merged(maker: KernelCall | None, reduction: KernelCall) -> KernelCall:
    assert maker is not None
    assert isinstance(maker.spec, FAMILIES)
    return replace(
        maker,
        spec=replace(maker.spec, sums=True),
        outputs=(*maker.outputs, *reduction.outputs),
        flops=maker.flops + reduction.flops,
        bytes_written=maker.bytes_written + reduction.bytes_written,
    )
