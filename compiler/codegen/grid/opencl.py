"""A grid kernel as OpenCL C 1.2.

Every operand is a buffer and a byte offset into it: devices ask much of the address of a buffer inside of another, and
nothing of an offset.
"""

from __future__ import annotations

import re

import tvm

from compiler.codegen.artefacts import Artefact, CompiledKernel, Launch, Resources
from compiler.codegen.grid import halves
from compiler.codegen.grid.functions import BITS
from compiler.codegen.grid.grid import Function, Grid
from compiler.codegen.grid.text import require_fits, text_of
from compiler.targets import GridTarget

_HEAD = re.compile(r"^__kernel void (\w+)\((.*)\) \{$", re.MULTILINE)
_SPELLED = {"atanf": "atan", BITS: "as_float"}
"""Functions that the text calls by names which OpenCL C does not have."""


def compile_kernel(emitted: Grid, target: GridTarget, *, symbol: str, workspace_bytes: int) -> CompiledKernel:
    """The text of all launches of a kernel, and how they are started. Raises: InternalError for a group too large."""
    texts, launches = [], []
    for number, function in enumerate(emitted.functions):
        entry = f"{symbol}_{number}"
        require_fits(function, target, entry)
        text, operands = _text(function, entry)
        texts.append(text)
        resources = Resources(shared_bytes=function.shared_bytes)
        launches.append(Launch(entry, "grid", function.groups, function.items, operands, resources))
    content = "\n".join((f"/* {type(emitted.spec).__name__} */", *halves.words_of(texts, halves.OPENCL), *texts))
    return CompiledKernel(symbol, workspace_bytes, tuple(launches), (Artefact("opencl", content.encode()),))


def _text(function: Function, entry: str) -> tuple[str, tuple[int, ...]]:
    """The function in OpenCL C, and which of the operands it takes."""
    text = text_of(function, entry, tvm.target.Target({"kind": "opencl"}), head=_HEAD, spelled=_SPELLED)
    parameters = ", ".join(f"__global uchar* b{name[1:]}, ulong at{name[1:]}" for _, name in text.pointers)
    lines = [
        f"  __global {kind}* {name} = (__global {kind}*)(b{name[1:]} + at{name[1:]});" for kind, name in text.pointers
    ]
    items = f"__attribute__((reqd_work_group_size({function.items}, 1, 1)))"
    return "\n".join((f"__kernel {items} void {entry}({parameters}) {{", *lines, text.body, "")), text.operands
