"""Multiplies in sixteen bits where a machine has instructions for it, and an operand is held so anyway.

Rewrites: products' `products`. Requires: operands in the types in which they lie. Ensures: the same calls; the other
operand, a weight perhaps, is rounded as it is packed, and sums are f32. Why: two products at once for each lane.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.element_types import DType
from compiler.kernels.spec import MatmulSpec
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.targets import Target, load, names
from compiler.warnings import CompileWarning

ODD = Reason("halves.odd", "an even number of steps, since two are multiplied at once")


def precision_warnings(target: Target, compute: DType) -> tuple[CompileWarning, ...]:
    """What a target does with halves, where that is less than it looks."""
    if compute != "bf16" or target.has_bf16:
        return ()
    said = f"{target.name} has no instructions for bfloat16: activations take half the memory, products are made in f32"
    return (CompileWarning("precision.widened", "spec.precision.compute", said, _hint(target)),)


def _hint(target: Target) -> str:
    like = [name for name in names() if load(name).has_bf16 and load(name).architecture == target.architecture]
    return f"targets of its kind that have them: {', '.join(like)}" if like else ""


def multiply_halves(program: Program) -> PassResult[Program]:
    """The program with products in bfloat16."""
    declined: list[Declined] = []
    calls = tuple(_multiplied(call, declined) for call in program.calls)
    return PassResult(replace(program, calls=calls), calls != program.calls, tuple(declined))


def _multiplied(call: KernelCall, declined: list[Declined]) -> KernelCall:
    spec = call.spec
    if not isinstance(spec, MatmulSpec) or "bf16" not in spec.stored[:2]:
        return call
    if spec.b_panel or (spec.b_batched and spec.batch > 1):
        return call
    if spec.k % 2:
        declined.append(ODD.at(call.layer))
        return call
    return replace(call, spec=replace(spec, products="bf16"))
