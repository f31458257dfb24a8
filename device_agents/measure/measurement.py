"""The way from raw step times and device states to the figures of a report: pure functions, `bench-protocol/2`.

The headline is the median of block medians (a block is one process), with an interval over blocks: noise between
processes is larger than noise within one. The verdict says whether the number counts, and which rule fired.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from device_agents.figures.one_run import run_interval
from device_agents.wire import BENCH_PROTOCOL, Block, DeviceState, Measurement, Verdict
from device_agents.wire.consistency import variation

MIN_STEPS = 10
MAX_CV_WITHIN = 0.10
MAX_CV_BETWEEN = 0.05
MAX_DRIFT = 0.05
MAX_FREQUENCY_DROP = 0.10
LEAST_FREQUENCIES = 8
"""Samples of a clock from which anything is said."""
Clock = Sequence[tuple[float, float]]
"""(when, hertz)."""
THROTTLE_S = 2.0
"""Seconds from the last sample before a slow clock to the first one after it."""
MAX_OTHER_LOAD = 0.25


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics (NumPy's default). `values` is not empty."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def measure(blocks: Sequence[Block], *, batch: int, warmup_steps: int, threads: int) -> Measurement:
    """The measurement of at least one block with at least one step each."""
    samples = tuple(us for block in blocks for us in block.step_us)
    medians = [statistics.median(block.step_us) for block in blocks]
    median_us, mean_us = statistics.median(medians), statistics.fmean(samples)
    low_us, high_us = run_interval(medians) or (None, None)
    return Measurement(
        batch=batch,
        step_us=samples,
        blocks=tuple(blocks),
        median_us=median_us,
        interval_low_us=low_us,
        interval_high_us=high_us,
        p90_us=percentile(samples, 0.90),
        p99_us=percentile(samples, 0.99),
        mean_us=mean_us,
        samples_per_second=batch / (mean_us * 1e-6) if mean_us > 0 else 0.0,
        cv_within=statistics.median(variation(block.step_us) for block in blocks),
        cv_between=variation(medians),
        warmup_steps=warmup_steps,
        threads=threads,
        protocol=BENCH_PROTOCOL,
    )


def judge(
    measurement: Measurement,
    states: Sequence[DeviceState],
    *,
    cores: int,
    is_emulated: bool = False,
    clock: Clock = (),
) -> Verdict:
    """Whether the measurement counts; the first rule that fires, in the order of the farm's list. `clock`: of more
    samples than the states, which are thinned."""
    if is_emulated:
        return Verdict("function", "the steps ran to their end; emulated times say nothing of a board")
    if len(measurement.step_us) < MIN_STEPS:
        return Verdict("noisy", f"{len(measurement.step_us)} measured steps, at least {MIN_STEPS} are needed")
    return (
        _throttled(states, clock or [(state.at, state.frequency_hz) for state in states if state.frequency_hz])
        or _disturbed(states)
        or _drifting(measurement)
        or _noisy(measurement)
        or Verdict("valid", _what_was_checked(measurement, states, cores))
    )


def _throttled(states: Sequence[DeviceState], clock: Clock) -> Verdict | None:
    if any(state.throttled for state in states):
        count = sum(bool(state.throttled) for state in states)
        return Verdict("throttled", f"the board said so in {count} of {len(states)} samples")
    if len(clock) < LEAST_FREQUENCIES:
        return None
    rates = [hz for _, hz in clock]
    quarter = len(rates) // 4
    begin, last = statistics.median(rates[:quarter]), statistics.median(rates[-quarter:])
    if last < begin * (1 - MAX_FREQUENCY_DROP):  # in a run of a second or two as well
        drop = f"{begin / 1e6:.0f} to {last / 1e6:.0f} MHz"
        return Verdict("throttled", f"clock fell from {drop} to its end, more than {MAX_FREQUENCY_DROP:.0%}")
    usual = percentile(rates, 0.9)
    first, end = _longest_below(clock, usual * (1 - MAX_FREQUENCY_DROP))
    took_s = clock[min(end, len(clock) - 1)][0] - clock[max(0, first - 1)][0]
    if first < end and took_s >= THROTTLE_S:
        drop = f"{usual / 1e6:.0f} to {statistics.median(hz for _, hz in clock[first:end]) / 1e6:.0f} MHz"
        return Verdict("throttled", f"clock fell from {drop} for {took_s:.0f} s, more than {MAX_FREQUENCY_DROP:.0%}")
    return None


def _longest_below(clock: Clock, limit_hz: float) -> tuple[int, int]:
    """The longest stretch of samples below, from its first to the one after it: each beside its neighbours, so that a
    single wild one neither makes nor ends it."""
    rates = [hz for _, hz in clock]
    longest, first = (0, 0), 0
    for at in range(len(rates)):
        if statistics.median(rates[max(0, at - 1) : at + 2]) >= limit_hz:
            first = at + 1
        elif at + 1 - first > longest[1] - longest[0]:
            longest = first, at + 1
    return longest


def _disturbed(states: Sequence[DeviceState]) -> Verdict | None:
    loads = [state.load for state in states if state.load is not None]
    if loads and statistics.fmean(loads) > MAX_OTHER_LOAD:
        load = statistics.fmean(loads)
        return Verdict("disturbed", f"other processes used {load:.2f} cores on average, limit {MAX_OTHER_LOAD}")
    return None


def _drifting(measurement: Measurement) -> Verdict | None:
    medians = [statistics.median(block.step_us) for block in measurement.blocks]
    if len(medians) < 2:
        half = len(measurement.step_us) // 2
        medians = [statistics.median(measurement.step_us[:half]), statistics.median(measurement.step_us[half:])]
    rising = all(late >= early for early, late in zip(medians, medians[1:]))
    falling = all(late <= early for early, late in zip(medians, medians[1:]))
    change = abs(medians[-1] / medians[0] - 1) if medians[0] > 0 else 0.0
    if (rising or falling) and change > MAX_DRIFT:
        return Verdict("drifting", f"step time moved {change:.1%} in one direction, limit {MAX_DRIFT:.0%}")
    return None


def _noisy(measurement: Measurement) -> Verdict | None:
    if measurement.cv_between > MAX_CV_BETWEEN:
        return Verdict("noisy", f"{measurement.cv_between:.1%} variation between blocks, limit {MAX_CV_BETWEEN:.0%}")
    if measurement.cv_within > MAX_CV_WITHIN:
        return Verdict("noisy", f"{measurement.cv_within:.1%} variation within a block, limit {MAX_CV_WITHIN:.0%}")
    return None


def _what_was_checked(measurement: Measurement, states: Sequence[DeviceState], cores: int) -> str:
    checked = [
        name
        for name, present in (
            ("throttling", any(state.throttled is not None for state in states)),
            ("clock", any(state.frequency_hz is not None for state in states)),
            (f"other load on {cores} cores", any(state.load is not None for state in states)),
        )
        if present
    ]
    steps, blocks = len(measurement.step_us), len(measurement.blocks)
    return (
        f"{steps} steps in {blocks} blocks; variation and drift{''.join(f', {name}' for name in checked)} within limits"
    )
