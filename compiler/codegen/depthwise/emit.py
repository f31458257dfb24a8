"""TIR of a depth-wise convolution: forward and input gradient by `rows`, weight gradient by `weights`."""

from __future__ import annotations

from compiler.codegen.choice import Choice
from compiler.codegen.depthwise.plan import plan_of, workspace_bytes
from compiler.codegen.depthwise.rows import DepthwiseRows
from compiler.codegen.depthwise.weights import DepthwiseWeights
from compiler.codegen.tir.tir import Block, PrimFunc, declare, finish
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import CpuTarget


def emit(spec: DepthwiseSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> PrimFunc:
    """TIR of a depth-wise convolution."""
    operands = declare(spec, workspace_bytes(spec, target, threads, choice))
    body = Block()
    plan = plan_of(spec, target, threads, choice)
    if spec.kind == "weight_grad":
        DepthwiseWeights(spec, operands, plan).emit(body)
    else:
        DepthwiseRows(spec, operands, plan).emit(body)
    return finish(spec, operands, body)
