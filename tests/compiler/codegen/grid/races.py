"""Races between the items of a group: `make races` runs the kernels' OpenCL text with a thread for each item, under
gcc's ThreadSanitizer, in place of PoCL, which adds barriers of its own and so hides those that are missing.

A plugin of pytest: the tests of `tests/compiler/codegen/grid` stay as they are, and what they compare is compared too.
Kernels of more items than `MOST_ITEMS` run on PoCL as ever; how many of each there were is said in the end.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.artefacts import CompiledKernel, Launch
from compiler.element_types import ELEMENT_TYPES
from compiler.graph import Array, TensorType
from tests.kernel_harness import launch as kernel_launch
from tests.kernel_harness import opencl

MOST_ITEMS = 40_000
TIMEOUT_S = 300
FLAGS = ("-std=gnu11", "-O1", "-g", "-w", "-fsanitize=thread")
LANGUAGE = r"""
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
static __thread int lid;
static int gid;
static pthread_barrier_t items;
#define __kernel static
#define __global
#define __local static
#define reqd_work_group_size(a, b, c) unused
#define get_local_id(x) lid
#define get_group_id(x) gid
#define CLK_LOCAL_MEM_FENCE 1
#define barrier(x) pthread_barrier_wait(&items)
#define convert_int(x) ((int)(x))
#define convert_uint(x) ((uint)(x))
#define convert_long(x) ((long)(x))
#define convert_ulong(x) ((ulong)(x))
#define convert_float(x) ((float)(x))
#define convert_uchar(x) ((uchar)(x))
#define select(a, b, c) ((c) ? (b) : (a))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#undef NAN
#define NAN __builtin_nanf("")
static inline float as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint as_uint(float x) { uint bits; memcpy(&bits, &x, 4); return bits; }
typedef _Float16 half;
#define vload_half(place, from) ((float)(from)[place])
#define vstore_half_rte(x, place, into) ((into)[place] = (half)(x))
"""


class RaceFound(AssertionError):
    """ThreadSanitizer saw two items at one place of memory, one of them writing, without a barrier between them."""


def program_of(kernel: CompiledKernel, sizes: Sequence[int]) -> str:
    """C source that reads all operands from its input, runs every launch, and writes them to its output."""
    launches = list(enumerate(kernel.launches))
    return "\n".join(
        (
            LANGUAGE,
            kernel.artefacts[0].content.decode(),
            f"static uchar *operand[{max(len(sizes), 1)}];",
            *(_item(number, launch) for number, launch in launches),
            "int main(void) {",
            *(
                f"  operand[{k}] = malloc({size}); fread(operand[{k}], 1, {size}, stdin);"
                for k, size in enumerate(sizes)
            ),
            *(_groups(number, launch) for number, launch in launches),
            *(f"  fwrite(operand[{k}], 1, {size}, stdout);" for k, size in enumerate(sizes)),
            "  return 0;\n}",
        )
    )


def _item(number: int, launch: Launch) -> str:
    arguments = ", ".join(f"operand[{k}], 0" for k in launch.operands)
    return f"static void *item{number}(void *p) {{ lid = (int)(long)p; {launch.entry}({arguments}); return NULL; }}"


def _groups(number: int, launch: Launch) -> str:
    return f"""  pthread_barrier_init(&items, NULL, {launch.items});
  for (gid = 0; gid < {launch.groups}; gid++) {{
    pthread_t thread[{launch.items}];
    for (long i = 0; i < {launch.items}; i++) pthread_create(&thread[i], NULL, item{number}, (void *)i);
    for (int i = 0; i < {launch.items}; i++) pthread_join(thread[i], NULL);
  }}"""


def run_in_threads(kernel: CompiledKernel, operands: Sequence[bytes]) -> list[bytes]:
    """The operands afterwards. Raises: RaceFound with what ThreadSanitizer said."""
    sizes = [len(operand) for operand in operands]
    with tempfile.TemporaryDirectory(prefix="pockfarm-races-") as name:
        source, binary = Path(name) / "kernel.c", Path(name) / "kernel"
        source.write_text(program_of(kernel, sizes))
        subprocess.run(
            ["gcc", *FLAGS, str(source), "-o", str(binary), "-lm", "-lpthread"], check=True, timeout=TIMEOUT_S
        )
        # Without the shuffling of addresses that older thread sanitizers cannot map.
        done = subprocess.run(
            ["setarch", "-R", str(binary)],
            input=b"".join(operands),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        )
    if done.returncode:
        raise RaceFound(done.stderr.decode(errors="replace")[-4000:])
    found, start = [], 0
    for size in sizes:
        found.append(done.stdout[start : start + size])
        start += size
    return found


_ran: Counter[str] = Counter()
_on_device = opencl.run_on_device


def _run(
    kernel: CompiledKernel,
    types: tuple[Sequence[TensorType], Sequence[TensorType]],
    inputs: Sequence[Array],
    initial: Sequence[Array | None] = (),
) -> tuple[Array, ...]:
    """`opencl.run_on_device` with threads in the place of a device."""
    if sum(launch.groups * launch.items for launch in kernel.launches) > MOST_ITEMS:
        _ran["too large"] += 1
        return _on_device(kernel, types, inputs, initial)
    _ran["in threads"] += 1
    took, made = types
    arguments = [*(_bytes(array, tensor) for array, tensor in zip(inputs, took, strict=True))]
    starts = [*initial, *[None] * (len(made) - len(initial))]
    arguments += [
        b"\xff" * tensor.size_bytes if start is None else _bytes(start, tensor)
        for start, tensor in zip(starts, made, strict=True)
    ]
    arguments += [b"\xff" * kernel.workspace_bytes] if kernel.workspace_bytes else []
    after = run_in_threads(kernel, arguments)[len(took) : len(took) + len(made)]
    return tuple(
        np.frombuffer(raw, _kind(tensor)).reshape(tensor.shape) for raw, tensor in zip(after, made, strict=True)
    )


def _bytes(array: Array, tensor: TensorType) -> bytes:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(array), tensor.shape), _kind(tensor)).tobytes()


def _kind(tensor: TensorType) -> np.dtype[np.generic]:
    return ELEMENT_TYPES[tensor.dtype].numpy


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_launch, "run_on_device", _run)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many kernels ran so, and how many did not."""
    terminalreporter.write_line(f"races: {_ran['in threads']} kernels ran in threads, {_ran['too large']} on PoCL")
