"""Widens frozen weights anew in the backward pass, so that none lies in memory in f32 between its readers.

Rewrites: a forward call that reads only constants, bytes among them, is repeated where the backward pass first needs
what it makes. Requires: calls in the order of the graph; `held`: the weights that are bytes (`compiler.step.frozen`).
Ensures: the same values, bit for bit. Why: a weight in four bits is eight times as large once it is widened.
"""

from __future__ import annotations

from collections.abc import Collection

from compiler.program.program import KernelCall, Program
from compiler.rematerialisation.candidates import repeatable
from compiler.rematerialisation.rewrite import repeat_calls
from compiler.rewriting.passes import PassResult
from compiler.values import Value


def widen_again(program: Program, *, held: Collection[Value]) -> PassResult[Program]:
    """The program with what widens the weights `held` repeated in its backward pass."""
    state = frozenset(program.state)

    def widens(call: KernelCall) -> bool:
        roots = [program.root(value) for value in call.inputs]
        return state.issuperset(roots) and any(root in held for root in roots)

    positions = [position for position in repeatable(program) if widens(program.calls[position])]
    return PassResult(repeat_calls(program, positions), bool(positions))
