"""What is chosen reaches the peak that it promises, with the fewest strips, and only where it pays."""

from __future__ import annotations

import pytest

from compiler.program.lower_peak import live_bytes
from compiler.program.program import KernelCall, Program
from compiler.spec.documents import SparsePlan
from compiler.splitting.choose import GAIN, STRIPS, Splits, choose_splits
from compiler.splitting.rewrite import Split, split_chains
from examples.models import MODELS
from tests.compiler.splitting.test_split import CASES, LAST, bottlenecks, programs_of
from tests.sample import thinned


def no_scratch(call: KernelCall) -> int:
    return 0


def some_scratch(call: KernelCall) -> int:
    """The same for every larger call."""
    return 4096 if call.flops > 1 << 16 else 0


def peak_of(programs: tuple[Program, ...], splits: Splits | None = None) -> int:
    program_splits = {} if splits is None else splits.by_program
    cut = [split_chains(program, program_splits.get(program.name, ())) for program in programs]
    return max(max(live_bytes(program)) for program in cut)


@pytest.mark.parametrize("seed", thinned(range(12), 4))
def test_the_promised_peak_is_reached_and_fewer_strips_would_not(seed: int) -> None:
    programs, _, _ = programs_of(bottlenecks(seed), LAST)
    before = peak_of(programs)
    splits = choose_splits(programs, no_scratch, 4)
    assert splits is not None
    assert peak_of(programs, splits) <= splits.peak_bytes <= (1 - GAIN) * before
    for name, program_splits in splits.by_program.items():
        for number, split in enumerate(program_splits):
            coarser = [strips for strips in (1, *STRIPS) if strips < split.strips]
            fewer = (Split(split.chain, coarser[-1]),) if coarser[-1] > 1 else ()
            others = {**splits.by_program, name: (*program_splits[:number], *fewer, *program_splits[number + 1 :])}
            assert peak_of(programs, Splits(others, 0)) > 0.95 * splits.peak_bytes


def test_narrower_strips_are_worth_a_way_only_if_they_gain() -> None:
    programs, _, _ = programs_of(MODELS["mcunet"](resolution=32), SparsePlan.of_preset("last-layer"))
    splits = choose_splits(programs, some_scratch, 4)
    assert splits is not None
    assert choose_splits(programs, some_scratch, 4, splits.peak_bytes) is None
    narrower = choose_splits(programs, some_scratch, 2, splits.peak_bytes)
    assert narrower is None or narrower.peak_bytes <= (1 - GAIN) * splits.peak_bytes


def test_nothing_is_split_where_the_backward_pass_keeps_it() -> None:
    name, options, _ = CASES["mcunet"]
    programs, _, _ = programs_of(MODELS[name](**options), SparsePlan.of_preset("full"))
    assert choose_splits(programs, no_scratch, 4) is None
