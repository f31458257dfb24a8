"""Four products of bytes added to a sum of 32 bits, as instructions for neural networks do (`vpdpbusd`, `sdot`).

A word holds the bytes of four steps. TIR sees words and sums as f32, in whose buffers and registers they lie. x86
multiplies bytes from 0 to 255 by bytes from -128 to 127, so there one side is shifted (`CpuTarget.byte_shift`).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from compiler.targets import CpuTarget

STEPS = 4
"""Steps in a word."""
_DOT = """
declare <{lanes} x i32> @{intrinsic}(<{lanes} x i32>, <{bytes} x i8>, <{bytes} x i8>)
define <{lanes} x float> @pf_quad_{lanes}(<{lanes} x float> %z, <{lanes} x i32> %x, <{lanes} x i32> %y) {{
  %c = bitcast <{lanes} x float> %z to <{lanes} x i32>
  %a = bitcast <{lanes} x i32> %x to <{bytes} x i8>
  %b = bitcast <{lanes} x i32> %y to <{bytes} x i8>
  %sum = call <{lanes} x i32> @{intrinsic}(<{lanes} x i32> %c, <{bytes} x i8> {sides})
  %bits = bitcast <{lanes} x i32> %sum to <{lanes} x float>
  ret <{lanes} x float> %bits
}}
"""


def dot(x: Any, y: Any, z: Any, lanes: int) -> Any:
    """The sums `z` and the four products of each of the words of `x` (shifted) and `y`."""
    words = tirx.reinterpret(f"int32x{lanes}", y)
    return tirx.call_extern(f"float32x{lanes}", f"pf_quad_{lanes}", z, x, words)


def helpers(target: CpuTarget) -> str:
    """The functions behind `dot`, in LLVM's language; none where the target has no such instruction."""
    if not target.multiplies("i8"):
        return ""
    if target.architecture == "aarch64":
        intrinsics = {lanes: f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8" for lanes in (2, 4)}
        sides = "%b, <{bytes} x i8> %a"  # the right one may be a word of a vector
    else:
        intrinsics = {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)}
        sides = "%a, <{bytes} x i8> %b"
    text = _DOT.replace("{sides}", sides)
    return "".join(
        text.format(lanes=lanes, bytes=STEPS * lanes, intrinsic=intrinsic) for lanes, intrinsic in intrinsics.items()
    )
