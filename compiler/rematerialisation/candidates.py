"""The forward calls of a training program that can be repeated in the backward pass."""

from __future__ import annotations

from compiler.program.program import Program
from compiler.rewriting.passes import Declined, Reason
from compiler.values import Value

NOT_REPEATABLE = Reason("repeat.overwritten", "results of its own, and operands that are as they were until then")


def repeatable(program: Program) -> tuple[int, ...]:
    """Positions of forward calls that can be repeated where the backward pass first needs what they make.

    A call can be repeated if it owns all that it writes, none of it is an output of the program, and nothing that it
    reads is overwritten by then. What only repeated calls would read is needed when they run.
    """
    outputs = frozenset(map(program.root, program.outputs))
    needs, writes = first_reads_after_forward(program), _first_overwrites(program)
    positions: list[int] = []
    for position in reversed(range(len(program.calls))):
        call = program.calls[position]
        needed = [needs[name] for name in call.outputs if name in needs]
        owns_all = not any(name in program.aliases or name in outputs for name in call.outputs)
        if call.phase != "forward" or not needed or not owns_all:
            continue
        roots = [program.root(name) for name in call.inputs]
        if all(writes.get(root, len(program.calls)) >= min(needed) for root in roots):
            positions.append(position)
            for root in roots:
                needs.setdefault(root, min(needed))
    return tuple(reversed(positions))


def not_repeatable(program: Program) -> tuple[Declined, ...]:
    """Forward calls whose results the backward pass reads, and that cannot be repeated there."""
    needs, repeatable_positions = first_reads_after_forward(program), set(repeatable(program))
    return tuple(
        NOT_REPEATABLE.at(call.layer)
        for position, call in enumerate(program.calls)
        if call.phase == "forward"
        and position not in repeatable_positions
        and any(program.root(name) in needs for name in call.outputs)
    )


def first_reads_after_forward(program: Program) -> dict[Value, int]:
    """Root values that calls after the forward pass read, and the first of these calls."""
    reads: dict[Value, int] = {}
    for position, call in enumerate(program.calls):
        for name in call.inputs if call.phase != "forward" else ():
            reads.setdefault(program.root(name), position)
    return reads


def _first_overwrites(program: Program) -> dict[Value, int]:
    """Root values that calls write in place, and the first of these calls."""
    writes: dict[Value, int] = {}
    for position, call in enumerate(program.calls):
        for name in call.outputs:
            if name in program.aliases:
                writes.setdefault(program.root(name), position)
    return writes
