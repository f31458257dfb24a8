"""The process that builds kernels: imports TVM once, then answers requests until its input ends.

Run as `python -m compiler.codegen.worker`. Both ways a message is a 4-byte big-endian length and a pickle:
`Request` in, `Reply` out. The parent is `compiler.codegen.workers`, which wrote the requests itself, so
pickle is safe here.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO, Protocol, cast

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.symbols import symbol_of
from compiler.kernels.spec import KernelSpec
from compiler.targets import Target


@dataclass(frozen=True, slots=True)
class Request:
    """A request to build one kernel."""

    spec: KernelSpec
    target: Target
    threads: int
    choice: Choice = DEFAULT


@dataclass(frozen=True, slots=True)
class Reply:
    """The kernel, or what went wrong."""

    kernel: CompiledKernel | None = None
    error: str = ""


class Compiler(Protocol):
    """The interface of every module that makes artefacts of what a family emits."""

    def compile_kernel(self, emitted: Any, target: Any, *, symbol: str, workspace_bytes: int) -> CompiledKernel:
        """The kernel under its own symbol; the same arguments give the same bytes."""


COMPILERS: Mapping[str, str] = {
    "cpu": "compiler.codegen.tir.compile",
    "opencl": "compiler.codegen.grid.opencl",
    "cuda": "compiler.codegen.grid.cuda",
}
"""The module that compiles, by the kind of the target. It imports TVM."""


def send(stream: BinaryIO, message: object) -> None:
    """Writes one message and flushes."""
    payload = pickle.dumps(message)
    stream.write(struct.pack(">I", len(payload)) + payload)
    stream.flush()


def receive(stream: BinaryIO) -> object | None:
    """Reads one message; None at the end of the stream (also in mid-message)."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    payload = stream.read(struct.unpack(">I", header)[0])
    return pickle.loads(payload) if len(payload) == struct.unpack(">I", header)[0] else None


def build(request: Request) -> Reply:
    """Builds one kernel in this process (imports TVM)."""
    from compiler.codegen.family import emit_kernel, workspace_bytes_of

    arguments = (request.spec, request.target, request.threads, request.choice)
    try:
        compiler = cast(Compiler, importlib.import_module(COMPILERS[request.target.kind]))
        emitted = emit_kernel(*arguments)  # first: it refuses what no plan knows
        symbol, size_bytes = symbol_of(request.spec, request.choice), workspace_bytes_of(*arguments)
        return Reply(compiler.compile_kernel(emitted, request.target, symbol=symbol, workspace_bytes=size_bytes))
    except Exception:
        # Any failure is the parent's to report, with the kernel's name; the worker lives on for the next one.
        return Reply(error=traceback.format_exc(limit=-6))


def main() -> None:
    """Answers requests on stdin; what libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _start_light()
    _import_all()
    while (request := receive(sys.stdin.buffer)) is not None:
        assert isinstance(request, Request)
        send(replies, build(request))
        if not gc.isenabled():
            gc.freeze()
            gc.enable()


def _import_all() -> None:
    """Imports what builds kernels before the first is asked for: whoever starts a worker early has other things
    to do.
    """
    from compiler.codegen import family  # noqa: F401
    from compiler.codegen.tir import compile  # noqa: F401


def _start_light() -> None:
    """TVM imports PyTorch where it is installed, to share tensors with it: three times the time and twice the memory;
    its compiler of whole models, a quarter of the time; its sessions on several machines; and the words for every
    GPU, half of what is left then. Kernels need none of it.

    Nothing of what an import or a first kernel makes is garbage: it is not looked for then, and not among it later.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    sys.modules.setdefault("tvm.relax", ModuleType("tvm.relax"))
    sys.modules.setdefault("tvm.runtime.disco", None)  # type: ignore[arg-type]
    os.environ["TVM_DEVICE_BACKEND_AUTOLOAD"] = "0"
    gc.disable()


if __name__ == "__main__":
    # The messages must name this module, not `__main__`.
    from compiler.codegen import worker

    worker.main()
