"""The page of a run: what was measured, whether it counts, where its time and memory went, and all downloads.

The pictures on a run's page. Those of a recorded report are drawn once: it never changes, and they are most of what
the page costs.

The request of a run, and the conditions under which it was measured.

The top of a run's page: chips, key figures, and files to download.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.wire import RunSettings, Setting, default_of, impossible_energy, settings_of
from service.base.settings import Settings
from service.dashboard import addresses, progress_events, queries
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.charts import FULL_WIDTH, HALF_WIDTH
from service.dashboard.facts import EventFacts, RunFacts
from service.dashboard.forms import Form
from service.dashboard.pages.comparison_run import comparison_view, turns_facts, turns_figures, turns_table
from service.dashboard.pages.device_roof import seen_roof
from service.dashboard.pages.history import attempt_table, waiting_table
from service.dashboard.pages.memory import memory_drawing
from service.dashboard.pages.roofline import SeenRoof, roofline_figure
from service.dashboard.pages.run_actions import Words, about_form, acts, citation, copies
from service.dashboard.pages.run_data import evaluation_table, validations_of
from service.dashboard.pages.run_figures import kernel_figures, kernel_table, step_figure
from service.dashboard.pages.run_progress import progress_facts, sent_figure
from service.dashboard.pages.schedules import schedule_table
from service.dashboard.pages.sustained import sustained_facts, sustained_figure, sustained_figures
from service.dashboard.pages.sustained import sustained_view as curve_in
from service.dashboard.pages.timeline import timeline, timeline_note
from service.dashboard.pages.training import ENDINGS, loss_figure, training_facts, training_notice, validation_table
from service.dashboard.parts import (
    Chip,
    Fact,
    Figure,
    KeyFigure,
    class_chip,
    environment_facts,
    outcome_chip,
    state_chip,
    verdict_chip,
)
from service.dashboard.progress_events import SentStep
from service.dashboard.tables import Table, thinned
from service.store.database.memory import lasting_of
from service.store.database.models import OPEN_RUN_STATES, Run
from service.work.runs import remarks
from service.work.runs.schemas import ComparisonView, RunWarning
from service.work.runs.sustained_views import SustainedView
from service.work.runs.why import TryWhy, why


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
    """Returns the key figures of a run, by its mode."""
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
    """Returns the energy's sensor and the notes on it."""
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


SHARES = ("effect",)
"""Settings that are a share of something."""


def request_facts(run: RunFacts) -> tuple[Fact, ...]:
    device = addresses.device(run.device_id) if run.device_id else ""
    start = run.start_weights_digest
    return (
        Fact("Run", run.id),
        Fact("Device", run.device_name or run.wanted or "any that fits", device),
        Fact("Device class", run.device_class or fmt.ABSENT),
        Fact("Mode", run.mode),
        *_settings(run.settings),
        *training_facts(run),
        Fact("Batch", fmt.number(run.batch)),
        *([] if run.mode == "compare" else [Fact("Threads", fmt.number(run.threads))]),
        Fact("Data set", run.dataset_name or "synthetic", hint=run.dataset_digest or ""),
        *_validation_dataset(run),
        Fact("Starts from", fmt.short_digest(start) if start else "the bundle's weights", hint=start or ""),
        Fact("Bundle", fmt.short_digest(run.bundle_digest), addresses.bundle(run.bundle_digest)),
        Fact("Bundle size", fmt.size(run.bundle_bytes)),
        Fact("Created", f"{fmt.clock_seconds(run.created_at)} UTC"),
        Fact("Queued for", fmt.duration(_between(run.created_at, run.started_at))),
        Fact("Took", fmt.duration(_between(run.started_at, run.finished_at))),
    )


def _validation_dataset(run: RunFacts) -> tuple[Fact, ...]:
    digest = run.validation_dataset_digest
    return (Fact("Validated on", run.validation_dataset_name or "", hint=digest),) if digest else ()


def _settings(chosen: RunSettings) -> tuple[Fact, ...]:
    """Returns the settings of its user, as far as the mode takes them; the threads are told as measured."""
    kind = type(chosen)
    return tuple(
        Fact(setting.label, _setting(name, getattr(chosen, name), setting))
        for name, setting in settings_of(kind).items()
        if chosen.mode in setting.modes
        and name != "threads"
        and (setting.is_shown_unset or getattr(chosen, name) != default_of(kind, name))
    )


def _setting(name: str, value: Any, setting: Setting) -> str:
    if value is None:
        value = setting.absent or fmt.ABSENT
    if setting.is_flag:
        return "yes" if value else "no"
    if str(value).replace(".", "", 1).isdigit() and (name in SHARES or setting.metavar == "SECONDS"):
        return fmt.percent(float(value)) if name in SHARES else fmt.duration(float(value))
    return value if isinstance(value, str) else f"{value:,}"


