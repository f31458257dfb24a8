"""The spec's demand on how convolutions are computed, as a property of every kernel that computes one."""

from __future__ import annotations

from dataclasses import replace

from compiler.kernels.spec import ConvSpec
from compiler.program.program import KernelCall, Program


def only_direct(programs: tuple[Program, ...]) -> tuple[Program, ...]:
    """The same programs with every dense convolution marked `direct`: no schedule of theirs uses Winograd."""
    return tuple(replace(program, calls=tuple(map(_direct, program.calls))) for program in programs)


def _direct(call: KernelCall) -> KernelCall:
    return replace(call, spec=replace(call.spec, direct=True)) if isinstance(call.spec, ConvSpec) else call
