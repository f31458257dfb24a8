"""The top of a run's page: chips, key figures, and files to download."""

from __future__ import annotations

from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.wire import impossible_energy
from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.facts import RunFacts
from service.dashboard.pages.comparison_run import turns_figures
from service.dashboard.pages.sustained import sustained_figures
from service.dashboard.pages.training import ENDINGS
from service.dashboard.parts import Chip, Fact, KeyFigure, class_chip, outcome_chip, state_chip, verdict_chip
from service.work.runs.schemas import ComparisonView
from service.work.runs.sustained_views import SustainedView


def chips(run: RunFacts) -> tuple[Chip, ...]:
    rule = run.report.verdict.rule if run.report and run.report.verdict else ""
    found_chips = [state_chip(run.state)]
    if run.training_outcome:
        found_chips.append(outcome_chip(run.training_outcome, f"Training: {ENDINGS[run.training_outcome]}"))
    if run.verdict:
        found_chips.append(verdict_chip(run.verdict, rule))
    if run.measurement_class:
        found_chips.append(class_chip(run.measurement_class))
    return tuple(found_chips)


def key_figures(run: RunFacts, turns: ComparisonView | None, curve: SustainedView | None) -> tuple[KeyFigure, ...]:
    """By what it was made for."""
    if turns:
        return turns_figures(turns)
    if curve:
        return sustained_figures(curve)
    return _usual_figures(run) if run.report else ()


def _usual_figures(run: RunFacts) -> tuple[KeyFigure, ...]:
    rss = "not told when emulated" if not run.timing_means_something else "largest VmHWM"
    figures = [
        KeyFigure("Step median", *fmt.latency_parts(run.median_ms), _interval(run)),
        KeyFigure("Step p90", *fmt.latency_parts(run.p90_ms)),
        KeyFigure("Throughput", fmt.rounded(run.samples_per_second), "samples/s", f"batch {run.batch}"),
        KeyFigure("Arena", *fmt.size_parts(run.arena_bytes), "as planned"),
        KeyFigure("Peak RSS", *fmt.size_parts(run.peak_rss_bytes), rss),
        KeyFigure("Energy per step", fmt.number(run.energy_mj, 1), "mJ", _sensor(run)),
    ]
    if run.loss_last is not None:
        first = f"of the last step; first {fmt.loss(run.loss_first)}"
        figures.append(KeyFigure("Last loss", fmt.loss(run.loss_last), "", first))
    if run.accuracy_after is not None or run.accuracy_before is not None:
        last = run.accuracy_after if run.accuracy_after is not None else run.accuracy_before
        was = f"from {fmt.percent(run.accuracy_before)}" if run.accuracy_after is not None else "before training"
        figures.append(KeyFigure("Accuracy", fmt.percent(last).removesuffix("%"), "%", was))
    return tuple(figures)


def _interval(run: RunFacts) -> str:
    """Returns the interval of the median, or why the median stands alone; empty where nothing was measured."""
    if run.median_ms is not None and run.interval_ms is not None:
        return f"{fmt.latency_span(run.median_ms, run.interval_ms)} (95%)"
    count = len(run.block_us)
    return f"no interval: {fmt.plural(count, 'block')}, {LEAST_BLOCKS} are needed" if count else ""


def _sensor(run: RunFacts) -> str:
    """The energy's sensor and the notes on it."""
    report = run.report
    if report is None or (report.energy is None and not report.energy_notes):
        return "no sensor"
    impossible = impossible_energy(report, run.device_class or "")
    sensor = report.energy.sensor if report.energy else ""
    return "; ".join(filter(None, [f"left out: {impossible}" if impossible else sensor, *(report.energy_notes or ())]))


def downloads(run: RunFacts) -> tuple[Fact, ...]:
    here = addresses.run(run.id)
    files: list[Fact] = []
    if run.report is not None:
        files.append(Fact("Report", "JSON", addresses.report(run.id)))
        if run.report.sustained:
            files.append(Fact("Windows", "CSV", f"{here}/windows.csv"))
        if run.report.measurement:
            files.append(Fact("Steps", "CSV", f"{here}/steps.csv"))
        if run.report.kernels:
            files.append(Fact("Kernels", "CSV", f"{here}/kernels.csv"))
        if run.report.losses:
            files.append(Fact("Losses", "CSV", f"{here}/losses.csv"))
        if run.report.training and run.report.training.validations:
            files.append(Fact("Validations", "CSV", f"{here}/validations.csv"))
    if run.trained_weights_digest:
        files.append(
            _file("Trained weights", run.trained_weights_bytes, addresses.weights(run.id), run.weights_removed_at)
        )
    files.append(_file("Bundle", run.bundle_bytes, addresses.bundle(run.bundle_digest), run.bundle_removed_at))
    if run.events_removed_at is not None:
        files.append(_file("Events", None, "", run.events_removed_at))
    return tuple(files)


def _file(label: str, size_bytes: int | None, href: str, removed_at: float | None) -> Fact:
    if removed_at is not None:
        return Fact(label, f"removed by retention on {fmt.clock(removed_at)}")
    return Fact(label, fmt.size(size_bytes), href)
