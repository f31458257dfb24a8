"""The figures of a report that lists and comparisons use, copied into the run's row."""

from __future__ import annotations

from device_agents.wire import DIVERGED, REAL_CLASSES, Report, impossible_energy
from service.store.database.models import Run

MOST = (1 << 31) - 1
"""Largest value of a column of plain integers."""


def _training_outcome(report: Report) -> str | None:
    """Returns how training ended. An older agent reports no outcomes: it reports training that diverged as a run that
    failed.
    """
    if report.training is not None:
        return report.training.outcome
    return "diverged" if report.mode == "train" and report.outcome.code == DIVERGED else None


def _verdict(report: Report) -> str | None:
    """Returns the verdict. An older agent judges an emulator's times as if they were a board's, so those become
    `function`.
    """
    if report.verdict is None:
        return None
    return report.verdict.kind if report.measurement_class in REAL_CLASSES else "function"


def summarise(run: Run, report: Report, device_class: str) -> None:
    """Fills the summary columns of `run`, executed by a device of this class. What was not measured stays null."""
    run.measurement_class = report.measurement_class
    run.verdict = _verdict(report)
    if report.measurement is not None:
        run.batch = min(report.measurement.batch, MOST)
        run.median_us, run.p90_us = report.measurement.median_us, report.measurement.p90_us
        run.samples_per_second = report.measurement.samples_per_second
    run.arena_bytes, run.peak_rss_bytes = report.memory.arena_bytes, report.memory.peak_rss_bytes
    is_possible = report.energy is not None and not impossible_energy(report, device_class)
    run.energy_per_step_mj = report.energy.per_step_mj if report.energy is not None and is_possible else None
    run.training_outcome = _training_outcome(report)
    if report.losses:
        run.loss_first, run.loss_last = report.losses[0], report.losses[-1]
        run.steps_done = max(run.steps_done, len(report.losses))
    if report.evaluation_before is not None:
        run.accuracy_before = report.evaluation_before.accuracy
    if report.evaluation_after is not None:
        run.accuracy_after = report.evaluation_after.accuracy
    if report.weights is not None:
        run.trained_weights_digest, run.trained_weights_bytes = report.weights.digest, report.weights.size_bytes
