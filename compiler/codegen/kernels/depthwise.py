"""Depth-wise convolutions: vectors over channels, several output columns in registers. The TIR is in
`depthwise_rows` (forward, input gradient) and `depthwise_weights` (weight gradient)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.codegen.kernels.tiling import slots_of
from compiler.kernel_spec import DepthwiseSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir import PrimFunc


def slots(spec: DepthwiseSpec, threads: int) -> int:
    """Threads that the work is cut for."""
    taps = spec.kernel[0] * spec.kernel[1]
    # A multiply-add here costs several times one of a matrix product: it is bound by loads and by memory.
    return slots_of(8.0 * spec.n * spec.oh * spec.ow * spec.c * taps, threads)


def from_memory(spec: DepthwiseSpec, target: Target) -> bool:
    """Whether the images are so large that their rows come from memory, not from a cache.

    Then the next row is fetched ahead (10-25 % faster on x86-64; a little slower where a cache has it all).
    """
    largest = max(spec.h * spec.w, spec.oh * spec.ow) * spec.n * spec.c
    return largest > target.l2_bytes


def workspace_bytes(spec: DepthwiseSpec, target: Target, threads: int) -> int:
    """Partial sums of the weight gradient, one set per thread."""
    if spec.kind != "weight_grad":
        return 0
    return 4 * slots(spec, threads) * (spec.kernel[0] * spec.kernel[1] + spec.sums) * spec.c


def emit(spec: DepthwiseSpec, target: Target, threads: int) -> PrimFunc:
    """TIR of a depth-wise convolution."""
    from compiler.codegen import tir
    from compiler.codegen.kernels.depthwise_rows import DepthwiseRows
    from compiler.codegen.kernels.depthwise_weights import DepthwiseWeights

    operands = tir.declare(spec, workspace_bytes(spec, target, threads))
    body = tir.Block()
    parts, ahead = slots(spec, threads), from_memory(spec, target)
    if spec.kind == "weight_grad":
        DepthwiseWeights(spec, operands, target, parts, ahead=ahead).emit(body)
    else:
        DepthwiseRows(spec, operands, target, parts, ahead=ahead).emit(body)
    return tir.finish(spec, operands, body)
