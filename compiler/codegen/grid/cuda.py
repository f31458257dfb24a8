"""A grid kernel as CUDA C++, and what NVIDIA's compiler makes of it: code for the target's generation, and PTX.

Operands are plain pointers, and any may be where another is: an output often takes the place of an input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import tvm
import tvm.backend.cuda.codegen  # whose words TVM looks for when it writes CUDA, and which workers do not load

from compiler.codegen.artefacts import Artefact, CompiledKernel, Launch, Resources
from compiler.codegen.grid import halves, nvrtc, tensor_cores
from compiler.codegen.grid.cubin import Use, uses_of
from compiler.codegen.grid.functions import BITS
from compiler.codegen.grid.grid import Function, Grid
from compiler.codegen.grid.text import require_fits, text_of
from compiler.targets import GridTarget

_HEAD = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\((.*)\) \{$', re.MULTILINE)
_SPELLED = {BITS: "__int_as_float"}
"""Functions that the text calls by names which CUDA does not have."""
_PRELUDE = """\
typedef signed char int8_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fc00000)
"""
"""Words of the text that CUDA has in headers only; the compiler is given none."""


def compile_kernel(emitted: Grid, target: GridTarget, *, symbol: str, workspace_bytes: int) -> CompiledKernel:
    """The code of all launches of a kernel, and how they are started.

    Raises: InternalError for a group too large; BuildError where NVIDIA's compiler is missing, or fails.
    """
    for number, function in enumerate(emitted.functions):
        require_fits(function, target, f"{symbol}_{number}")
    text, launches = cuda_text(emitted, symbol, capability=target.capability)
    code = nvrtc.compile_text(text, target.capability, where=symbol)
    measured = tuple(_measured(launch, uses_of(code.cubin)) for launch in launches)
    return CompiledKernel(symbol, workspace_bytes, measured, (Artefact("cubin", code.cubin), Artefact("ptx", code.ptx)))


def cuda_text(emitted: Grid, symbol: str, *, capability: str) -> tuple[str, tuple[Launch, ...]]:
    """Returns one text with the functions of all launches, and how these are started, without asking any device."""
    device = tvm.target.Target({"kind": "cuda", "arch": capability})
    texts, launches = [], []
    for number, function in enumerate(emitted.functions):
        entry = f"{symbol}_{number}"
        text, operands = _text(function, entry, device)
        texts.append(text)
        resources = Resources(shared_bytes=function.shared_bytes)
        launches.append(Launch(entry, "grid", function.groups, function.items, operands, resources))
    words = (*tensor_cores.words_of(texts), *halves.words_of(texts, halves.CUDA))
    return "\n".join((f"// {type(emitted.spec).__name__}", _PRELUDE, *words, *texts)), tuple(launches)


def _text(function: Function, entry: str, device: object) -> tuple[str, tuple[int, ...]]:
    """The function in CUDA C++, and which of the operands it takes."""
    text = text_of(function, entry, device, head=_HEAD, spelled=_SPELLED)
    parameters = ", ".join(f"{kind}* {name}" for kind, name in text.pointers)
    head = f'extern "C" __global__ void __launch_bounds__({function.items}) {entry}({parameters}) {{'
    return f"{head}\n  {text.body}\n", text.operands


def _measured(launch: Launch, uses: Mapping[str, Use]) -> Launch:
    use = uses[launch.entry]
    resources = replace(launch.resources, registers=use.registers, spill_bytes=use.stack_bytes)
    return replace(launch, resources=resources)
