"""NVIDIA's tensor cores in CUDA text: functions that a kernel calls by name, and what they are there.

Whoever runs the text elsewhere has these functions of its own (`tests/kernel_harness/cuda_shim.h`). Source: PTX ISA
8.2, `cvt` (from CUDA 11.0 on, sm_80) and `mma` (m16n8k8 with .tf32, m16n8k16 with .f16 and .bf16; all sums are f32).
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from compiler.codegen.grid.contraction.product import Factors
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value

_ROUND, _MULTIPLY = "pf_tf32", "pf_mma_"
_SHAPES = {"tf32": "m16n8k8", "f16": "m16n8k16", "bf16": "m16n8k16"}
"""Shapes of a warp's product, by the type of its factors."""
_ROUNDING = """\
static __device__ __forceinline__ float pf_tf32(float x) {
  uint bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
"""
_PRODUCT = """\
static __device__ __forceinline__ void pf_mma_KIND(float* sums, float a0, float a1, float a2, float a3, float b0,
                                                   float b1) {
  asm volatile("mma.sync.aligned.SHAPE.row.col.f32.KIND.KIND.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)),
                 "r"(__float_as_uint(a3)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
"""


def rounded(value: Value) -> Value:
    """A real as the nearest of ten bits of mantissa, of two the one away from 0: a factor of `multiply`."""
    return tirx.call_pure_extern("float32", _ROUND, value)


def multiply(block: Block, factors: Factors, sums: Buffer, first: int, a: Sequence[Value], b: Sequence[Value]) -> None:
    """Adds to four sums, from element `first`, those of a warp's product (`tensor_tile` says whose items have what).

    Words of factors are given as reals, whatever they hold. All items of a warp must come by here together.
    """
    place = tirx.call_intrin("handle", "tirx.address_of", tirx.BufferLoad(sums, [tir.index(first)]))
    block.add(tirx.Evaluate(tirx.call_extern("int32", _MULTIPLY + factors, place, *a, *b)))


def words_of(texts: Sequence[str]) -> Sequence[str]:
    """Returns the text that stands before texts that use tensor cores."""
    used = [kind for kind in _SHAPES if any(_MULTIPLY + kind in text for text in texts)]
    words = [_PRODUCT.replace("KIND", kind).replace("SHAPE", _SHAPES[kind]) for kind in used]
    rounding = [_ROUNDING] if "tf32" in used else []
    return ["".join(("#ifdef __CUDACC__\n", *rounding, *words, "#endif\n"))] if used else []
