"""The assembly text of a kernel, to count and to find instructions in."""

from __future__ import annotations

from tvm.tirx.build import codegen_build

from compiler.codegen.tir.compile import llvm_target, lower
from compiler.codegen.tir.halves import with_helpers
from compiler.codegen.tir.tir import PrimFunc
from compiler.targets import CpuTarget


def assembly(function: PrimFunc, target: CpuTarget) -> str:
    """The assembly text of one kernel for `target`."""
    llvm = llvm_target(target)
    return str(codegen_build(lower(with_helpers(function, target), llvm), llvm).inspect_source("asm"))
