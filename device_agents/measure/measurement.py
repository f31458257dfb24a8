"""From raw step times and device states to the figures of a report: pure functions, `bench-protocol/2`.

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
    median_us = statistics.median(medians)
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
        mean_us=statistics.fmean(samples),
        samples_per_second=batch / (median_us * 1e-6) if median_us > 0 else 0.0,
        cv_within=statistics.median(variation(block.step_us) for block in blocks),
        cv_between=variation(medians),
        warmup_steps=warmup_steps,
        threads=threads,
        protocol=BENCH_PROTOCOL,
    )


def judge(
    measurement: Measurement, states: Sequence[DeviceState], *, cores: int, is_emulated: bool = False
) -> Verdict:  # fmt: skip
    """Whether the measurement counts; the first rule that fires, in the order of the farm's list."""
    if is_emulated:
        return Verdict("function", "the steps ran to their end; emulated times say nothing of a board")
    if len(measurement.step_us) < MIN_STEPS:
        return Verdict("noisy", f"{len(measurement.step_us)} measured steps, at least {MIN_STEPS} are needed")
    return (
        _throttled(states)
        or _disturbed(states)
        or _drifting(measurement)
        or _noisy(measurement)
        or Verdict("valid", _what_was_checked(measurement, states, cores))
    )


def _throttled(states: Sequence[DeviceState]) -> Verdict | None:
    if any(state.throttled for state in states):
        count = sum(bool(state.throttled) for state in states)
        return Verdict("throttled", f"the board said so in {count} of {len(states)} samples")
    frequencies = [state.frequency_hz for state in states if state.frequency_hz]
    if len(frequencies) < 8:
        return None
    quarter = len(frequencies) // 4
    first, last = statistics.median(frequencies[:quarter]), statistics.median(frequencies[-quarter:])
    if last < first * (1 - MAX_FREQUENCY_DROP):
        drop = f"{first / 1e6:.0f} to {last / 1e6:.0f} MHz"
        return Verdict("throttled", f"clock fell from {drop}, more than {MAX_FREQUENCY_DROP:.0%}")
    return None


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
    known = [
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
        f"{steps} steps in {blocks} blocks; variation and drift{''.join(f', {name}' for name in known)} within limits"
    )
