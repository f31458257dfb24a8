"""Tile registers: what multiplies whole matrices of bfloat16 at once (x86's AMX).

Each of eight registers holds up to 16 rows of up to 16 words, a word being an f32 sum or a pair of bfloat16.
`configure` says how many of each, and sets them all to zero. They are called by number: LLVM allocates none of them.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter on Intel AMX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from compiler.targets import CpuTarget

WORDS = 16
"""Words in a row: the steps of A's that are multiplied at once, and as many rows of B's."""
REGISTERS = 8
CONFIGURATION_WORDS = 16
"""Words of 32 bits that a configuration takes in memory."""
USED = "tiles"
"""Attribute of a function that calls what is here."""
_PALETTE = 1
_DECLARED = """
@pf_uses_tiles = weak_odr hidden constant i32 1
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8, i8, i8)
define i32 @pf_tiles_set(ptr %configuration) {
  call void @llvm.x86.ldtilecfg(ptr %configuration)
  ret i32 0
}
define i32 @pf_tiles_end() {
  call void @llvm.x86.tilerelease()
  ret i32 0
}
"""
_MOVES = """
define i32 @pf_tile_load_{number}(ptr %first, i64 %stride) {{
  call void @llvm.x86.tileloadd64(i8 {number}, ptr %first, i64 %stride)
  ret i32 0
}}
define i32 @pf_tile_store_{number}(ptr %first, i64 %stride) {{
  call void @llvm.x86.tilestored64(i8 {number}, ptr %first, i64 %stride)
  ret i32 0
}}
"""
_DOT = """
define i32 @pf_tile_dot_{total}_{a}_{b}() {{
  call void @llvm.x86.tdpbf16ps(i8 {total}, i8 {a}, i8 {b})
  ret i32 0
}}
"""


def sums_in(row: int, column: int) -> int:
    """The register of the sums of a block of 16 rows and of one of 16 columns, two of each."""
    return 2 * row + column


def a_in(row: int) -> int:
    """The register of A's block of rows."""
    return 4 + row


def b_in(column: int) -> int:
    """The register of B's block of columns."""
    return 6 + column


def configuration(shapes: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The words of a configuration, by the (rows, words in a row) of each register, numbers or int32 values."""
    rows, words = ([shape[which] for shape in shapes] for which in (0, 1))
    sizes = [4 * count for count in words] + [0] * (CONFIGURATION_WORDS - len(shapes))
    heights = rows + [0] * (CONFIGURATION_WORDS - len(shapes))
    packed = [_PALETTE, 0, 0, 0]
    packed += [_joined(sizes[i : i + 2], 16) for i in range(0, len(sizes), 2)]
    return packed + [_joined(heights[i : i + 4], 8) for i in range(0, len(heights), 4)]


def configure(address: Any) -> Any:
    """Loads the configuration at an address; every register is zero after it."""
    return _call("set", address, prefix="pf_tiles")


def release() -> Any:
    """Releases the registers: a thread with any in use takes longer to switch."""
    return _call("end", prefix="pf_tiles")


def load(register: int, address: Any, stride_bytes: Any) -> Any:
    """Reads the rows of a register, which begin so many bytes (an int64) apart."""
    return _call(f"load_{register}", address, stride_bytes)


def store(register: int, address: Any, stride_bytes: Any) -> Any:
    """Writes them."""
    return _call(f"store_{register}", address, stride_bytes)


def dot(row: int, column: int) -> Any:
    """Adds the products of A's block of rows with B's block of columns to their sums."""
    return _call(f"dot_{sums_in(row, column)}_{a_in(row)}_{b_in(column)}")


def helpers(target: CpuTarget) -> str:
    """The functions behind these, in LLVM's language; none where the target has no such registers."""
    if not target.has_tiles:
        return ""
    moves = (_MOVES.format(number=number) for number in range(REGISTERS))
    dots = (
        _DOT.format(total=sums_in(row, column), a=a_in(row), b=b_in(column)) for row in range(2) for column in range(2)
    )
    return _DECLARED + "".join(moves) + "".join(dots)


def _call(what: str, *arguments: Any, prefix: str = "pf_tile") -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", f"{prefix}_{what}", *arguments))


def _joined(parts: Sequence[Any], bits: int) -> Any:
    """Numbers of so many bits each as one word, the first lowest."""
    whole: Any = 0
    for number, part in enumerate(parts):
        whole = whole + part * (1 << bits * number)
    return whole