def conditions(run: RunFacts) -> tuple[Fact, ...]:
    report = run.report
    if report is None or report.measurement is None:
        return ()
    measured = report.measurement
    cold = next((block.load_us for block in measured.blocks if block.cold), None)
    return (
        Fact("Protocol", measured.protocol),
        Fact("Counts as", _counts_as(run)),
        Fact("Warm-up", fmt.plural(measured.warmup_steps, "step")),
        Fact("Measured", fmt.plural(len(measured.step_us), "step")),
        Fact("Blocks", fmt.number(len(measured.blocks))),
        Fact("Spread within blocks", fmt.percent(measured.cv_within), hint="Coefficient of variation, median block"),
        Fact("Spread between blocks", fmt.percent(measured.cv_between), hint="Coefficient of variation of medians"),
        Fact("Step p99", fmt.latency(measured.p99_us / 1000)),
        Fact("Step mean", fmt.latency(measured.mean_us / 1000)),
        Fact("Cold load", fmt.latency(fmt.milliseconds(cold))),
        Fact("Transfer", fmt.duration(report.transfer_s)),
        Fact("Isolation level", str(report.isolation_level)),
        *(Fact(f"Board's own limit, {name}", fmt.number(value)) for name, value in (report.own_limits or {}).items()),
        Fact("Peak of its cgroup", fmt.size(report.memory.cgroup_peak_bytes), hint="Counts page cache"),
    )


def _counts_as(run: RunFacts) -> str:
    """Whether it is a benchmark, which a valid profile run of enough blocks is, and else why not."""
    if run.mode != "profile":
        return "no benchmark: another mode"
    if not run.timing_means_something:
        return "no benchmark: its times say nothing of a board"
    if run.verdict != "valid":
        return f"no benchmark: {run.verdict or 'not judged'}"
    return "a benchmark" if run.has_interval else f"no benchmark: fewer than {LEAST_BLOCKS} blocks"


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


@dataclass(frozen=True, slots=True)
class Drawings:
    """The run's drawings. Each is None, or empty, where there is nothing to draw."""

    steps: Figure | None
    loss: Figure | None
    kernels: tuple[Figure, ...]
    roofline: Figure | None
    curve: Figure | None
    states: tuple[Figure, ...]

    @property
    def size_bytes(self) -> int:
        """Approximate size of the drawings in memory."""
        figures = (self.steps, self.loss, *self.kernels, self.roofline, self.curve, *self.states)
        return sum(figure.size_bytes for figure in figures if figure is not None)


def drawings(
    session: Session,
    run: RunFacts,
    curve: SustainedView | None,
    steps: Sequence[SentStep],
    device_roof: SeenRoof | None,
) -> Drawings:
    """Draws the run's report, below the `device_roof`; while there is no report, the `steps` that were sent."""
    if run.report_key is None:
        return _drawings(session, run, curve, steps, None)

    def draw() -> Drawings:
        return _drawings(session, run, curve, (), device_roof)

    return lasting_of(session).recall(("drawings", *run.report_key, device_roof), draw, lambda drawn: drawn.size_bytes)


def _drawings(
    session: Session,
    run: RunFacts,
    curve: SustainedView | None,
    steps: Sequence[SentStep],
    device_roof: SeenRoof | None,
) -> Drawings:
    report, here = run.report, addresses.run(run.id)
    measured = report.measurement if report else None
    losses = report.losses if report else tuple(step.loss for step in steps)
    loss_width = HALF_WIDTH if measured else FULL_WIDTH
    loss = loss_figure(
        losses, validations_of(session, run), f"{here}/losses", loss_width, is_synthetic=run.dataset_digest is None
    )
    steps_width = HALF_WIDTH if loss else FULL_WIDTH
    return Drawings(
        steps=(
            step_figure(measured, run.interval_ms, f"{here}/steps", steps_width)
            if measured
            else sent_figure(steps, here)
        ),
        loss=loss,
        kernels=kernel_figures(report.kernels if report else ()),
        roofline=roofline_figure(report.kernels, device_roof, f"{here}/kernels.json")
        if report and device_roof
        else None,
        curve=sustained_figure(curve, f"{here}/windows") if curve else None,
        states=timeline(report, here) if report else (),
    )


