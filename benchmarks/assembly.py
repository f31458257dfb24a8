"""Innermost loops of a kernel's assembly: which they are, what they compute, and what they keep on the stack.

Reads what LLVM writes for x86-64 and AArch64. Pure text in, values out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH = re.compile(r"^\s+(?:b\.\w+|b|cbnz|cbz|tbn?z|j\w+)\s.*?(\.L\w+)\s*(?:#.*|//.*)?$")
_FUNCTION = re.compile(r"^[A-Za-z_]\w*:")
_FRAME = re.compile(r"^\s+(?:mov\s+x29, sp|add\s+x29, sp|movq\s+%rsp, %rbp)")
_STACK = re.compile(r"\[sp\b|\(%rsp")
_STACK_OR_FRAME = re.compile(r"\[sp\b|\[x29\b|\(%rsp|\(%rbp")
_NEON_FMA = re.compile(r"^\s+fml[as]\s+v\d+\.(\d)[sh]")
_NEON_BYTES = re.compile(r"^\s+sdot\s+v\d+\.(\d)s")
_NEON_SCALAR = re.compile(r"^\s+fn?m(?:add|sub)\s+s")
_X86_FMA = re.compile(r"^\s+vfn?m(?:add|sub)\w+ps\s.*%([xyz])mm")
_X86_BYTES = re.compile(r"^\s+vpdpbusd\s.*%([xyz])mm")
_X86_SCALAR = re.compile(r"^\s+vfn?m(?:add|sub)\w+ss\s")
_MOVES_VECTOR = re.compile(r"\bq\d+|%[xyz]mm|\bv\d+\.")
_LOADS = re.compile(r"^\s+(?:ld\w+|vmov[ua]p[sd]\s+[^%]*\(|vmovdq[ua]\w*\s+[^%]*\(|v(?:p?)broadcast(?:ss|d)\s+[^%]*\()")
PRODUCT_SHARE = 0.3
"""Least part of a product's inner loop that multiply-adds are."""
_IN_A_WORD = 4
_X86_LANES = {"x": 4, "y": 8, "z": 16}


@dataclass(frozen=True, slots=True)
class Loop:
    """The instructions of one innermost loop, from its label to its backward branch."""

    label: str
    instructions: tuple[str, ...]
    has_frame: bool = False
    """Whether the function addresses its stack through the frame pointer too, which is else a register like others."""

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one turn."""
        return sum(multiply_adds(line) for line in self.instructions)

    @property
    def fma_instructions(self) -> int:
        """Vector and scalar multiply-add instructions of one turn."""
        return sum(multiply_adds(line) > 0 for line in self.instructions)

    @property
    def accumulators(self) -> int:
        """Different registers that multiply-adds add to."""
        sums = (line.replace(",", " ").split() for line in self.instructions if multiply_adds(line))
        return len({words[-1] if words[-1].startswith("%") else words[1] for words in sums})

    @property
    def scalar_fmas(self) -> int:
        """Multiply-adds that work on one element only."""
        return sum(bool(_NEON_SCALAR.match(line) or _X86_SCALAR.match(line)) for line in self.instructions)

    @property
    def loads(self) -> int:
        """Instructions that only load (an x86 multiply-add may load too; it is not counted)."""
        return sum(bool(_LOADS.match(line)) for line in self.instructions)

    @property
    def spills(self) -> int:
        """Vectors that are stored to or loaded from the stack."""
        stack = _STACK_OR_FRAME if self.has_frame else _STACK
        return sum(bool(stack.search(line) and _MOVES_VECTOR.search(line)) for line in self.instructions)


def multiply_adds(instruction: str) -> int:
    """Multiply-adds of one instruction, in f32 or float16, or of bytes."""
    if match := _NEON_FMA.match(instruction):
        return int(match[1])
    if match := _NEON_BYTES.match(instruction):
        return _IN_A_WORD * int(match[1])
    if match := _X86_BYTES.match(instruction):
        return _IN_A_WORD * _X86_LANES[match[1]]
    if match := _X86_FMA.match(instruction):
        return _X86_LANES[match[1]]
    return int(bool(_NEON_SCALAR.match(instruction) or _X86_SCALAR.match(instruction)))


def innermost_loops(assembly: str) -> list[Loop]:
    """Every loop that holds no other, in order."""
    lines, loops, framed = _loops(assembly)
    inner = [loop for loop in loops if not any(_holds(loop, other) for other in loops)]
    return [Loop(label, _instructions(lines[first + 1 : last + 1]), label in framed) for first, last, label in inner]


def around(assembly: str, label: str) -> tuple[str, ...]:
    """What the loop that holds this innermost one, and nothing else, does beside it; nothing if there is none."""
    lines, loops, _ = _loops(assembly)
    inner = next(loop for loop in loops if loop[2] == label)
    outer = [loop for loop in loops if _holds(loop, inner) and sum(_holds(loop, other) for other in loops) == 1]
    if not outer:
        return ()
    first, last, _ = outer[0]
    return _instructions(lines[first + 1 : inner[0] + 1] + lines[inner[1] + 1 : last + 1])


def _loops(assembly: str) -> tuple[list[str], list[tuple[int, int, str]], set[str]]:
    """Lines, loops as (first line, last line, label), and labels of functions that have a frame."""
    lines = assembly.splitlines()
    labels: dict[str, int] = {}
    loops: list[tuple[int, int, str]] = []
    framed: set[str] = set()
    has_frame = False
    for number, line in enumerate(lines):
        if _FUNCTION.match(line):
            has_frame = False
        elif _FRAME.match(line):
            has_frame = True
        elif match := _LABEL.match(line):
            labels[match[1]] = number
            framed |= {match[1]} if has_frame else set()
        elif (match := _BRANCH.match(line)) and match[1] in labels:
            loops.append((labels[match[1]], number, match[1]))
    return lines, loops, framed


def hottest_loop(assembly: str) -> Loop | None:
    """The innermost loop of the whole register tile, which has most accumulators; None if no loop multiplies.

    The most multiply-adds would not do: the loop of a last row may be unrolled further than the whole tile's. Loops
    with few multiply-adds among other instructions, such as transforms of Winograd's tiles, come last.
    """
    loops = [loop for loop in innermost_loops(assembly) if loop.multiply_adds]
    return max(
        loops,
        key=lambda loop: (
            loop.fma_instructions >= PRODUCT_SHARE * len(loop.instructions),
            loop.accumulators,
            loop.multiply_adds,
        ),
        default=None,
    )


def _holds(outer: tuple[int, int, str], inner: tuple[int, int, str]) -> bool:
    return outer != inner and outer[0] <= inner[0] and inner[1] <= outer[1] and inner[:2] != outer[:2]


def _instructions(lines: list[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line.startswith("\t") and not line.lstrip().startswith((".", "#", "//")))
