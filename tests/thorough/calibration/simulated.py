"""How often what is said is wrong, and how often what is there is found, on simulated noise: thousands of trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.figures.separate_runs import Run, ratio_interval, variation_of
from device_agents.measure.turns import Wanted, take_turns
from tests.thorough.calibration.noises import CHOSEN_WITH, OTHERS, Noise, Slowness
from tests.thorough.calibration.rates import BUDGET_S, CANARIES, EFFECT, PROMISES, Kind, Rate

STEP_US, PROCESS_S = 5000.0, 0.17


def compared(noise: Noise, factor: float, seed: int) -> bool:
    """Whether a compare job of two bundles, of which the second takes that many times as long, calls them different."""
    random = np.random.default_rng(seed)
    slowness: Iterator[float] = iter(noise(random, 400))
    now_s = 0.0

    def process(which: int) -> float:
        nonlocal now_s
        now_s += PROCESS_S
        return STEP_US * (factor if which else 1.0) * float(np.exp(next(slowness)))

    found = take_turns(Wanted(2, EFFECT, BUDGET_S, seed), process, clock=lambda: now_s)
    (ratio,) = found.ratios
    if ratio.differs and factor != 1.0 and ratio.ratio < 1.0:
        raise AssertionError(f"the slower one was called the faster: {ratio}")
    return ratio.differs


def separate(noise: Noise, factor: float, seed: int) -> bool:
    """Whether two runs apart, on a device with so many canaries, are called likely different."""
    random = np.random.default_rng(seed)

    def run(times: float = 1.0) -> list[float]:
        slowness: Slowness = noise(random, LEAST_BLOCKS)
        return (STEP_US * times * np.exp(slowness)).tolist()

    known = variation_of([[float(np.median(run())) for _ in range(CANARIES)]])
    interval = ratio_interval(Run(run(), known), Run(run(factor), known))
    assert interval is not None
    return not interval.has(1.0)


TRIALS: Mapping[Kind, Callable[[Noise, float, int], bool]] = {"compare": compared, "separate": separate}


def rates(trials: int, *, seed: int, noises: str) -> Iterator[Rate]:
    """Each as soon as it is known. `noises`: `chosen` or `other`, of which no rate of what is found is promised: where
    processes vary by 3%, a difference of 1% is often hidden, and that is said."""
    for name, noise in (CHOSEN_WITH if noises == "chosen" else OTHERS).items():
        for promise in PROMISES:
            held = promise if noises == "chosen" else replace(promise, least=0.0)
            count = sum(TRIALS[promise.kind](noise, promise.factor, seed + trial) for trial in range(trials))
            yield Rate(held, name, count, trials)
