"""Running one kernel under user-mode emulation: a static executable that reads operands from files and writes the
output to one. Threads run one after the other."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.symbols import symbol_of
from compiler.codegen.testing import build_object
from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types
from compiler.targets import load

QEMU = shutil.which("qemu-aarch64-static")
_MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct {
  void *data; int32_t device[2]; int32_t ndim; uint32_t dtype; int64_t *shape, *strides; uint64_t offset;
} Tensor;
typedef struct { int32_t type, zero; Tensor *tensor; } Any;
typedef struct { void *sync; int32_t num_task; } Env;
static int launch(int (*f)(int, Env *, void *), void *data, int tasks) {
  Env env = {0, THREADS};
  (void)tasks;
  for (int i = 0; i < THREADS; i++) if (f(i, &env, data)) return 1;
  return 0;
}
int (*__TVMBackendParallelLaunch)(int (*)(int, Env *, void *), void *, int) = launch;
int __tvm_ffi_KERNEL(void *, Any *, int, void *);
int main(int argc, char **argv) {
  /* argv: path and bytes of each operand, in order; the one whose path contains "output" is written. */
  Tensor tensors[16]; Any any[16]; int count = (argc - 1) / 2;
  memset(tensors, 0, sizeof tensors);
  for (int i = 0; i < count; i++) {
    size_t bytes = strtoul(argv[2 + 2 * i], 0, 10);
    tensors[i].data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(tensors[i].data, 0xff, bytes);
    FILE *f = fopen(argv[1 + 2 * i], "rb");
    if (f) { if (fread(tensors[i].data, 1, bytes, f) != bytes) return 2; fclose(f); }
    any[i] = (Any){7, 0, &tensors[i]};
  }
  if (__tvm_ffi_KERNEL(0, any, count, 0)) return 3;
  for (int i = 0; i < count; i++) {
    if (!strstr(argv[1 + 2 * i], "output")) continue;
    FILE *f = fopen(argv[1 + 2 * i], "wb");
    fwrite(tensors[i].data, 1, strtoul(argv[2 + 2 * i], 0, 10), f);
    fclose(f);
  }
  return 0;
}
"""


def run_emulated(
    spec: KernelSpec,
    inputs: list[Array],
    *,
    target: str = "raspberry-pi-4",
    threads: int = 4,
    choice: Choice = DEFAULT,
) -> Array:
    """The kernel's only output, computed by the target's own code under emulation."""
    assert QEMU is not None, "qemu-aarch64-static is not installed: apt-get install qemu-user-static"
    board = load(target)
    reply = build_object(spec, board, threads, choice)
    types = operand_types(spec)
    with tempfile.TemporaryDirectory(prefix="pockfarm-emulated-") as name:
        folder = Path(name)
        (folder / "kernel.o").write_bytes(reply.object_bytes)
        source = _MAIN.replace("__tvm_ffi_KERNEL", f"__tvm_ffi_{symbol_of(spec, choice)}").replace(
            "THREADS", str(threads)
        )
        (folder / "main.c").write_text(source)
        compile_ = [sys.executable, "-m", "ziglang", "cc", "-target", board.zig_triple, "-static", "-O2"]
        files = [str(folder / "main.c"), str(folder / "kernel.o"), "-Wl,--gc-sections", "-lm"]
        subprocess.run([*compile_, *files, "-o", str(folder / "main")], check=True, capture_output=True)
        arguments: list[str] = []
        for number, (tensor, array) in enumerate(zip(types.inputs, inputs, strict=True)):
            (folder / f"input{number}").write_bytes(np.ascontiguousarray(array, np.float32).tobytes())
            arguments += [str(folder / f"input{number}"), str(tensor.size_bytes)]
        (out,) = types.outputs
        arguments += [str(folder / "output"), str(out.size_bytes)]
        if reply.workspace_bytes:
            arguments += [str(folder / "scratch"), str(reply.workspace_bytes)]
        subprocess.run([QEMU, str(folder / "main"), *arguments], check=True, timeout=120)
        return np.frombuffer((folder / "output").read_bytes(), np.float32).reshape(out.shape)
