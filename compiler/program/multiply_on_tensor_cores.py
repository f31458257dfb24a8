"""Multiplies on tensor cores, with factors of TF32 or sixteen bits, where the spec asks for it and a target has them.

Rewrites: `products` of matrix products and dense convolutions, forward and backward. Requires: operands in the types in
which they lie. Ensures: the same calls; both factors are rounded, to ten bits of mantissa or to the type in which one
of them lies anyway; sums are f32, and so is what an epilogue does. Why: several times as many products in the same
time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.program.multiply_halves import targets_like
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.targets import Target
from compiler.warnings import CompileWarning

Factors = Literal["tf32", "f16", "bf16"]
LEAST_ROWS, LEAST_COLUMNS, LEAST_STEPS = 16, 8, 8
"""The size that one instruction multiplies: less leaves it idle, and rounds for nothing."""
NARROW = Reason("tensor_cores.narrow", f"{LEAST_ROWS} rows and {LEAST_COLUMNS} columns or more, as tensor cores take")
SHORT = Reason("tensor_cores.short", f"at least {LEAST_STEPS} steps, which tensor cores add up at once")


def tf32_warnings(target: Target) -> tuple[CompileWarning, ...]:
    """Warns where the wish for TF32 has no effect on a target."""
    if target.multiplies("tf32"):
        return ()
    message = f"{target.name} has no tensor cores for TF32: products are made as without it"
    return (CompileWarning("precision.widened", "spec.precision.products", message, targets_like(target, "tf32")),)


def multiply_on_tensor_cores(program: Program, *, factors: Factors = "tf32") -> PassResult[Program]:
    """The program with products of such factors; those of sixteen bits only where one lies so."""
    declined: list[Declined] = []
    calls = tuple(_multiplied(call, factors, declined) for call in program.calls)
    return PassResult(replace(program, calls=calls), calls != program.calls, tuple(declined))


def _multiplied(call: KernelCall, factors: Factors, declined: list[Declined]) -> KernelCall:
    spec = call.spec
    if not isinstance(spec, MatmulSpec | ConvSpec) or spec.products or not _lie_in(spec, factors):
        return call
    rows, columns, steps = _extents(spec)
    reason = NARROW if rows < LEAST_ROWS or columns < LEAST_COLUMNS else SHORT if steps < LEAST_STEPS else None
    if reason is not None:
        declined.append(reason.at(call.layer))
        return call
    return replace(call, spec=replace(spec, products=factors))


def _lie_in(spec: MatmulSpec | ConvSpec, factors: Factors) -> bool:
    """Whether one of both lies in this type of sixteen bits; of TF32, whether neither lies in such a type."""
    factor_types = set(spec.stored[:2])
    return factor_types <= {"f32"} if factors == "tf32" else factors in factor_types


def _extents(spec: MatmulSpec | ConvSpec) -> tuple[int, int, int]:
    """Rows, columns and steps of each product; a convolution is one for each of its groups."""
    if isinstance(spec, MatmulSpec):
        is_one = spec.a_batched and not spec.b_batched and not spec.a_transposed
        return spec.m * (spec.batch if is_one else 1), spec.n, spec.k
    (c, k), taps = spec.group, spec.kernel[0] * spec.kernel[1]
    pixels = spec.n * spec.oh * spec.ow
    if spec.kind == "forward":
        return pixels, k, taps * c
    return (taps * c, k, pixels) if spec.kind == "weight_grad" else (spec.n * spec.h * spec.w, c, taps * k)
