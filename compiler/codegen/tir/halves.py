"""Sixteen-bit reals in memory, f32 in registers: widened where they are loaded, rounded to nearest where stored.

TIR has no bfloat16 that its code generator takes, so it sees the bits. Rounding them is written in LLVM's own
language, which becomes one instruction where the machine has it.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import tvm
from tvm import tirx

from compiler.codegen.tir import quads, tiles
from compiler.element_types import ELEMENT_TYPES
from compiler.targets import CpuTarget

BF16, F16, I8 = (ELEMENT_TYPES[name].tir for name in ("bf16", "f16", "i8"))
F16_BITS = "int16"
"""The type as which kernels for a grid see a float16: their languages may have no such type."""
HELPED = "halves"
"""Attribute of a function that calls what is written for a target by `with_helpers`."""
_MOST = 65504.0
"""The largest float16."""
_LANES = (1, 2, 4, 8, 16, 32, 64)
_BY_INSTRUCTION = """
define {bits} @pf_bf16_{lanes}({wide} %x) {{
  %rounded = fptrunc {wide} %x to {half}
  %bits = bitcast {half} %rounded to {bits}
  ret {bits} %bits
}}
"""
_DOT = """
declare <{lanes} x float> @{intrinsic}(<{lanes} x float>, <{pairs} x bfloat>, <{pairs} x bfloat>)
define <{lanes} x float> @pf_dot_{lanes}(<{lanes} x float> %z, <{lanes} x i32> %x, <{lanes} x i32> %y) {{
  %a = bitcast <{lanes} x i32> %x to <{pairs} x bfloat>
  %b = bitcast <{lanes} x i32> %y to <{pairs} x bfloat>
  %sum = call <{lanes} x float> @{intrinsic}(<{lanes} x float> %z, <{pairs} x bfloat> %a, <{pairs} x bfloat> %b)
  ret <{lanes} x float> %sum
}}
"""
_BY_ARITHMETIC = """
define {bits} @pf_bf16_{lanes}({wide} %x) {{
  %whole = bitcast {wide} %x to {words}
  %high = lshr {words} %whole, {c16}
  %odd = and {words} %high, {c1}
  %more = add {words} %odd, {c32767}
  %sum = add {words} %whole, %more
  %nearest = lshr {words} %sum, {c16}
  %quiet = or {words} %high, {c64}
  %is_nan = fcmp uno {wide} %x, %x
  %chosen = select {flags} %is_nan, {words} %quiet, {words} %nearest
  %bits = trunc {words} %chosen to {bits}
  ret {bits} %bits
}}
"""


_SATURATED = """
declare {wide} @llvm.fabs.{suffix}({wide})
define {bits} @pf_f16_{lanes}({wide} %x) {{
{bounded}
  %size = call {wide} @llvm.fabs.{suffix}({wide} %x)
  %is_infinite = fcmp oeq {wide} %size, {infinite}
  %chosen = select {flags} %is_infinite, {wide} %x, {wide} %bound
  %rounded = fptrunc {wide} %chosen to {f16}
  %bits = bitcast {f16} %rounded to {bits}
  ret {bits} %bits
}}
"""
_BOUNDED_BY_CHOICE = """
  %over = fcmp ogt {wide} %x, {most}
  %low = select {flags} %over, {wide} {most}, {wide} %x
  %under = fcmp olt {wide} %low, {least}
  %bound = select {flags} %under, {wide} {least}, {wide} %low
"""
_BOUNDED_BY_INSTRUCTION = """
  %low = call {wide} @llvm.minimum.{suffix}({wide} %x, {wide} {most})
  %bound = call {wide} @llvm.maximum.{suffix}({wide} %low, {wide} {least})
"""
_BOUNDS = """
declare {wide} @llvm.minimum.{suffix}({wide}, {wide})
declare {wide} @llvm.maximum.{suffix}({wide}, {wide})
"""
"""NEON's smallest and largest of two give what is no number where one is none; those of x86 take a choice anyway."""


def widened(raw: Any) -> Any:
    """Returns a loaded value as one to compute with: f32 for a half, or for a byte of a weight; all else as it is."""
    element, _, lanes = str(raw.ty.dtype).partition("x")
    if element in (F16, I8):
        return tirx.Cast(_type("float32", lanes), raw)
    if element == F16_BITS:
        return tirx.call_pure_extern("float32", "pf_wide_f16", raw)
    if element != BF16:
        return raw
    bits = tirx.Cast(_type("uint32", lanes), raw)
    shift = tirx.IntImm("uint32", 16)
    shifted = bits << (tirx.Broadcast(shift, int(lanes)) if lanes else shift)
    return tirx.reinterpret(_type("float32", lanes), shifted)


