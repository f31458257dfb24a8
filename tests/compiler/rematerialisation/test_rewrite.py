"""Repeating forward calls in the backward pass changes no bit of a step, on exactly the planned bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from compiler.program.memory import plan_memory
from compiler.program.program import Program
from compiler.rematerialisation.candidates import repeatable
from compiler.rematerialisation.rewrite import repeat_calls
from compiler.slicing.rewrite import slice_program
from compiler.values import Value
from tests.compiler.program_interpreter import Machine
from tests.compiler.rematerialisation.small_steps import CASES, SmallStep, small_step
from tests.compiler.slicing.test_rewrite import feeds_of, random_groups
from tests.sample import some, thinned

Results = dict[Value, np.ndarray]


def results(step: SmallStep, train: Program) -> tuple[Results, int]:
    """What a train program makes and leaves behind, and its arena."""
    placed, memory = plan_memory((train,), step.state, lambda call: 192)
    machine = Machine(memory, step.state, step.arrays)
    machine.load_state(placed[0])
    found = machine.run(placed[0], feeds_of(placed[0]))
    return found | {s.value: machine.view(placed[0], s.value).copy() for s in step.state}, memory.arena_bytes


@pytest.mark.parametrize("case", thinned(sorted(CASES), 2))
def test_any_repeats_keep_every_bit(case: str) -> None:
    step = small_step(case)
    positions = repeatable(step.train)
    want, _ = results(step, step.train)
    for seed, share in enumerate((0.3, 0.7, 1.0)):
        chosen = random.Random(seed).sample(positions, round(share * len(positions)))
        repeated = repeat_calls(step.train, chosen)
        assert len(step.train.calls) < len(repeated.calls) <= len(step.train.calls) + len(chosen)
        found, _ = results(step, repeated)
        for key, array in want.items():
            np.testing.assert_array_equal(found[key], array, err_msg=f"{key}, seed {seed}")


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["mcunet", "encoder"])
def test_repeated_calls_can_be_cut_into_parts(case: str) -> None:
    step = small_step(case)
    want, _ = results(step, step.train)
    repeated = repeat_calls(step.train, repeatable(step.train))
    found, _ = results(step, slice_program(repeated, random_groups(repeated, seed=1)))
    for key, array in want.items():
        scale = max(1e-3, float(np.abs(array).max()))
        np.testing.assert_allclose(found[key], array, rtol=1e-4, atol=1e-5 * scale, err_msg=key)


def test_nothing_is_read_after_its_update() -> None:
    """A repeat placed after the update of its own weight is not offered: here the update comes first of all."""
    train = small_step("digits").train
    updates = [call for call in train.calls if call.phase == "update"]
    weights = {name for call in updates for name in map(train.root, call.outputs)}
    forward = [position for position, call in enumerate(train.calls) if call.phase == "forward"]
    early = train.calls[: len(forward)] + tuple(updates)
    rest = tuple(call for call in train.calls[len(forward) :] if call.phase != "update")
    hostile = Program(train.name, early + rest, train.types, train.inputs, train.outputs, train.aliases)
    for position in some(repeatable(hostile)):
        assert not weights & {train.root(name) for name in hostile.calls[position].inputs}
