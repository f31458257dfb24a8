"""The plan of a row-wise kernel: parallel over rows; it says which costly values of a row are kept for later stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.codegen.tile.precision import Precision, loop_precision
from compiler.codegen.tir.iteration import expression_dtype
from compiler.element_types import ELEMENT_TYPES, DType
from compiler.kernels.access import Affine
from compiler.kernels.expressions import Binary, Expr, Ref, Select, Unary
from compiler.kernels.spec import RowSpec
from compiler.targets import CpuTarget

_PARALLEL_ELEMENTS = 8192
"""Lower than for maps: a row's stages do more work per element."""
_KEPT_BYTES = 16384
"""Widest row whose intermediate values are kept on the stack."""
_COSTLY = frozenset({"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "pow", "mod", "fmod"})


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The schedule of one kernel. `stored` maps the expressions whose values stay on the stack to the stage that makes
    each.
    """

    precision: Precision
    parallel: bool
    stored: Mapping[Expr, int]


def plan(spec: RowSpec, target: CpuTarget, threads: int) -> RowPlan:
    """The schedule from the target's figures."""
    precision = loop_precision((access.type.dtype for access in spec.inputs + spec.outputs), target)
    is_narrow = spec.width * precision.sum_bytes <= _KEPT_BYTES
    parallel = threads > 1 and spec.rows * spec.width >= _PARALLEL_ELEMENTS
    return RowPlan(precision, parallel, _worth_keeping(spec) if is_narrow else {})


def workspace_bytes(spec: RowSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: no workspace is needed."""
    return 0


def dtype_in_row(expr: Expr, spec: RowSpec) -> DType:
    """The type of an expression over the kernel's inputs."""
    return expression_dtype(expr, [access.type.dtype for access in spec.inputs]) or "f32"


def _children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Unary(_, x):
            return (x,)
        case Binary(_, x, y):
            return (x, y)
        case Select(cond, then, other):
            return (cond, then, other)
    return ()


def operands_of(expr: Expr, stored: dict[Expr, int]) -> set[int]:
    """The inputs that an expression reads, apart from what is `stored` already."""
    if expr in stored:
        return set()
    if isinstance(expr, Ref):
        return {expr.operand}
    return {operand for child in _children(expr) for operand in operands_of(child, stored)}


def _worth_keeping(spec: RowSpec) -> dict[Expr, int]:
    """Stage expressions that cost much and come again in a later stage or output, with the stage that makes them."""
    stored: dict[Expr, int] = {}
    for stage, (_, expr) in enumerate(spec.stages):
        later = [other for _, other in spec.stages[stage + 1 :]] + [
            expr for expr, access in zip(spec.exprs, spec.outputs, strict=True) if _uses_axis(access.index, 1)
        ]
        if (
            ELEMENT_TYPES[dtype_in_row(expr, spec)].is_real
            and _is_costly(expr)
            and any(_contains(other, expr) for other in later)
        ):
            stored[expr] = stage
    return stored


def _uses_axis(index: Sequence[Affine], axis: int) -> bool:
    return any(a == axis for dimension in index for a, _ in dimension.terms)


def _is_costly(expr: Expr) -> bool:
    return getattr(expr, "op", "") in _COSTLY or any(_is_costly(child) for child in _children(expr))


def _contains(expr: Expr, part: Expr) -> bool:
    return expr == part or any(_contains(child, part) for child in _children(expr))
