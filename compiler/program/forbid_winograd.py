"""The spec's demand on how convolutions are computed, as a property of every kernel that computes one.

Rewrites: the field `direct` of dense convolutions. Requires: nothing. Ensures: the same calls in the same order.
Why: Winograd's rounding error is up to three times as large, and a spec may ask for the smaller one.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.kernels.spec import ConvSpec
from compiler.program.program import KernelCall, Program
from compiler.rewriting.passes import PassResult


def forbid_winograd(program: Program) -> PassResult[Program]:
    """The program with every dense convolution marked `direct`: no schedule of theirs uses Winograd."""
    calls = tuple(map(_direct, program.calls))
    return PassResult(replace(program, calls=calls), modified=calls != program.calls)


def _direct(call: KernelCall) -> KernelCall:
    return replace(call, spec=replace(call.spec, direct=True)) if isinstance(call.spec, ConvSpec) else call
