"""x86's tile registers (AMX) in C: functions in place of the six instructions, which check each configuration, each
shape and which registers are in use. A kernel is the one that machines with the registers get, but for those calls."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking import link
from compiler.codegen.symbols import symbol_of
from compiler.codegen.tir import quads, tiles
from compiler.codegen.worker import Request
from compiler.codegen.workers import Worker
from compiler.targets import CpuTarget, load_cpu
from tests.kernel_harness.launch import build_in_process
from tests.kernel_harness.objects import object_file

X86 = "x86-64-v4-amx"
EMULATED = replace(load_cpu(X86), cpu="x86-64-v3", features=("+amx-tile", "+amx-bf16"))
"""The same schedules, in instructions that every machine of ours has; its vectors are halved by LLVM."""
SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int rows, bytes, loaded; unsigned char data[16][64]; } tile;
static _Thread_local tile registers[8];
static _Thread_local int configured;
static void want(int holds, const char *what) {
  if (!holds) { fprintf(stderr, "tiles: %s\n", what); abort(); }
}
int pf_tiles_set(const unsigned char *table) {
  want(table[0] == 1 && table[1] == 0, "palette 1, from row 0");
  for (int i = 2; i < 16; i++) want(table[i] == 0, "reserved bytes are zero");
  memset(registers, 0, sizeof registers);
  for (int i = 0; i < 16; i++) {
    int bytes = table[16 + 2 * i] | table[17 + 2 * i] << 8, rows = table[48 + i];
    want(bytes <= 64 && rows <= 16 && (i < 8 || bytes + rows == 0), "at most 16 rows of 64 bytes, of 8 registers");
    want((bytes == 0) == (rows == 0), "rows and bytes, or neither");
    if (i < 8) registers[i].rows = rows, registers[i].bytes = bytes;
  }
  configured = 1;
  return 0;
}
int pf_tiles_end(void) { want(configured, "ended twice"); configured = 0; return 0; }
static tile *used(int number) {
  want(configured && registers[number].rows, "a register that is not configured");
  return &registers[number];
}
static int move(int number, unsigned char *first, int64_t stride, int writes) {
  tile *one = used(number);
  one->loaded = 1;
  for (int row = 0; row < one->rows; row++) {
    if (writes) memcpy(first + row * stride, one->data[row], one->bytes);
    else memset(one->data[row], 0, 64), memcpy(one->data[row], first + row * stride, one->bytes);
  }
  return 0;
}
static float half(const unsigned char *at) {
  uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static int dot(int c, int a, int b) {
  tile *sums = used(c), *left = used(a), *right = used(b);
  want(sums->rows == left->rows && sums->bytes == right->bytes && left->bytes == 4 * right->rows, "shapes fit");
  want(left->loaded && right->loaded, "factors are loaded first");
  for (int m = 0; m < sums->rows; m++)
    for (int k = 0; k < right->rows; k++)
      for (int n = 0; n < sums->bytes / 4; n++) {
        float sum;
        memcpy(&sum, &sums->data[m][4 * n], 4);
        for (int i = 0; i < 2; i++)
          sum = fmaf(half(&left->data[m][4 * k + 2 * i]), half(&right->data[k][4 * n + 2 * i]), sum);
        memcpy(&sums->data[m][4 * n], &sum, 4);
      }
  return 0;
}
#define MOVES(n) \
  int pf_tile_load_##n(unsigned char *first, int64_t stride) { return move(n, first, stride, 0); } \
  int pf_tile_store_##n(unsigned char *first, int64_t stride) { return move(n, first, stride, 1); }
MOVES(0) MOVES(1) MOVES(2) MOVES(3) MOVES(4) MOVES(5) MOVES(6) MOVES(7)
#define DOT(c, a, b) int pf_tile_dot_##c##_##a##_##b(void) { return dot(c, a, b); }
DOT(0, 4, 6) DOT(1, 4, 7) DOT(2, 5, 6) DOT(3, 5, 7)
"""

_PAIR = """
declare <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float>, <{lanes} x float>, <{lanes} x float>)
define <{lanes} x float> @pf_dot_{lanes}(<{lanes} x float> %z, <{lanes} x i32> %x, <{lanes} x i32> %y) {{
  %a = shl <{lanes} x i32> %x, {sixteen}
  %b = shl <{lanes} x i32> %y, {sixteen}
  %c = and <{lanes} x i32> %x, {upper}
  %d = and <{lanes} x i32> %y, {upper}
  %e = bitcast <{lanes} x i32> %a to <{lanes} x float>
  %f = bitcast <{lanes} x i32> %b to <{lanes} x float>
  %g = bitcast <{lanes} x i32> %c to <{lanes} x float>
  %h = bitcast <{lanes} x i32> %d to <{lanes} x float>
  %i = call <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float> %e, <{lanes} x float> %f, <{lanes} x float> %z)
  %j = call <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float> %g, <{lanes} x float> %h, <{lanes} x float> %i)
  ret <{lanes} x float> %j
}}
"""


def _pair(lanes: int) -> str:
    sixteen, upper = ("<" + ", ".join([f"i32 {number}"] * lanes) + ">" for number in (16, -65536))
    return _PAIR.format(lanes=lanes, sixteen=sixteen, upper=upper)


PAIRS = "".join(map(_pair, (4, 8, 16)))
"""What attention multiplies pairs with, in instructions that every machine has."""


@contextlib.contextmanager
def emulated_kernels() -> Iterator[Path]:
    """While it lasts kernels call functions that are in the object."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiles, "helpers", lambda target: "")
        patched.setattr(quads, "helpers", lambda target: PAIRS)
        yield object_file(SOURCE, "-O2", "-fPIC", "-march=x86_64_v3")


@contextlib.contextmanager
def emulated_builds() -> Iterator[CpuTarget]:
    """While it lasts builds for the target have their kernels made here, and hold those functions."""
    linked = link.LINKERS["cpu"]
    calls: list[bool] = []

    def with_functions(
        sources: Mapping[str, str],
        left_out: Collection[str],
        kernels: Iterable[CompiledKernel],
        target: CpuTarget,
        work_dir: Path,
    ) -> bytes:
        return linked({**sources, "emulated_tiles": SOURCE}, left_out, kernels, target, work_dir)

    def made_here(worker: Worker, request: Request) -> CompiledKernel:
        reply = build_in_process(request.spec, request.target, request.threads, request.choice)
        calls.append(b"pf_tile_dot" in reply.object_bytes)
        return CompiledKernel.called(symbol_of(request.spec, request.choice), reply.object_bytes, reply.workspace_bytes)

    with emulated_kernels(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(link, "LINKERS", {"cpu": with_functions})
        patched.setattr(Worker, "build", made_here)
        yield EMULATED
    assert any(calls), "no kernel of the build multiplies so"
