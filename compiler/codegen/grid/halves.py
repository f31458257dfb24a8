"""Reals of sixteen bits in kernels for a grid: bits in memory, widened where they are read, rounded where written.

Neither language is asked for such a type: every OpenCL reads and writes float16 through pointers (OpenCL C 1.2,
6.12.7), and CUDA's own words for both are PTX. What is too large for float16 becomes its largest number (decision 88).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import tirx

from compiler.codegen.tir import halves
from compiler.codegen.tir.tir import Buffer, Operands, element_of

BITS: Mapping[str, str] = {"f16": halves.F16_BITS, "bf16": halves.BF16}
"""The types as which a kernel sees sixteen-bit elements, by the name of their element type."""
_WORDS = ("pf_wide_f16", "pf_f16_1", "pf_bf16_1")
_BOUND = """\
static {inline} float pf_bound(float x) {{
  return x - x != 0.0f ? x : x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}}
"""
_ROUND_BF16 = """\
static {inline} ushort pf_bf16_1(float x) {{
  uint bits = {bits}(x);
  return (ushort)(x == x ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : bits >> 16 | 64u);
}}
"""
OPENCL = (
    _BOUND.format(inline="inline")
    + """\
static inline float pf_wide_f16(short bits) { return vload_half(0, (const half*)&bits); }
static inline short pf_f16_1(float x) {
  short bits;
  vstore_half_rte(pf_bound(x), 0, (half*)&bits);
  return bits;
}
"""
    + _ROUND_BF16.format(inline="inline", bits="as_uint")
)
CUDA = (
    "#ifdef __CUDACC__\n"
    + _BOUND.format(inline="__device__ __forceinline__")
    + """\
static __device__ __forceinline__ float pf_wide_f16(short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
static __device__ __forceinline__ short pf_f16_1(float x) {
  short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(pf_bound(x)));
  return bits;
}
"""
    + _ROUND_BF16.format(inline="__device__ __forceinline__", bits="__float_as_uint")
    + "#endif\n"
)


def words_of(texts: Sequence[str], words: str) -> Sequence[str]:
    """Returns the text that stands before texts that widen or round, in the words of their language."""
    return [words] if any(word in text for text in texts for word in _WORDS) else []


def in_bits(operands: Operands) -> Operands:
    """A kernel's operands, with those of float16 as their bits."""
    inputs, outputs = (tuple(map(_as_bits, buffers)) for buffers in (operands.inputs, operands.outputs))
    return replace(operands, inputs=inputs, outputs=outputs)


def _as_bits(buffer: Buffer) -> Buffer:
    if element_of(buffer) != halves.F16:
        return buffer
    alignment = int(buffer.data_alignment)
    return tirx.decl_buffer(buffer.shape, halves.F16_BITS, name=str(buffer.name), data_alignment=alignment)
