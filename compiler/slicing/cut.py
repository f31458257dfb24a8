"""Parts of a kernel call: what each family computes of a share of the batch.

A batch is the leading axis of every activation, so a part of one is a range of bytes. A call can be cut if each of its
operands either falls into such ranges or is needed whole (weights), and if each of its outputs either falls into
ranges or is a sum over the batch (gradients of weights): then every part makes a term, and a map adds the terms.
A family, or a form of one, that has no rule here runs whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from compiler.element_types import DType
from compiler.fusion.epilogues import output_extents
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.affine import Linear, is_identity, linear_form
from compiler.kernels.expressions import Binary, Expr, Index, Ref, substitute_refs, uses_position, walk
from compiler.kernels.movement import ElementsSpec, MovementSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.kernels.spec import (
    AttentionSpec,
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    PoolSpec,
    ReduceSpec,
    RowSpec,
)


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a call that one of several equal parts of the batch runs.

    `cut[i]`: part j reads the j-th range of bytes of the call's input i; else it reads all of it. Inputs of the call
    past `len(cut)` are operands of `sums[0]`.
    `sums`: empty if all outputs are cut. Else every part makes a term of each output, and `sums[o]` makes output o of
    all parts' terms (its first operands) and what else it takes.
    """

    spec: KernelSpec
    cut: tuple[bool, ...]
    sums: tuple[MapSpec, ...] = ()


