"""TIR of a dense convolution, by the method that its plan names."""

from __future__ import annotations

from compiler.codegen.choice import Choice
from compiler.codegen.conv.plan import method_of, plan, workspace_bytes
from compiler.codegen.conv.taps import ConvTaps
from compiler.codegen.conv.weights import ConvWeights
from compiler.codegen.tir.tir import Block, PrimFunc, declare, finish
from compiler.codegen.winograd import plan as winograd
from compiler.codegen.winograd.data import WinogradData
from compiler.codegen.winograd.weights import WinogradWeights
from compiler.kernels.spec import ConvSpec
from compiler.targets import CpuTarget


def emit(spec: ConvSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> PrimFunc:
    """TIR of a convolution."""
    operands = declare(spec, workspace_bytes(spec, target, threads, choice))
    body = Block()
    outputs = method_of(spec, target, choice)
    if outputs:
        cut = winograd.plan(spec, target, threads, outputs)
        kernel = WinogradWeights if spec.kind == "weight_grad" else WinogradData
        kernel(spec, cut, operands).emit(body)
        return finish(spec, operands, body)
    chosen = plan(spec, target, threads, choice)
    direct = ConvWeights if spec.kind == "weight_grad" else ConvTaps
    direct(spec, chosen, operands).emit(body)
    return finish(spec, operands, body)
