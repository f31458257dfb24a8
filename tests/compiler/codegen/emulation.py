"""Running one kernel compiled for AArch64 under qemu: operands through stdin and stdout, parallel loops one by one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compiler.codegen.linking.link import FLAGS, LINK_FLAGS, cache_folder
from compiler.codegen.symbols import symbol_of
from compiler.codegen.testing import build_object
from compiler.element_types import ELEMENT_TYPES
from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types
from compiler.targets import load

_MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { void *sync_handle; int32_t num_task; } Env;
typedef int (*Lambda)(int, Env *, void *);
static int launch(Lambda lambda, void *cdata, int num_task) {
  Env env = {0, 3};
  for (int i = 0; i < 3; i++) { int rc = lambda(i, &env, cdata); if (rc) return rc; }
  return 0;
}
int (*__TVMBackendParallelLaunch)(Lambda, void *, int) = launch;
typedef struct { void *data; int32_t device[2], ndim; uint32_t dtype; void *shape, *strides; uint64_t offset; } Tensor;
typedef struct { int32_t type_index, zero; Tensor *tensor; } Any;
int32_t SYMBOL(void *self, const Any *args, int32_t n, void *result);
static const long sizes[] = {SIZES};
enum { COUNT = sizeof sizes / sizeof *sizes };
int main(void) {
  static Tensor tensors[COUNT]; static Any args[COUNT];
  for (int i = 0; i < COUNT; i++) {
    tensors[i].data = aligned_alloc(64, (sizes[i] + 127) / 64 * 64);
    memset(tensors[i].data, 0xFF, sizes[i]);
    args[i] = (Any){7, 0, &tensors[i]};
    if (i < INPUTS && fread(tensors[i].data, 1, sizes[i], stdin) != (size_t)sizes[i]) return 9;
  }
  int rc = SYMBOL(0, args, COUNT, 0);
  for (int i = INPUTS; i < INPUTS + OUTPUTS; i++) fwrite(tensors[i].data, 1, sizes[i], stdout);
  return rc;
}
"""


def run_emulated(spec: KernelSpec, inputs: Sequence[Array], target: str = "raspberry-pi-4") -> list[Array]:
    """The outputs of `spec`, built for an AArch64 target and run by `qemu-aarch64-static`."""
    board = load(target)
    types = operand_types(spec)
    reply = build_object(spec, board, 3)
    sizes = [tensor.size_bytes for tensor in types.inputs + types.outputs]
    source = _MAIN.replace(
        "SIZES", ",".join(map(str, sizes + ([reply.workspace_bytes] if reply.workspace_bytes else [])))
    )
    source = source.replace("SYMBOL", f"__tvm_ffi_{symbol_of(spec)}")
    source = source.replace("INPUTS", str(len(types.inputs))).replace("OUTPUTS", str(len(types.outputs)))
    data = b"".join(
        np.ascontiguousarray(array, ELEMENT_TYPES[tensor.dtype].numpy).tobytes()
        for array, tensor in zip(inputs, types.inputs, strict=True)
    )
    with tempfile.TemporaryDirectory(prefix="pockfarm-emulated-") as name:
        folder = Path(name)
        (folder / "kernel.o").write_bytes(reply.object_bytes)
        (folder / "main.c").write_text(source)
        command = [sys.executable, "-m", "ziglang", "cc", "-target", board.zig_triple, *FLAGS, *LINK_FLAGS]
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / "zig"), **os.environ}
        subprocess.run([*command, "-o", "run", "main.c", "kernel.o"], cwd=folder, env=environment, check=True)
        done = subprocess.run(["qemu-aarch64-static", str(folder / "run")], input=data, capture_output=True, check=True)
    results, start = [], 0
    for tensor in types.outputs:
        raw = done.stdout[start : start + tensor.size_bytes]
        results.append(np.frombuffer(raw, ELEMENT_TYPES[tensor.dtype].numpy).reshape(tensor.shape))
        start += tensor.size_bytes
    return results
