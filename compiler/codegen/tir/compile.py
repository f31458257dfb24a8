"""A `PrimFunc` to the bytes of an object file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.build import codegen_build

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.tir.halves import with_helpers
from compiler.codegen.tir.tir import PrimFunc
from compiler.targets import CpuTarget


def llvm_target(target: CpuTarget) -> Any:
    """TVM's description of a target."""
    options: dict[str, object] = {"kind": "llvm", "mtriple": target.triple, "mcpu": target.cpu}
    if target.features:
        options["mattr"] = list(target.features)
    if target.architecture == "aarch64":
        # Loads of neighbouring elements of A, grouped to become load-pairs, would keep one element of every row waiting
        # in registers that accumulators need: register tiles then go through the stack (73% instead of 99% of an A76).
        options["cl-opt"] = ["-misched-cluster:bool=false"]
    return tvm.target.Target(options)


def lower(function: PrimFunc, llvm: Any) -> Any:
    """The packed-ABI module of one kernel.

    Shorter than TVM's default pipeline: the emitters write flat, scheduled code, so nothing is left to plan
    (`FlattenBuffer` would turn every ramp into a sum, which LLVM then loads element by element). Argument
    checks are dropped (our runtime builds its tables from the same specs), and stack arrays stay on the stack
    (`LowerTVMBuiltin`, left out, would turn those of 1 KB and more into workspace calls).
    """
    module = tvm.IRModule({str(function.attrs["global_symbol"]): function.with_attr("target", llvm.with_host(llvm))})
    passes = [
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.SkipAssert(),
        tirx.transform.LowerIntrin(),
    ]
    return tvm.ir.transform.Sequential(passes)(module)


def compile_function(function: PrimFunc, target: CpuTarget, *, symbol: str = "") -> bytes:
    """The object file of one kernel for `target`, under its own symbol or the one given.

    The same function gives the same bytes.
    """
    llvm, function = llvm_target(target), with_helpers(function, target)
    if symbol:
        function = function.with_attr("global_symbol", symbol)
    built = codegen_build(lower(function, llvm), llvm)
    with tempfile.TemporaryDirectory(prefix="pockfarm-kernel-") as folder:
        path = Path(folder) / "kernel.o"
        built.write_to_file(str(path))
        return path.read_bytes()


def compile_kernel(emitted: PrimFunc, target: CpuTarget, *, symbol: str, workspace_bytes: int) -> CompiledKernel:
    """Compiles a kernel to one object with one packed function."""
    return CompiledKernel.called(symbol, compile_function(emitted, target, symbol=symbol), workspace_bytes)
