"""The assembly text of a kernel, to count and to find instructions in."""

from __future__ import annotations

from pathlib import Path

from compiler.codegen.api import cache_key
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.family import emit_kernel
from compiler.kernels.spec import KernelSpec
from compiler.targets import CpuTarget
from tests.kernel_harness.cache import cached_file


def assembly(spec: KernelSpec, target: CpuTarget, threads: int = 1, choice: Choice = DEFAULT) -> str:
    """The kernel's assembly, as LLVM writes it for the target."""

    def write(path: Path) -> None:
        from tvm.tirx.build import codegen_build

        from compiler.codegen.tir.compile import llvm_target, lower
        from compiler.codegen.tir.halves import with_helpers

        function, llvm = with_helpers(emit_kernel(spec, target, threads, choice), target), llvm_target(target)
        path.write_text(codegen_build(lower(function, llvm), llvm).inspect_source("asm"))

    return cached_file("assembly", cache_key(spec, target, threads, choice).encode(), write).read_text()
