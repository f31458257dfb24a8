"""Multiplies frozen weights in bytes with rows rounded to bytes, where a machine has instructions for it.

Rewrites: `products` of products. Requires: frozen weights in bytes, halves held where they are. Ensures: the same
calls; each rounds the rows of its other operand (`compiler.codegen.tile.quads` states the bound), in the forward and
the backward pass, and sums exactly. Why: four products at once for each lane, and a quarter of the bytes to pack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MatmulSpec
from compiler.program.multiply_halves import targets_like
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.targets import Target
from compiler.warnings import CompileWarning

MOST_STEPS = 1 << 16
"""The most steps of sums that stay in 32 bits: 255 x 127 times as much."""
PARTED = Reason("bytes.parted", "a multiple of 4 steps, since so many are multiplied at once")
LONG = Reason("bytes.long", f"at most {MOST_STEPS:,} steps, whose sum stays in 32 bits")
TURNED = Reason("bytes.turned", "rows of activations, each with a scale of its own, as the left side")


def multiply_bytes(program: Program) -> PassResult[Program]:
    """The program with products of bytes."""
    declined: list[Declined] = []
    calls = tuple(_in_bytes(call, declined) for call in program.calls)
    return PassResult(replace(program, calls=calls), calls != program.calls, tuple(declined))


def _in_bytes(call: KernelCall, declined: list[Declined]) -> KernelCall:
    spec = call.spec
    if not isinstance(spec, MatmulSpec) or "i8" not in spec.stored[:2]:
        return call
    byte_spec, reason = replace(spec, products="i8"), None
    if spec.a_transposed or spec.stored[1] != "i8" or (spec.b_batched and spec.batch > 1):
        reason = TURNED
    elif spec.k % byte_spec.steps_at_once:
        reason = PARTED
    elif spec.k > MOST_STEPS:
        reason = LONG
    if reason is not None:
        declined.append(reason.at(call.layer))
        return call
    return replace(call, spec=byte_spec)


def byte_warnings(target: Target, programs: Iterable[Program]) -> tuple[CompileWarning, ...]:
    """Warns about what became of the wish that frozen weights be multiplied in bytes."""
    where = "spec.precision.frozen_products"
    if not target.multiplies("i8"):
        message = f"{target.name} has no instructions for products of bytes: those with frozen weights are made in f32"
        return (CompileWarning("precision.widened", where, message, targets_like(target, "i8")),)
    specs = [call.spec for program in programs if program.name == "train" for call in program.calls]
    byte_specs = [
        spec for spec in specs if isinstance(spec, MatmulSpec | ConvSpec | DepthwiseSpec) and "i8" in spec.stored
    ]
    rounded = sum(isinstance(spec, MatmulSpec) and spec.products == "i8" for spec in byte_specs)
    message = (
        f"{rounded} of {len(byte_specs)} products with frozen weights, forward and backward, round each row that they "
        "multiply to whole numbers of a 127th of its largest; the others are made in f32"
    )
    return (CompileWarning("precision.rows_rounded", where, message, "say f32 if what learns suffers from it"),)
