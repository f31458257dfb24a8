"""Multiplies in sixteen bits where a machine has instructions for it, and an operand is held so anyway.

Rewrites: `products` of products, and in bfloat16 of attention, whose scores are products. Requires: operands in the
types in which they lie. Ensures: the same calls; the other operand, a weight perhaps, is rounded as it is packed, and
sums are f32, those of float16 block by block. Why: two products at once for each lane.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.kernels.spec import AttentionSpec, MatmulSpec
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.targets import Target, load, names
from compiler.warnings import CompileWarning

LEAST_STEPS = 32
"""The fewest steps of products in float16: sums of fewer products are widened more often than it saves."""
SHORT = Reason("halves.short", f"at least {LEAST_STEPS} steps, since sums in float16 are widened at the end")
ODD = Reason("halves.odd", "an even number of steps, since two are multiplied at once")


def precision_warnings(target: Target, compute: DType) -> tuple[CompileWarning, ...]:
    """Warns where a target does less with halves than it looks."""
    if compute == "f32" or target.multiplies(compute):
        return ()
    label = ELEMENT_TYPES[compute].label
    message = (
        f"{target.name} has no instructions for {label}: activations take half the memory, products are made in f32"
    )
    return (CompileWarning("precision.widened", "spec.precision.compute", message, targets_like(target, compute)),)


def targets_like(target: Target, dtype: str) -> str:
    """A hint: which targets of the same architecture multiply in a type."""
    able = [candidate for candidate in map(load, names()) if candidate.multiplies(dtype)]
    like = [candidate.name for candidate in able if candidate.architecture == target.architecture]
    return f"targets of its kind that have them: {', '.join(like)}" if like else ""


def multiply_halves(program: Program, *, dtype: Literal["bf16", "f16"] = "bf16") -> PassResult[Program]:
    """The program with products in bfloat16, or in float16."""
    declined: list[Declined] = []
    multiplied = _in_pairs if dtype == "bf16" else _in_short_sums
    calls = tuple(multiplied(call, declined) for call in program.calls)
    return PassResult(replace(program, calls=calls), calls != program.calls, tuple(declined))


def _in_pairs(call: KernelCall, declined: list[Declined]) -> KernelCall:
    spec = call.spec
    if isinstance(spec, AttentionSpec):
        return replace(call, spec=replace(spec, products="bf16")) if _has_scores_in_half(spec) else call
    if not isinstance(spec, MatmulSpec) or "bf16" not in spec.stored[:2]:
        return call
    if spec.b_panel or (spec.b_batched and spec.batch > 1):
        return call
    if spec.k % 2:
        declined.append(ODD.at(call.layer))
        return call
    return replace(call, spec=replace(spec, products="bf16"))


def _in_short_sums(call: KernelCall, declined: list[Declined]) -> KernelCall:
    spec = call.spec
    if not isinstance(spec, MatmulSpec) or "f16" not in spec.stored[:1]:
        return call
    if spec.b_panel or (spec.b_batched and spec.batch > 1):
        return call
    if spec.k < LEAST_STEPS:
        declined.append(SHORT.at(call.layer))
        return call
    return replace(call, spec=replace(spec, products="f16"))


def _has_scores_in_half(spec: AttentionSpec) -> bool:
    """Whether q and k, and of a gradient also v and d_y, lie in half, in rows of whole pairs."""
    operands = (0, 1) if spec.kind == "forward" else (0, 1, 2, 5)
    in_half = bool(spec.stored) and all(spec.stored[number] == "bf16" for number in operands)
    return in_half and spec.width % 2 == 0 and spec.value_width % 2 == 0
