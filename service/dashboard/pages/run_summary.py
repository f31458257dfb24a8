"""What a run's page begins with: chips, key figures, and files to download."""

from __future__ import annotations

from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.wire import impossible_energy
from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.facts import RunFacts
from service.dashboard.pages.sustained import sustained_figures
from service.dashboard.pages.training import ENDINGS
from service.dashboard.pages.turns import turns_figures
from service.dashboard.parts import Chip, Fact, KeyFigure, class_chip, outcome_chip, state_chip, verdict_chip
from service.work.runs.schemas import ComparisonView
from service.work.runs.sustained_views import SustainedView


def chips(found: RunFacts) -> tuple[Chip, ...]:
    rule = found.report.verdict.rule if found.report and found.report.verdict else ""
    found_chips = [state_chip(found.state)]
    if found.training_outcome:
        found_chips.append(outcome_chip(found.training_outcome, f"Training: {ENDINGS[found.training_outcome]}"))
    if found.verdict:
        found_chips.append(verdict_chip(found.verdict, rule))
    if found.measurement_class:
        found_chips.append(class_chip(found.measurement_class))
    return tuple(found_chips)


def key_figures(found: RunFacts, turns: ComparisonView | None, curve: SustainedView | None) -> tuple[KeyFigure, ...]:
    """By what it was made for."""
    if turns:
        return turns_figures(turns)
    if curve:
        return sustained_figures(curve)
    return _usual_figures(found) if found.report else ()


def _usual_figures(found: RunFacts) -> tuple[KeyFigure, ...]:
    rss = "not told when emulated" if not found.timing_means_something else "largest VmHWM"
    figures = [
        KeyFigure("Step median", *fmt.latency_parts(found.median_ms), _interval(found)),
        KeyFigure("Step p90", *fmt.latency_parts(found.p90_ms)),
        KeyFigure("Throughput", fmt.rounded(found.samples_per_second), "samples/s", f"batch {found.batch}"),
        KeyFigure("Arena", *fmt.size_parts(found.arena_bytes), "as planned"),
        KeyFigure("Peak RSS", *fmt.size_parts(found.peak_rss_bytes), rss),
        KeyFigure("Energy per step", fmt.number(found.energy_mj, 1), "mJ", _sensor(found)),
    ]
    if found.loss_last is not None:
        first = f"of the last step; first {fmt.loss(found.loss_first)}"
        figures.append(KeyFigure("Last loss", fmt.loss(found.loss_last), "", first))
    if found.accuracy_after is not None or found.accuracy_before is not None:
        last = found.accuracy_after if found.accuracy_after is not None else found.accuracy_before
        was = f"from {fmt.percent(found.accuracy_before)}" if found.accuracy_after is not None else "before training"
        figures.append(KeyFigure("Accuracy", fmt.percent(last).removesuffix("%"), "%", was))
    return tuple(figures)


def _interval(found: RunFacts) -> str:
    """Of the median, or why it stands alone; empty where nothing was measured."""
    if found.median_ms is not None and found.interval_ms is not None:
        return f"{fmt.latency_span(found.median_ms, found.interval_ms)} (95%)"
    count = len(found.block_us)
    return f"no interval: {fmt.plural(count, 'block')}, {LEAST_BLOCKS} are needed" if count else ""


def _sensor(found: RunFacts) -> str:
    """The energy's sensor and the notes on it."""
    report = found.report
    if report is None or (report.energy is None and not report.energy_notes):
        return "no sensor"
    impossible = impossible_energy(report, found.device_class or "")
    sensor = report.energy.sensor if report.energy else ""
    return "; ".join(filter(None, [f"left out: {impossible}" if impossible else sensor, *(report.energy_notes or ())]))


def downloads(found: RunFacts) -> tuple[Fact, ...]:
    here = addresses.run(found.id)
    files: list[Fact] = []
    if found.report is not None:
        files.append(Fact("Report", "JSON", addresses.report(found.id)))
        if found.report.sustained:
            files.append(Fact("Windows", "CSV", f"{here}/windows.csv"))
        if found.report.measurement:
            files.append(Fact("Steps", "CSV", f"{here}/steps.csv"))
        if found.report.kernels:
            files.append(Fact("Kernels", "CSV", f"{here}/kernels.csv"))
        if found.report.losses:
            files.append(Fact("Losses", "CSV", f"{here}/losses.csv"))
        if found.report.training and found.report.training.validations:
            files.append(Fact("Validations", "CSV", f"{here}/validations.csv"))
    if found.trained_weights_digest:
        files.append(
            _file("Trained weights", found.trained_weights_bytes, addresses.weights(found.id), found.weights_removed_at)
        )
    files.append(_file("Bundle", found.bundle_bytes, addresses.bundle(found.bundle_digest), found.bundle_removed_at))
    if found.events_removed_at is not None:
        files.append(_file("Events", None, "", found.events_removed_at))
    return tuple(files)


def _file(label: str, size_bytes: int | None, href: str, removed_at: float | None) -> Fact:
    if removed_at is not None:
        return Fact(label, f"removed by retention on {fmt.clock(removed_at)}")
    return Fact(label, fmt.size(size_bytes), href)
