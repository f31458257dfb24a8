"""Notes at each call that makes a parameter's gradient which parameter that is, for people who read what calls cost.

Rewrites: the field `parameter` of calls of the backward pass. Requires: calls with their updates. Ensures: the same
calls. Why: a per-kernel table that says `d conv1.weight` where the layer alone would say less.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.program.program import Program
from compiler.rewriting.passes import PassResult


def note_gradients(program: Program) -> PassResult[Program]:
    """The program with every call whose first output is a parameter's gradient saying so."""
    makers = {program.root(call.outputs[0]): i for i, call in enumerate(program.calls)}
    calls = list(program.calls)
    for call in program.calls:
        if call.phase != "update" or len(call.inputs) < 2 or not call.parameter:
            continue
        maker = makers.get(program.root(call.inputs[1]))
        if maker is not None and calls[maker].phase == "backward":
            calls[maker] = replace(calls[maker], parameter=call.parameter)
    noted = replace(program, calls=tuple(calls))
    return PassResult(noted, modified=noted.calls != program.calls)
