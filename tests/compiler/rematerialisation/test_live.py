"""Bytes alive as calls are repeated one by one: what the rewritten programs have alive."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from compiler.program.program import Program
from compiler.rematerialisation.candidates import repeatable
from compiler.rematerialisation.live import LiveBytes
from compiler.rematerialisation.rewrite import repeat_calls
from tests.compiler.rematerialisation.small_steps import CASES, small_step
from tests.sample import sample, thinned


def _live_bytes(program: Program) -> tuple[int, int]:
    """Counted in the program itself: the most bytes of made values alive at one call, and the sum over all calls."""
    spans: dict[object, tuple[int, int]] = {}
    for position, call in enumerate(program.calls):
        for root in map(program.root, (*call.inputs, *call.outputs)):
            spans[root] = (spans.get(root, (position, 0))[0], position)
    changes = [0] * (len(program.calls) + 1)
    for name in {name for call in program.calls for name in call.outputs if name not in program.aliases}:
        first, last = spans[name]
        changes[first] += program.types[name].size_bytes
        changes[last + 1] -= program.types[name].size_bytes
    live = list(accumulate(changes))
    return max(live), sum(live)


@pytest.mark.parametrize("case", thinned(sorted(CASES), 2))
@pytest.mark.parametrize("seed", sample(range(3), {"0"}))
def test_costs_are_those_of_the_rewritten_program(case: str, seed: int) -> None:
    """Whatever is repeated, in any order, and taken back where it costs more."""
    program = small_step(case).train
    order = np.random.default_rng(seed).permutation(repeatable(program)).tolist()
    live, taken, least = LiveBytes.of(program), list[int](), _live_bytes(program)
    assert live.cost() == least
    for position in order:
        found = _live_bytes(repeat_calls(program, [*taken, position]))
        assert live.repeat_if_less(position) == (found < least)
        if found < least:
            taken, least = [*taken, position], found
        assert live.cost() == least
    assert taken
