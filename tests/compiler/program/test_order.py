"""The order of the calls is within 5% of the best there is, in live bytes at the peak, wherever that can be found."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from compiler.program.program import Program
from compiler.program.schedule import schedule
from tests.compiler.agreement.cases import CASES
from tests.compiler.program.exact_order import Orders, peak_of, random_program
from tests.compiler.program.planned import scheduled
from tests.compiler.rematerialisation.small_steps import small_step
from tests.sample import sample, thinned

NEAR = 1.05
SOLVED = (
    "digits-cnn-full",
    "encoder-bias-only",
    "encoder-full",
    "encoder-full-adamw",
    "encoder-sparse",
    "mcunet-full",
    "mlp-bias-only",
    "mlp-full",
    "mlp-last-layer-adamw",
    "mlp-sparse",
    "resnet18-bias-only",
)


def _orders(program: Program, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every order in which calls can run."""
    orders = Orders(program, ())
    if len(done) == orders.count:
        yield done
        return
    for number in orders.ready(sum(1 << i for i in done)):
        yield from _orders(program, (*done, number))


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_solver_is_exact(seed: int) -> None:
    """It finds the least of what the memory planner says of each order there is, and counts as the planner does."""
    program = random_program(random.Random(seed), 6)
    orders = Orders(program, ())
    peaks = {order: peak_of(program, (), order) for order in _orders(program)}
    assert all(orders.peak(order) == peak for order, peak in peaks.items())
    assert orders.least_peak() == min(peaks.values())


@pytest.mark.parametrize("case", thinned(SOLVED, 4))
def test_steps_of_the_agreement_tests_are_ordered_well(case: str) -> None:
    assert case in CASES
    program, state = scheduled(case)
    least = Orders(program, state).least_peak()
    assert least is not None
    assert peak_of(program, state) <= NEAR * least


@pytest.mark.parametrize("case", sample(["digits", "encoder", "mcunet"], ["encoder"]))
def test_small_steps_are_ordered_well(case: str) -> None:
    step = small_step(case)
    least = Orders(step.train, step.state).least_peak()
    assert least is not None
    assert peak_of(step.train, step.state) <= NEAR * least


@pytest.mark.parametrize("calls", sample([8, 16, 24], ["8"]))
def test_random_programs_are_ordered_well(calls: int) -> None:
    for seed in range(25):
        program = random_program(random.Random(1000 * calls + seed), calls)
        least = Orders(program, ()).least_peak()
        assert least is not None
        ordered = schedule(program).subject
        assert sorted(map(id, ordered.calls)) == sorted(map(id, program.calls))
        assert peak_of(ordered, ()) <= NEAR * least
