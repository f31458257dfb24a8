"""A grid kernel as OpenCL C 1.2.

Every operand is a buffer and a byte offset into it: devices ask much of the address of a buffer inside of another, and
nothing of an offset.
"""

from __future__ import annotations

import re

import tvm
from tvm import tirx
from tvm.tirx.build import codegen_build

from compiler.codegen.artefacts import Artefact, CompiledKernel, Launch, Resources
from compiler.codegen.grid.functions import BITS
from compiler.codegen.grid.grid import Function, Grid, device_function
from compiler.errors import InternalError
from compiler.targets import GridTarget

_HEAD = re.compile(r"^__kernel void (\w+)\((.*)\) \{$", re.MULTILINE)
_POINTER = re.compile(r"__global (\w+)\* (?:restrict )?(\w+)$")
_SPELLED = {"atanf": "atan", BITS: "as_float"}
"""Functions that the text calls by names which OpenCL C does not have."""


def compile_kernel(emitted: Grid, target: GridTarget, *, symbol: str, workspace_bytes: int) -> CompiledKernel:
    """The text of all launches of a kernel, and how they are started. Raises: InternalError for a group too large."""
    texts, launches = [], []
    for number, function in enumerate(emitted.functions):
        entry = f"{symbol}_{number}"
        if function.items > target.items or function.shared_bytes > target.shared_bytes:
            asked = f"{function.items} items and {function.shared_bytes} shared bytes"
            raise InternalError(f"{asked} are more than {target.items} and {target.shared_bytes}", where=entry)
        text, operands = _text(function, entry)
        texts.append(text)
        resources = Resources(shared_bytes=function.shared_bytes)
        launches.append(Launch(entry, "grid", function.groups, function.items, operands, resources))
    content = "\n".join((f"/* {type(emitted.spec).__name__} */", *texts))
    return CompiledKernel(symbol, workspace_bytes, tuple(launches), (Artefact("opencl", content.encode()),))


def _text(function: Function, entry: str) -> tuple[str, tuple[int, ...]]:
    """The function in OpenCL C, and which of the operands it takes."""
    device = tvm.target.Target({"kind": "opencl"})
    module = tvm.IRModule({entry: device_function(function, entry, device)})
    passes = [tirx.transform.VectorizeLoop(True), tirx.transform.UnrollLoop(), tirx.transform.LowerIntrin()]
    module = tvm.ir.transform.Sequential(passes)(module)
    return _by_offsets(str(codegen_build(module, device).inspect_source()), function, entry)


def _without_arrays_of_one(body: str) -> str:
    """A private array of one element, as which TVM writes a value that is used again, as a variable."""
    for name in re.findall(r"^\s*\w+ (\w+)\[1\];$", body, re.MULTILINE):
        body = re.sub(rf"\b{name}\[[01]\]", name, body)
    return body


def _by_offsets(source: str, function: Function, entry: str) -> tuple[str, tuple[int, ...]]:
    """TVM's text with a buffer and an offset in the place of each pointer that is used.

    Raises: InternalError if the text is not as TVM 0.27 writes it.
    """
    head = _HEAD.search(source)
    if head is None or head.group(1) != entry:
        raise InternalError(f"no kernel {entry} in TVM's text", hint=source)
    kinds = {}
    for parameter in head.group(2).split(", "):
        found = _POINTER.match(parameter)
        if found is None:
            raise InternalError(f"parameter {parameter!r} of {entry} is no pointer", hint=source)
        kinds[found.group(2)] = found.group(1)
    body = source[head.end() :].strip()
    for name, spelled in _SPELLED.items():
        body = re.sub(rf"\b{name}\(", f"{spelled}(", body)
    body = _without_arrays_of_one(body)
    used = [number for number, name in enumerate(function.parameters) if re.search(rf"\b{name}\b", body)]
    names = [function.parameters[number] for number in used]
    parameters = ", ".join(f"__global uchar* b{name[1:]}, ulong at{name[1:]}" for name in names)
    lines = [
        f"  __global {kinds[name]}* {name} = (__global {kinds[name]}*)(b{name[1:]} + at{name[1:]});" for name in names
    ]
    items = f"__attribute__((reqd_work_group_size({function.items}, 1, 1)))"
    return "\n".join((f"__kernel {items} void {entry}({parameters}) {{", *lines, body, "")), tuple(used)
