"""TIR of attention: forward and backward, head by head."""

from __future__ import annotations

from compiler.codegen.attention.backward import Backward
from compiler.codegen.attention.forward import Forward
from compiler.codegen.attention.plan import layout, plan, workspace_bytes
from compiler.codegen.tir.tir import Block, PrimFunc, declare, finish
from compiler.kernels.spec import AttentionSpec
from compiler.targets import CpuTarget


def emit(spec: AttentionSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of attention or of its gradient."""
    operands = declare(spec, workspace_bytes(spec, target, threads))
    chosen = plan(spec, target, threads)
    body = Block()
    kernel = Forward if spec.kind == "forward" else Backward
    kernel(spec, chosen, layout(spec, chosen), operands).emit(body)
    return finish(spec, operands, body)
