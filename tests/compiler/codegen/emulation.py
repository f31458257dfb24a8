"""Running one kernel compiled for AArch64 under qemu: operands through stdin and stdout, parallel loops one by one."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.linking.toolchain import FLAGS, LINK_FLAGS
from compiler.codegen.symbols import symbol_of
from compiler.element_types import ELEMENT_TYPES
from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.kernel_harness.launch import build_object
from tests.kernel_harness.objects import object_file, run_zig

_MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { void *sync_handle; int32_t num_task; } Env;
typedef int (*Lambda)(int, Env *, void *);
static int threads;
static int launch(Lambda lambda, void *cdata, int num_task) {
  Env env = {0, threads};
  (void)num_task;
  for (int i = 0; i < threads; i++) { int rc = lambda(i, &env, cdata); if (rc) return rc; }
  return 0;
}
int (*__TVMBackendParallelLaunch)(Lambda, void *, int) = launch;
typedef struct { void *data; int32_t device[2], ndim; uint32_t dtype; void *shape, *strides; uint64_t offset; } Tensor;
typedef struct { int32_t type_index, zero; Tensor *tensor; } Any;
int32_t kernel(void *self, const Any *args, int32_t n, void *result);
int main(int argc, char **argv) {
  /* argv: threads, then the bytes of each operand after its role: i(nput), o(utput) or w(orkspace). */
  static Tensor tensors[16]; static Any args[16];
  int count = argc - 2;
  if (count < 1 || count > 16) return 8;
  threads = atoi(argv[1]);
  for (int i = 0; i < count; i++) {
    size_t bytes = strtoul(argv[i + 2] + 1, 0, 10);
    tensors[i].data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(tensors[i].data, 0xFF, bytes);
    args[i] = (Any){7, 0, &tensors[i]};
    if (argv[i + 2][0] == 'i' && fread(tensors[i].data, 1, bytes, stdin) != bytes) return 9;
  }
  int rc = kernel(0, args, count, 0);
  for (int i = 0; i < count; i++)
    if (argv[i + 2][0] == 'o') fwrite(tensors[i].data, 1, strtoul(argv[i + 2] + 1, 0, 10), stdout);
  return rc;
}
"""


def run_emulated(
    spec: KernelSpec,
    inputs: Sequence[Array],
    *,
    target: str = "raspberry-pi-4",
    threads: int = 3,
    choice: Choice = DEFAULT,
) -> list[Array]:
    """The outputs of `spec`, built for an AArch64 target and run by `qemu-aarch64-static`."""
    board = load(target)
    types = operand_types(spec)
    reply = build_object(spec, board, threads, choice)
    operands = [f"i{tensor.size_bytes}" for tensor in types.inputs]
    operands += [f"o{tensor.size_bytes}" for tensor in types.outputs]
    operands += [f"w{reply.workspace_bytes}"] if reply.workspace_bytes else []
    data = b"".join(
        np.ascontiguousarray(array, ELEMENT_TYPES[tensor.dtype].numpy).tobytes()
        for array, tensor in zip(inputs, types.inputs, strict=True)
    )
    with tempfile.TemporaryDirectory(prefix="pockfarm-emulated-") as name:
        program = _link(reply.object_bytes, f"__tvm_ffi_{symbol_of(spec, choice)}", board.zig_triple, Path(name))
        command = ["qemu-aarch64-static", str(program), str(threads), *operands]
        done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=120)
    results, start = [], 0
    for tensor in types.outputs:
        raw = done.stdout[start : start + tensor.size_bytes]
        results.append(np.frombuffer(raw, ELEMENT_TYPES[tensor.dtype].numpy).reshape(tensor.shape))
        start += tensor.size_bytes
    return results


def _link(object_bytes: bytes, symbol: str, zig_triple: str, folder: Path) -> Path:
    """A static executable of the kernel and the main program, by the linker called directly."""
    (folder / "kernel.o").write_bytes(object_bytes)
    before, after = _link_command(zig_triple)
    program = folder / "run"
    run_zig(*before, str(folder / "kernel.o"), *after, f"--defsym=kernel={symbol}", "-o", str(program))
    return program


def _links(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("ld.lld ")]


@cache
def _link_command(zig_triple: str) -> tuple[list[str], list[str]]:
    """What zig's driver has the linker do for a binary of ours, before and after the place of a kernel's object.

    Asking once and then calling the linker saves most of each link; the flags are the product's, so that the C library
    is the one that set-up built.
    """
    options = ("-target", zig_triple, *FLAGS)
    main = object_file(_MAIN, *options)
    empty = object_file("int kernel(void) { return 0; }", *options)
    with tempfile.TemporaryDirectory(prefix="pockfarm-emulated-") as folder:
        objects = [str(main), str(empty), "-lm", "-o", f"{folder}/run"]
        said = run_zig("cc", "-v", *options, *LINK_FLAGS, *objects)
    # Where parts of the C library are not built yet, zig links these too, and says so first.
    *_, words = (words for words in map(shlex.split, _links(said)) if f"{folder}/run" in words)
    place = words.index(str(empty))
    return words[:place], words[place + 1 :]