class _Same:
    """A spec by what it is, not by what it equals: 0.0 equals -0.0, and a part holds one or the other."""

    __slots__ = ("spec",)

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return id(self.spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec


def part_of(spec: KernelSpec, parts: int) -> Part | None:
    """The part of `spec` for an equal share of the batch; None if it cannot be cut into that many."""
    return _part_of(_Same(spec), parts)


@lru_cache(maxsize=4096)
def _part_of(same: _Same, parts: int) -> Part | None:
    """The ways to run a step have most of their calls in common: each is asked about over and over."""
    spec = same.spec
    match spec:
        case MapSpec():
            return _map(spec, parts)
        case RowSpec():
            return _row(spec, parts)
        case ReduceSpec():
            return _reduce(spec, parts)
        case MatmulSpec():
            return _matmul(spec, parts)
        case ConvSpec() | DepthwiseSpec():
            return _convolution(spec, parts)
        case PoolSpec():
            return _pool(spec, parts)
        case GatherSpec():
            return _gather(spec, parts)
        case AttentionSpec():
            return _attention(spec, parts)
        case ElementsSpec() | ResampleSpec() | ScanSpec() | SelectSpec():
            return _movement(spec, parts)
    return None


# ----------------------------------------------------------------------------------------------------------- accesses


@dataclass(frozen=True, slots=True)
class _Cut:
    """Accesses of one part, and which of them walk a range of the operand."""

    accesses: tuple[Access, ...]
    cut: tuple[bool, ...]


def _cut_all(accesses: tuple[Access, ...], extents: tuple[int, ...], axis: int, parts: int) -> _Cut | None:
    optional_cuts = [_cut_access(access, extents, axis, parts) for access in accesses]
    cuts = tuple(access for access in optional_cuts if access is not None)
    if len(cuts) != len(optional_cuts):
        return None
    return _Cut(cuts, tuple(old != new for old, new in zip(accesses, cuts, strict=True)))


def _cut_access(access: Access, extents: tuple[int, ...], axis: int, parts: int) -> Access | None:
    """The access of a part of the leading axis: unchanged if it does not move, None if its walk has no such parts."""
    if not any(axis == moving for affine in access.index for moving, _ in affine.terms):
        return access
    shape = access.type.shape
    leading = next((d for d, size in enumerate(shape) if size > 1), None)
    if leading is None or shape[leading] % parts:
        return None
    form = linear_form(access, len(extents))
    if not (_leads(form, extents, axis, access.type.size) if form else _leads_guarded(access, extents, axis, leading)):
        return None
    return replace(access, type=_shortened(access.type, leading, parts))


def _leads(form: Linear, extents: tuple[int, ...], axis: int, size: int) -> bool:
    """Whether each step of the axis begins a fresh block of the operand, and the steps fill it."""
    block = form.strides[axis]
    others = [(s, e) for i, (s, e) in enumerate(zip(form.strides, extents, strict=True)) if i != axis]
    inside = form.offset >= 0 and all(stride >= 0 for stride, _ in others)
    reach = form.offset + sum(stride * (extent - 1) for stride, extent in others)
    return inside and block * extents[axis] == size and reach < block


def _leads_guarded(access: Access, extents: tuple[int, ...], axis: int, leading: int) -> bool:
    """Whether the same holds where points may fall outside the operand: they must do so along the other dimensions
    only.
    """
    other_dimensions = [affine for d, affine in enumerate(access.index) if d != leading]
    if any(moving == axis for affine in other_dimensions for moving, _ in affine.terms):
        return False
    return access.index[leading] == Affine(((axis, 1),)) and access.type.shape[leading] == extents[axis]


def _shortened(tensor: TensorType, dimension: int, parts: int) -> TensorType:
    shape = tensor.shape
    return TensorType(tensor.dtype, (*shape[:dimension], shape[dimension] // parts, *shape[dimension + 1 :]))


def _leading_axis(extents: tuple[int, ...], parts: int) -> int | None:
    axis = next((i for i, extent in enumerate(extents) if extent > 1), None)
    return None if axis is None or extents[axis] % parts else axis


def _divided(extents: tuple[int, ...], axis: int, parts: int) -> tuple[int, ...]:
    return (*extents[:axis], extents[axis] // parts, *extents[axis + 1 :])


def _uses_axis(axis: int, *expressions: Expr) -> bool:
    return any(node == Index(axis) for expr in expressions for node in walk(expr))


# --------------------------------------------------------------------------------------------- affine loop nests


def _map(spec: MapSpec, parts: int) -> Part | None:
    axis = _leading_axis(spec.extents, parts)
    if axis is None or _uses_axis(axis, *spec.exprs):
        return None
    inputs = _cut_all(spec.inputs, spec.extents, axis, parts)
    outputs = _cut_all(spec.outputs, spec.extents, axis, parts)
    if inputs is None or outputs is None or not all(outputs.cut):
        return None
    extents = _divided(spec.extents, axis, parts)
    return Part(replace(spec, extents=extents, inputs=inputs.accesses, outputs=outputs.accesses), inputs.cut)


def _row(spec: RowSpec, parts: int) -> Part | None:
    expressions = (*spec.exprs, *(expr for _, expr in spec.stages))
    if spec.rows % parts or _uses_axis(0, *expressions):
        return None
    extents = (spec.rows, spec.width)
    inputs = _cut_all(spec.inputs, extents, 0, parts)
    outputs = _cut_all(spec.outputs, extents, 0, parts)
    if inputs is None or outputs is None or not all(outputs.cut):
        return None
    rows = spec.rows // parts
    return Part(replace(spec, rows=rows, inputs=inputs.accesses, outputs=outputs.accesses), inputs.cut)


def _reduce(spec: ReduceSpec, parts: int) -> Part | None:
    axis = _leading_axis(spec.extents, parts)
    if axis is None or _uses_axis(axis, spec.expr, spec.epilogue):
        return None
    inputs = _cut_all(spec.inputs, spec.extents, axis, parts)
    if inputs is None:
        return None
    part = replace(spec, extents=_divided(spec.extents, axis, parts), inputs=inputs.accesses)
    if axis in spec.reduced:
        return _reduced_over_batch(spec, part, inputs.cut, parts)
    output = _cut_all((spec.output,), spec.extents, axis, parts)
    extra = _cut_all(spec.epilogue_inputs, spec.extents, axis, parts)
    if output is None or extra is None or not all(output.cut):
        return None
    part = replace(part, output=output.accesses[0], epilogue_inputs=extra.accesses)
    return Part(part, inputs.cut + extra.cut)


def _reduced_over_batch(spec: ReduceSpec, part: ReduceSpec, cut: tuple[bool, ...], parts: int) -> Part | None:
    remaining = [axis for axis in range(len(spec.extents)) if axis not in spec.reduced]
    extents = tuple(spec.extents[axis] for axis in remaining)
    output = _over(spec.output, remaining)
    if not is_identity(output, extents):
        return None
    extra = tuple(_over(access, remaining) for access in spec.epilogue_inputs)
    total = _total(extents, output, parts, spec.combine, (spec.epilogue, extra))
    return None if total is None else Part(replace(part, epilogue=Ref(0), epilogue_inputs=()), cut, (total,))


def _over(access: Access, axes: list[int]) -> Access:
    """An access over all axes that uses only kept ones, over the kept ones alone."""
    index = tuple(
        Affine(tuple((axes.index(axis), coefficient) for axis, coefficient in affine.terms), affine.offset)
        for affine in access.index
    )
    return replace(access, index=index)


# ----------------------------------------------------------------------------------------------------- contractions

_Contraction = MatmulSpec | ConvSpec | DepthwiseSpec | PoolSpec


def _matmul(spec: MatmulSpec, parts: int) -> Part | None:
    if spec.batch > 1:
        if spec.batch % parts:
            return None
        return _cut_output(spec, replace(spec, batch=spec.batch // parts), 0, (spec.a_batched, spec.b_batched), parts)
    if not spec.a_transposed:
        return None if spec.m % parts else _cut_output(spec, replace(spec, m=spec.m // parts), 1, (True, False), parts)
    if spec.b_transposed or spec.k % parts or spec.extra_outputs:
        return None
    columns = (spec.n,) if spec.sums else None
    return _summed_output(spec, replace(spec, k=spec.k // parts), (spec.m, spec.n), columns, parts)


def _convolution(spec: ConvSpec | DepthwiseSpec, parts: int) -> Part | None:
    if spec.n % parts:
        return None
    part = replace(spec, n=spec.n // parts)
    if spec.kind != "weight_grad":
        return _cut_output(spec, part, 0, (True, False), parts)
    weight = output_extents(spec)
    assert weight is not None
    return _summed_output(spec, part, weight, weight[-1:] if spec.sums else None, parts)


def _pool(spec: PoolSpec, parts: int) -> Part | None:
    operands = 2 if spec.kind in ("max_grad", "places_grad") else 1
    if spec.n % parts:
        return None
    return _cut_output(spec, replace(spec, n=spec.n // parts), 0, (True,) * operands, parts)


def _cut_output(spec: _Contraction, part: _Contraction, axis: int, cut: tuple[bool, ...], parts: int) -> Part | None:
    """A contraction whose output is cut along `axis` of its epilogue's axes."""
    extents = output_extents(spec)
    if extents is None or _uses_axis(axis, spec.epilogue):
        return None
    extra = _cut_all(spec.epilogue_inputs, extents, axis, parts)
    return None if extra is None else Part(replace(part, epilogue_inputs=extra.accesses), cut + extra.cut)


def _summed_output(
    spec: _Contraction, part: _Contraction, weight: tuple[int, ...], column_sums: tuple[int, ...] | None, parts: int
) -> Part | None:
    """A weight gradient: a sum over the batch, to whose total the epilogue is applied."""
    extents = output_extents(spec)
    assert extents is not None
    epilogue = (spec.epilogue, spec.epilogue_inputs)
    totals = [_total(extents, _whole(extents, spec.dtype), parts, "sum", epilogue)]
    if column_sums is not None:
        totals.append(_total(column_sums, _whole(column_sums, spec.dtype), parts, "sum", (Ref(0), ())))
    sums = tuple(total for total in totals if total is not None)
    if len(sums) != len(totals):
        return None
    return Part(replace(part, epilogue=Ref(0), epilogue_inputs=()), (True, True), sums)


def _whole(extents: tuple[int, ...], dtype: DType) -> Access:
    return Access(TensorType(dtype, extents), tuple(Affine(((axis, 1),)) for axis in range(len(extents))))


def _total(
    extents: tuple[int, ...], output: Access, parts: int, combine: str, epilogue: tuple[Expr, tuple[Access, ...]]
) -> MapSpec | None:
    """A map that adds (or maximises) all parts' terms, then applies what the whole call did to its result."""
    expr, extra = epilogue
    if not output.type.element.is_real or uses_position(expr):
        return None
    operation = {"sum": "add", "max": "max"}[combine]
    terms: Expr = Ref(0)
    for term in range(1, parts):
        terms = Binary(operation, terms, Ref(term))
    whole = substitute_refs(expr, lambda k: terms if k == 0 else Ref(parts + k - 1))
    return MapSpec(extents, (output,) * parts + extra, (output,), (whole,))


# -------------------------------------------------------------------------------------------------- gather, attention


def _gather(spec: GatherSpec, parts: int) -> Part | None:
    if spec.outer != 1 or spec.count % parts or spec.epilogue_inputs:
        return None
    part = replace(spec, count=spec.count // parts)
    if spec.kind == "gather":
        return Part(part, (False, True))
    extents = (spec.rows, spec.inner)
    total = _total(extents, _whole(extents, spec.dtype), parts, "sum", (Ref(0), ()))
    return None if total is None else Part(part, (True, True), (total,))


def _attention(spec: AttentionSpec, parts: int) -> Part | None:
    if spec.batch % parts:
        return None
    masked = spec.mask is not None
    per_sample = spec.mask is not None and spec.mask[0] == spec.batch
    mask = (spec.mask[0] // parts, *spec.mask[1:]) if spec.mask and per_sample else spec.mask
    operands = 3 if spec.kind == "forward" else 6
    cut = (True,) * operands + ((per_sample,) if masked else ())
    return Part(replace(spec, batch=spec.batch // parts, mask=mask), cut)


def _movement(spec: MovementSpec, parts: int) -> Part | None:
    """Parts of the outer axis; tables, and an index that is the same for all of it, are read whole."""
    if spec.outer % parts:
        return None
    part = replace(spec, outer=spec.outer // parts)
    if isinstance(spec, ResampleSpec):
        return Part(part, (True, False, False))
    if isinstance(spec, ElementsSpec):
        operands = {"gather": (True, False), "add": (False, True), "last": (False,)}.get(spec.kind, (True, False, True))
        cut = tuple(whole or spec.per_outer for whole in operands)
        return Part(part, cut) if any(cut) else None
    return Part(part, (True,) * (2 if isinstance(spec, ScanSpec) and spec.kind == "linear" else 1))