def rounded(value: Any, element: str) -> Any:
    """An f32 as it is stored in a buffer of `element`s: the nearest number of half its bits, ties to even.

    What is too large for float16 becomes its largest number, not infinite; what is infinite stays so (decision 88).
    """
    have, _, lanes = str(value.ty.dtype).partition("x")
    if have != "float32":
        return value
    if element == F16_BITS:
        return tirx.call_pure_extern(F16_BITS, "pf_f16_1", value)
    if element not in (F16, BF16):
        return value
    kind = "f16" if element == F16 else "bf16"
    bits = tirx.call_extern(_type("uint16", lanes), f"pf_{kind}_{lanes or 1}", value)
    return tirx.reinterpret(_type(F16, lanes), bits) if element == F16 else bits


def pair_at(buffer: Any, place: Any) -> Any:
    """Elements 2 `place` and 2 `place` + 1 of a buffer of bfloat16, or the word at `place` of another, as an int32."""
    if str(getattr(buffer.dtype, "dtype", buffer.dtype)) != BF16:
        return tirx.reinterpret("int32", tirx.BufferLoad(buffer, [place]))
    kind = str(place.ty.dtype)
    pair = tirx.Ramp(place * tirx.IntImm(kind, 2), tirx.IntImm(kind, 1), 2)
    return tirx.reinterpret("int32", tirx.BufferLoad(buffer, [pair]))


def dot(x: Any, y: Any, z: Any, lanes: int) -> Any:
    """`z` and the two products of each of the words of `x` and `y`, pairs of bfloat16."""
    words = tirx.reinterpret(_type("int32", str(lanes)), y)
    return tirx.call_extern(_type("float32", str(lanes)), f"pf_dot_{lanes}", z, x, words)


def with_helpers(function: Any, target: CpuTarget) -> Any:
    """A kernel, beside what rounds and multiplies for it on a target, of which LLVM keeps what is used."""
    if HELPED not in (function.attrs or {}):
        return function
    forms = (_BY_INSTRUCTION if target.has_bf16 else _BY_ARITHMETIC) + _SATURATED
    bounded = _BOUNDED_BY_CHOICE
    if target.architecture == "aarch64":
        forms, bounded = _BOUNDS + forms, _BOUNDED_BY_INSTRUCTION
    text = "".join(forms.replace("{bounded}", bounded).format(lanes=lanes, **_words(lanes)) for lanes in _LANES)
    text += "".join(
        _DOT.format(lanes=lanes, pairs=2 * lanes, intrinsic=intrinsic) for lanes, intrinsic in _dots(target).items()
    )
    text += quads.helpers(target) + (tiles.helpers(target) if tiles.USED in function.attrs else "")
    name, source = tvm.ir.StringImm("rounding"), tvm.ir.StringImm(text)
    return function.with_body(tirx.AttrStmt(name, "pragma_import_llvm", source, function.body))


def _dots(target: CpuTarget) -> dict[int, str]:
    """The intrinsics that multiply pairs, by the words that they take."""
    if not target.has_bf16:
        return {}
    if target.architecture == "aarch64":
        return {4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16", 2: "llvm.aarch64.neon.bfdot.v2f32.v4bf16"}
    return {lanes: f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}" for lanes in (4, 8, 16)}


def _words(lanes: int) -> dict[str, str]:
    """LLVM's types and constants of so many lanes."""
    elements = {"wide": "float", "half": "bfloat", "f16": "half", "bits": "i16", "words": "i32", "flags": "i1"}
    types = {name: element if lanes == 1 else f"<{lanes} x {element}>" for name, element in elements.items()}
    constants = {
        f"c{number}": str(number) if lanes == 1 else "<" + ", ".join([f"i32 {number}"] * lanes) + ">"
        for number in (1, 16, 64, 32767)
    }
    reals = {"most": _MOST, "least": -_MOST, "infinite": math.inf}
    suffixes = {"suffix": "f32" if lanes == 1 else f"v{lanes}f32"}
    return types | constants | suffixes | {name: _real(value, lanes) for name, value in reals.items()}


def _real(value: float, lanes: int) -> str:
    """A constant in LLVM's language, which writes floats with the bits of doubles."""
    text = f"0x{struct.pack('>d', value).hex().upper()}"
    return text if lanes == 1 else "<" + ", ".join([f"float {text}"] * lanes) + ">"


def _type(element: str, lanes: str) -> str:
    return f"{element}x{lanes}" if lanes else element
