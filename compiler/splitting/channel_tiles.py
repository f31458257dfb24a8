"""Strips of a kernel call: what each family computes of a share of the hidden channels of a chain.

The first call of a chain makes hidden channels, those between work on each channel by itself, the last sums over them.
Hidden channels are the last axis of every hidden value, so a strip of one is a value of its own, with fewer channels.
A family, or a form of one, that has no rule here begins, continues or ends no chain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.fusion.epilogues import output_extents
from compiler.graph import TensorType
from compiler.kernels.access import Access, axis, identity
from compiler.kernels.affine import is_identity, linear_form, regrouped
from compiler.kernels.expressions import ACCUMULATED, Expr, Index, Ref, add, substitute_refs, uses_position, walk
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, KernelSpec, MapSpec, MatmulSpec


@dataclass(frozen=True, slots=True)
class Range:
    """An operand seen as [outer, channels, inner], of which a strip reads its range of the channels."""

    outer: int = 1
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Strip:
    """The strip of a call that one of several equal strips runs; `ranges[i]` says which part of input i it reads.

    None: all of it, which for a hidden value is all of its strip.
    """

    spec: KernelSpec
    ranges: tuple[Range | None, ...]


def first_strip(spec: KernelSpec, channels: int, size: int) -> Strip | None:
    """The strip of a call that makes `channels` hidden ones, `size` of them at a time."""
    if isinstance(spec, MatmulSpec) and spec.n == channels and _is_plain(spec):
        weight = Range(inner=spec.k) if spec.b_transposed else Range(outer=spec.k)
        return _with_epilogue(spec, replace(spec, n=size), (None, weight), size)
    if isinstance(spec, ConvSpec) and spec.kind == "forward" and spec.k == channels and spec.groups == 1:
        weight = Range(outer=spec.kernel[0] * spec.kernel[1] * spec.c)
        return _with_epilogue(spec, replace(spec, k=size), (None, weight), size)
    return None


def inner_strip(spec: KernelSpec, hidden: tuple[int, ...], channels: int, size: int) -> Strip | None:
    """The strip of a call that works on each hidden channel by itself; its operands `hidden` are hidden."""
    if isinstance(spec, DepthwiseSpec) and spec.kind != "weight_grad" and spec.c == channels and hidden == (0,):
        weight = Range(outer=spec.kernel[0] * spec.kernel[1])
        return _with_epilogue(spec, replace(spec, c=size), (None, weight), size)
    return _map(spec, hidden, channels, size) if isinstance(spec, MapSpec) else None


def last_strip(spec: KernelSpec, channels: int, size: int, place: tuple[bool, bool] = (True, True)) -> Strip | None:
    """The strip of a product that sums over the hidden channels, its first operand.

    `place`: whether the strip is the first, which has no sum before it, and the last, which applies the epilogue. One
    that is not the first reads the sum of those before as its last operand, and may overwrite it.
    """
    if not isinstance(spec, MatmulSpec) or spec.k != channels or spec.a_transposed or not _is_plain(spec):
        return None
    if size % spec.steps_at_once:
        return None
    is_first, is_last = place
    weight = Range(outer=spec.n) if spec.b_transposed else Range(inner=spec.n)
    epilogue, extra = (spec.epilogue, spec.epilogue_inputs) if is_last else (ACCUMULATED, ())
    ranges = (None, weight, *(None for _ in extra))
    if not is_first:
        before = Ref(1 + len(extra))
        epilogue = substitute_refs(epilogue, lambda k: add(Ref(0), before) if k == 0 else Ref(k))
        extra = (*extra, identity(TensorType(spec.dtype, (spec.batch, spec.m, spec.n))))
        ranges = (*ranges, None)
    stored = spec.stored if is_last else (*spec.stored[:2], *(spec.dtype for _ in spec.stored[2:]))  # sums of strips
    return Strip(replace(spec, k=size, epilogue=epilogue, epilogue_inputs=extra, stored=stored), ranges)


def _is_plain(spec: MatmulSpec) -> bool:
    """Whether it has one output, and one B that lies as it is."""
    one_b = spec.batch == 1 or not spec.b_batched
    return one_b and not (spec.b_panel or spec.sums or spec.extra_outputs)


def _with_epilogue(
    spec: MatmulSpec | ConvSpec | DepthwiseSpec,
    strip: MatmulSpec | ConvSpec | DepthwiseSpec,
    ranges: tuple[Range | None, ...],
    size: int,
) -> Strip | None:
    """A contraction whose output's last axis is the hidden channels; its epilogue reads whole or per channel."""
    extents = output_extents(spec)
    if extents is None or spec.sums or _uses_last_axis(extents, spec.epilogue):
        return None
    optional_cuts = [_strip_access(access, extents, size) for access in spec.epilogue_inputs]
    cuts = [cut for cut in optional_cuts if cut is not None]
    if len(cuts) != len(optional_cuts):
        return None
    strip = replace(strip, epilogue_inputs=tuple(access for access, _ in cuts))
    return Strip(strip, (*ranges, *(part for _, part in cuts)))


def _strip_access(access: Access, extents: tuple[int, ...], size: int) -> tuple[Access, Range | None] | None:
    """The access of a strip, and what it reads; None if it reads other than whole or one element per channel."""
    form, last = linear_form(access, len(extents)), len(extents) - 1
    if form is None:
        return None
    if form.strides[last] == 0:
        return access, None
    others = any(stride and extent > 1 for stride, extent in zip(form.strides[:last], extents, strict=False))
    if others or form.strides[last] != 1 or form.offset or access.type.size != extents[last]:
        return None
    return Access(TensorType(access.type.dtype, (size,)), (axis(last),)), Range()


def _map(spec: MapSpec, hidden: tuple[int, ...], channels: int, size: int) -> Strip | None:
    """An element-wise map over hidden values, the channels innermost."""
    if len(spec.outputs) != 1 or not is_identity(spec.outputs[0], spec.extents) or uses_position(spec.exprs[0]):
        return None
    if spec.outputs[0].type.size % channels:
        return None
    whole = (spec.outputs[0].type.size // channels, channels)
    inputs: list[Access] = []
    ranges: list[Range | None] = []
    for number, whole_access in enumerate(spec.inputs):
        access = regrouped(whole_access, spec.extents, whole)
        if number in hidden and access is not None and is_identity(access, whole):
            cut: tuple[Access, Range | None] | None = (
                identity(TensorType(whole_access.type.dtype, (whole[0], size))),
                None,
            )
        else:
            cut = None if access is None or number in hidden else _strip_access(access, whole, size)
        if cut is None:
            return None
        inputs.append(cut[0])
        ranges.append(cut[1])
    output = identity(TensorType(spec.outputs[0].type.dtype, (whole[0], size)))
    return Strip(MapSpec((whole[0], size), tuple(inputs), (output,), spec.exprs), tuple(ranges))


def _uses_last_axis(extents: tuple[int, ...], expr: Expr) -> bool:
    return any(node == Index(len(extents) - 1) for node in walk(expr))