@dataclass(frozen=True, slots=True)
class RunPage:
    """The contents of a run's page."""

    run: RunFacts
    chips: tuple[Chip, ...]
    figures: tuple[KeyFigure, ...]
    facts: tuple[Fact, ...]
    conditions: tuple[Fact, ...]
    environment: tuple[Fact, ...]
    steps: Figure | None
    loss: Figure | None
    training_notice: str
    remarks: list[RunWarning]
    """Remarks on what is odd about its data."""
    validations: Table | None
    evaluation: Table | None
    kernel_figures: tuple[Figure, ...]
    kernels: Table | None
    schedules: Table | None
    turns: Table | None
    curve: Figure | None
    find: str
    """Part of the names of the kernels that are shown."""
    roofline: Figure | None
    memory: Figure | None
    states: tuple[Figure, ...]
    states_note: str
    message: str
    """Why it is where it is."""
    waiting: Table | None
    progress: tuple[Fact, ...]
    """Progress of an open run."""
    log: tuple[EventFacts, ...]
    tries: tuple[TryWhy, ...]
    attempts: Table
    downloads: tuple[Fact, ...]
    is_open: bool
    acts: tuple[Action, ...]
    about: Form | None
    copies: tuple[Words, ...]
    citation: tuple[Words, ...]

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """(anchor, label) of the page's parts, as far as it has them."""
        parts = (
            ("turns", "Turns", self.turns),
            ("step-latency", "Latency", self.steps),
            ("sustained-curve", "Sustained", self.curve),
            ("loss-curve", "Loss", self.loss),
            ("device-over-time", "Device", self.states),
            ("kernel-times", "Kernels", self.kernels),
            ("roofline", "Roofline", self.roofline),
            ("memory-plan", "Memory", self.memory),
            ("request", "Request", True),
            ("measurement-conditions", "Conditions", self.conditions or self.environment),
            ("run-history", "History", True),
            ("log", "Log", self.log),
            ("about", "Tags and note", self.about),
            ("take-along", "Copy and cite", True),
        )
        return tuple((anchor, label) for anchor, label, part in parts if part)

    @property
    def announcement(self) -> str:
        """Text that a screen reader reads out when it changes: not every step, only every tenth of the run."""
        if not self.is_open or not self.run.steps:
            return self.run.state
        return f"{self.run.state}, {10 * (10 * self.run.steps_done // self.run.steps)}% of the steps done"


def run_page(
    session: Session, settings: Settings, run_id: str, sort: str = "", *, find: str = "", form: Form | None = None
) -> RunPage | None:
    """Makes the page of a run; None when there is no such run. `sort` orders the per-kernel table, of which those are
    shown that have `find` in their names. `form`: name, tags and note as they were typed, where that was refused.
    """
    run = queries.run(session, run_id)
    if run is None:
        return None
    report = run.report
    row = session.get_one(Run, run_id)
    explanation = why(session, settings, row)
    turns, curve = comparison_view(session, run), curve_in(run)
    is_open = run.state in OPEN_RUN_STATES
    steps = progress_events.steps(session, run.id) if report is None else []
    device_roof = seen_roof(session, run)
    drawn = drawings(session, run, curve, steps, device_roof)
    validations = validations_of(session, run)
    kernels = report.kernels if report else ()
    return RunPage(
        run=run,
        chips=chips(run),
        figures=key_figures(run, turns, curve),
        facts=request_facts(run),
        conditions=turns_facts(turns) if turns else sustained_facts(curve) if curve else conditions(run),
        environment=environment_facts(run.environment),
        steps=drawn.steps,
        loss=drawn.loss,
        training_notice=training_notice(report.training if report else None),
        remarks=remarks.of_run(session, row),
        validations=thinned(validation_table(validations)) if validations else None,
        evaluation=evaluation_table(run) if report and report.evaluation_before else None,
        kernel_figures=drawn.kernels,
        kernels=_named(kernel_table(kernels, device_roof.roof if device_roof else None, sort), find)
        if kernels
        else None,
        schedules=schedule_table(report.tuning) if report and report.tuning else None,
        turns=turns_table(turns) if turns else None,
        curve=drawn.curve,
        find=find,
        roofline=drawn.roofline,
        memory=memory_drawing(session, run.bundle_digest, f"{addresses.run(run.id)}/memory"),
        states=drawn.states,
        states_note=timeline_note(report) if report and drawn.states else "",
        message=explanation.message,
        waiting=waiting_table(explanation.waiting) if explanation.waiting else None,
        progress=progress_facts(run, explanation.waiting, steps) if is_open else (),
        log=tuple(progress_events.log(session, run.id)),
        tries=tuple(explanation.tries),
        attempts=attempt_table(explanation),
        downloads=downloads(run),
        is_open=is_open,
        acts=acts(run),
        about=form or about_form(run),
        copies=copies(row, settings.public_url),
        citation=citation(session, run),
    )


def _named(kernels: Table, find: str) -> Table:
    """Returns the table with only those kernels shown whose names contain `find`."""
    words = find.casefold()
    rows = (replace(row, is_hidden=words not in str(row.values["kernel"]).casefold()) for row in kernels.rows)
    return replace(kernels, rows=tuple(rows)) if words else kernels
