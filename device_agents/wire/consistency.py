"""Figures of one report that contradict each other, whatever device it is from. Standard library only.

| figure | must be |
|---|---|
| `measurement.step_us` | the samples of its blocks, in order |
| `measurement.median_us` | the median of the blocks' medians |
| `measurement.mean_us`, `cv_within`, `cv_between`, `samples_per_second` | what the samples come to |
| `measurement.p90_us`, `p99_us`, `interval_low_us`, `interval_high_us` | within the samples, the lower one first |
| `sustained.windows` together | the same; and their steps as many as fit (`sustained_report.py`) |
| all samples together | the time that the binary's processes ran (`run_s`), at most |

The interval of `bench-protocol/2` must be the one that its blocks come to, and none where they are too few. Who
computed them as their protocol says passes; a float's last digits and another way to find a percentile do too.
"""

import statistics
from collections.abc import Sequence

from device_agents.figures.one_run import run_interval
from device_agents.wire.codec import ProtocolError
from device_agents.wire.report import FIRST_PROTOCOL, Measurement, Report
from device_agents.wire.sustained_report import Sustained

TOLERANCE = 0.01
"""Relative."""
CV_SLACK = 0.002
"""Absolute: of variations, which are near zero."""
CLOCK_SLACK = 1.05
CLOCK_SLACK_S = 1.0
"""Two stop-watches of one machine differ by no more."""
ATTEMPT_SLACK_S = 300.0
"""A board's wall clock may be set while a run goes on."""


def check_consistent(report: Report) -> None:
    """Refuses a measurement that its own samples contradict. Raises: `ProtocolError` naming the field."""
    if report.comparison is not None:
        times = [us for process in report.comparison.processes for us in process.step_us]
        _check_passed("comparison", times, report.run_s)
    if report.sustained is not None:
        _check_sustained(report.sustained, report)
    measurement = report.measurement
    if measurement is None:
        return
    samples = measurement.step_us
    if not samples:
        raise ProtocolError("measurement.step_us", "a measurement of no step")
    blocks = [block.step_us for block in measurement.blocks if block.step_us] or [samples]
    if tuple(us for block in blocks for us in block) != tuple(samples):
        raise ProtocolError("measurement.step_us", "not the samples of its blocks")
    _check_passed("measurement.step_us", samples, report.run_s)
    _check_statistics(measurement, blocks)


def _check_passed(where: str, samples: Sequence[float], run_s: float) -> None:
    took_s = sum(samples) * 1e-6
    if took_s > run_s * CLOCK_SLACK + CLOCK_SLACK_S:
        message = f"{len(samples):,} steps of {took_s:,.1f} s together, in processes that ran for {run_s:,.1f} s"
        raise ProtocolError(where, message)


def _check_sustained(sustained: Sustained, report: Report) -> None:
    """Checks that the run's windows lie within the time of its process, and of its attempt."""
    took_s = sustained.lasted_s
    if took_s > report.run_s * CLOCK_SLACK + CLOCK_SLACK_S:
        message = (
            f"{len(sustained.windows):,} of {took_s:,.1f} s together, in a process that ran for {report.run_s:,.1f} s"
        )
        raise ProtocolError("sustained.windows", message)
    slack_s = ATTEMPT_SLACK_S + took_s * (CLOCK_SLACK - 1)
    if not report.started_at - slack_s <= sustained.began_at <= report.finished_at - took_s + slack_s:
        raise ProtocolError("sustained.began_at", "not within the time of the attempt")


def _check_statistics(measurement: Measurement, blocks: Sequence[Sequence[float]]) -> None:
    samples, medians = measurement.step_us, [statistics.median(block) for block in blocks]
    median_us = statistics.median(medians)
    _check_near("median_us", measurement.median_us, median_us)
    mean_us = statistics.fmean(samples)
    _check_near("mean_us", measurement.mean_us, mean_us)
    _check_near("samples_per_second", measurement.samples_per_second, measurement.batch / (mean_us * 1e-6))
    _check_near("cv_within", measurement.cv_within, statistics.median(map(variation, blocks)), CV_SLACK)
    _check_near("cv_between", measurement.cv_between, variation(medians), CV_SLACK)
    _check_interval(measurement, medians)
    pairs = [("p90_us", "p99_us")]
    if measurement.protocol == FIRST_PROTOCOL and measurement.interval_low_us is not None:
        pairs.append(("interval_low_us", "interval_high_us"))
    for low, high in pairs:
        least, most = getattr(measurement, low), getattr(measurement, high)
        bounds = min(samples) * (1 - TOLERANCE), max(samples) * (1 + TOLERANCE)
        if not bounds[0] <= least <= most <= bounds[1]:
            message = f"{least:,.6g} and {high} {most:,.6g}; the samples are {min(samples):,.6g} to {max(samples):,.6g}"
            raise ProtocolError(f"measurement.{low}", message)


def _check_interval(measurement: Measurement, medians: Sequence[float]) -> None:
    if measurement.protocol == FIRST_PROTOCOL:
        return
    interval = run_interval(medians)
    reported = measurement.interval_low_us, measurement.interval_high_us
    if interval is None or None in reported:
        if (interval is None) != (None in reported):
            message = f"{'an' if interval is None else 'no'} interval of {len(medians)} blocks"
            raise ProtocolError("measurement.interval_low_us", message)
        return
    for name, reported_us, computed_us in zip(("interval_low_us", "interval_high_us"), reported, interval):
        _check_near(name, reported_us or 0.0, computed_us)


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if mean > 0 else 0.0


def _check_near(name: str, reported: float, computed: float, slack: float = 0.0) -> None:
    if not abs(reported - computed) <= TOLERANCE * abs(computed) + slack:
        raise ProtocolError(f"measurement.{name}", f"{reported:,.6g}, and its samples come to {computed:,.6g}")
