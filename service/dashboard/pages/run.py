"""One run: what was measured, whether it counts, where its time and memory went, and everything to download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from device_agents.figures.one_run import LEAST_BLOCKS
from device_agents.wire import RunSettings, Setting, Validation, default_of, settings_of
from service.dashboard import addresses, memory_plan, queries
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, HALF_WIDTH
from service.dashboard.facts import RunFacts
from service.dashboard.pages.history import attempt_table, waiting_facts, waiting_table
from service.dashboard.pages.memory import memory_figure, memory_table
from service.dashboard.pages.run_figures import (
    kernel_figures,
    kernel_table,
    state_figures,
    state_table,
    step_figure,
    step_table,
)
from service.dashboard.pages.schedules import schedule_table
from service.dashboard.pages.sustained import found_in as curve_in
from service.dashboard.pages.sustained import sustained_facts, sustained_figure, sustained_figures, window_table
from service.dashboard.pages.training import (
    ENDINGS,
    loss_figure,
    loss_table,
    training_facts,
    training_notice,
    validation_table,
)
from service.dashboard.pages.turns import found_in, turns_facts, turns_figures, turns_table
from service.dashboard.parts import Chip, Fact, Figure, KeyFigure, class_chip, outcome_chip, state_chip, verdict_chip
from service.dashboard.tables import Column, Row, Table, table, thinned
from service.database.models import OPEN_RUN_STATES, Run
from service.runs.schemas import ComparisonView
from service.runs.sustained_views import SustainedView
from service.runs.why import TryWhy, why
from service.settings import Settings

EVALUATION_COLUMNS = (
    Column("when", "When", primary=True),
    Column("samples", "Samples", "number"),
    Column("loss", "Mean loss", "number", "", 4),
    Column("accuracy_percent", "Accuracy", "number", "%", 1),
)
TABLES = (
    "kernels",
    "schedules",
    "turns",
    "windows",
    "steps",
    "losses",
    "validations",
    "memory",
    "state",
    "attempts",
    "waiting",
    "evaluation",
)


@dataclass(frozen=True, slots=True)
class RunPage:
    """What the page of one run shows."""

    run: RunFacts
    chips: tuple[Chip, ...]
    figures: tuple[KeyFigure, ...]
    facts: tuple[Fact, ...]
    conditions: tuple[Fact, ...]
    environment: tuple[Fact, ...]
    steps: Figure | None
    loss: Figure | None
    training_notice: str
    validations: Table | None
    evaluation: Table | None
    kernel_figures: tuple[Figure, ...]
    kernels: Table | None
    schedules: Table | None
    turns: Table | None
    curve: Figure | None
    memory: Figure | None
    states: tuple[Figure, ...]
    says: str
    """Why it is where it is."""
    waiting: Table | None
    queue: tuple[Fact, ...]
    tries: tuple[TryWhy, ...]
    attempts: Table
    downloads: tuple[Fact, ...]
    is_open: bool

    @property
    def announcement(self) -> str:
        """What a screen reader is told when it changes: not every step, only every tenth of the run."""
        if not self.is_open or not self.run.steps:
            return self.run.state
        return f"{self.run.state}, {10 * (10 * self.run.steps_done // self.run.steps)}% of the steps done"


def run_page(session: Session, settings: Settings, run_id: str, sort: str) -> RunPage | None:
    """One run, or None when there is no such run. `sort` orders the per-kernel table."""
    found = queries.run(session, run_id)
    if found is None:
        return None
    report, here = found.report, addresses.run(found.id)
    said = why(session, settings, session.get_one(Run, run_id))
    built = queries.bundle(session, found.bundle_digest)
    measured = report.measurement if report else None
    turns, curve = found_in(session, found), curve_in(found)
    is_open = found.state in OPEN_RUN_STATES
    losses = report.losses if report else tuple(queries.step_losses(session, found.id))
    validations = _validations(session, found)
    kernels = report.kernels if report else ()
    loss_width = HALF_WIDTH if measured else FULL_WIDTH
    loss = loss_figure(losses, validations, f"{here}/losses", loss_width, is_synthetic=found.dataset_digest is None)
    steps_width = HALF_WIDTH if loss else FULL_WIDTH
    return RunPage(
        run=found,
        chips=_chips(found),
        figures=_figures(found, turns, curve),
        facts=_facts(found),
        conditions=turns_facts(turns) if turns else sustained_facts(curve) if curve else _conditions(found),
        environment=tuple(Fact(name, value) for name, value in sorted(found.environment.items())),
        steps=step_figure(measured, found.interval_ms, f"{here}/steps", steps_width) if measured else None,
        loss=loss,
        training_notice=training_notice(report.training if report else None),
        validations=thinned(validation_table(validations)) if validations else None,
        evaluation=evaluation_table(found) if report and report.evaluation_before else None,
        kernel_figures=kernel_figures(kernels),
        kernels=kernel_table(kernels, sort) if kernels else None,
        schedules=schedule_table(report.tuning) if report and report.tuning else None,
        turns=turns_table(turns) if turns else None,
        curve=sustained_figure(curve, f"{here}/windows") if curve else None,
        memory=memory_figure(built, f"{here}/memory") if built else None,
        states=state_figures(report.device_states, f"{here}/state") if report else (),
        says=said.says,
        waiting=waiting_table(said.waiting) if said.waiting else None,
        queue=waiting_facts(said.waiting) if said.waiting else (),
        tries=tuple(said.tries),
        attempts=attempt_table(said),
        downloads=_downloads(found),
        is_open=is_open,
    )


def run_data(session: Session, settings: Settings, run_id: str, name: str, sort: str) -> Table | None:
    """One of the run's tables by name, all of its rows; None when there is no such run or table."""
    found = queries.run(session, run_id)
    if found is None or name not in TABLES:
        return None
    if name in ("attempts", "waiting"):
        said = why(session, settings, session.get_one(Run, run_id))
        waiting = waiting_table(said.waiting) if said.waiting else None
        return attempt_table(said) if name == "attempts" else waiting
    if name == "memory":
        built = queries.bundle(session, found.bundle_digest)
        plan = memory_plan.arena_plan(built) if built else None
        return memory_table(plan) if plan else None
    if name == "losses":
        training = found.report.training if found.report else None
        losses = found.report.losses if found.report else queries.step_losses(session, run_id, limit=None)
        return loss_table(losses, training.learning_rates if training else ())
    if name == "validations":
        return validation_table(_validations(session, found))
    if name == "windows":
        curve = curve_in(found)
        return window_table(curve) if curve else None
    if name == "turns":
        turns = found_in(session, found)
        return turns_table(turns) if turns else None
    return _report_table(found, name, sort)


def _validations(session: Session, found: RunFacts) -> Sequence[Validation]:
    if found.report is None:
        return queries.step_validations(session, found.id)
    return found.report.training.validations if found.report.training else ()


def _report_table(found: RunFacts, name: str, sort: str) -> Table | None:
    report = found.report
    if report is None:
        return None
    if name == "kernels":
        return kernel_table(report.kernels, sort)
    if name == "schedules":
        return schedule_table(report.tuning) if report.tuning else None
    if name == "steps":
        return step_table(report.measurement) if report.measurement else None
    return state_table(report.device_states) if name == "state" else evaluation_table(found)


def evaluation_table(found: RunFacts) -> Table:
    """Loss and accuracy over the data set, before and after."""
    report = found.report
    pairs = (("before", report.evaluation_before), ("after", report.evaluation_after)) if report else ()
    rows = [
        Row(
            {
                "when": when if found.mode == "train" else "as given",
                "samples": result.samples,
                "loss": result.loss,
                "accuracy_percent": None if result.accuracy is None else 100 * result.accuracy,
            }
        )
        for when, result in pairs
        if result is not None
    ]
    return table("evaluation", "Evaluation over the data set", EVALUATION_COLUMNS, rows)


def _chips(found: RunFacts) -> tuple[Chip, ...]:
    rule = found.report.verdict.rule if found.report and found.report.verdict else ""
    chips = [state_chip(found.state)]
    if found.training_outcome:
        chips.append(outcome_chip(found.training_outcome, f"Training: {ENDINGS[found.training_outcome]}"))
    if found.verdict:
        chips.append(verdict_chip(found.verdict, rule))
    if found.measurement_class:
        chips.append(class_chip(found.measurement_class))
    return tuple(chips)


def _figures(found: RunFacts, turns: ComparisonView | None, curve: SustainedView | None) -> tuple[KeyFigure, ...]:
    """By what it was made for."""
    if turns:
        return turns_figures(turns)
    if curve:
        return sustained_figures(curve)
    return _key_figures(found) if found.report else ()


def _key_figures(found: RunFacts) -> tuple[KeyFigure, ...]:
    low_high = found.interval_ms
    rss = "not told when emulated" if not found.timing_means_something else "largest VmHWM"
    figures = [
        KeyFigure("Step median", *fmt.latency_parts(found.median_ms, low_high), _interval(found)),
        KeyFigure("Step p90", *fmt.latency_parts(found.p90_ms)),
        KeyFigure("Throughput", _rate(found.samples_per_second), "samples/s", f"batch {found.batch}"),
        KeyFigure("Arena", fmt.number(fmt.mebibytes(found.arena_bytes), 2), "MiB", "as planned"),
        KeyFigure("Peak RSS", fmt.number(fmt.mebibytes(found.peak_rss_bytes), 2), "MiB", rss),
        KeyFigure("Energy per step", fmt.number(found.energy_mj, 1), "mJ", _sensor(found)),
    ]
    if found.loss_last is not None:
        figures.append(KeyFigure("Loss", fmt.number(found.loss_last, 4), "", f"from {fmt.number(found.loss_first, 4)}"))
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


def _rate(value: float | None) -> str:
    return fmt.number(value, 1 if value is not None and value < 1000 else 0)


def _sensor(found: RunFacts) -> str:
    if found.report and found.report.energy:
        return found.report.energy.sensor
    return "no sensor"


def _facts(found: RunFacts) -> tuple[Fact, ...]:
    device = addresses.device(found.device_id) if found.device_id else ""
    start = found.start_weights_digest
    return (
        Fact("Run", found.id),
        Fact("Device", found.device_name or found.wanted or "any that fits", device),
        Fact("Device class", found.device_class or fmt.ABSENT),
        Fact("Mode", found.mode),
        *_settings(found.settings),
        *training_facts(found),
        Fact("Batch", fmt.number(found.batch)),
        *([] if found.mode == "compare" else [Fact("Threads", fmt.number(found.threads))]),
        Fact("Data set", found.dataset_name or "synthetic", hint=found.dataset_digest or ""),
        *_validation_dataset(found),
        Fact("Starts from", fmt.short_digest(start) if start else "the bundle's weights", hint=start or ""),
        Fact("Bundle", fmt.short_digest(found.bundle_digest), addresses.bundle(found.bundle_digest)),
        Fact("Bundle size", fmt.size(found.bundle_bytes)),
        Fact("Created", f"{fmt.clock_seconds(found.created_at)} UTC"),
        Fact("Queued for", fmt.duration(_between(found.created_at, found.started_at))),
        Fact("Took", fmt.duration(_between(found.started_at, found.finished_at))),
    )


def _validation_dataset(found: RunFacts) -> tuple[Fact, ...]:
    digest = found.validation_dataset_digest
    return (Fact("Validated on", found.validation_dataset_name or "", hint=digest),) if digest else ()


def _settings(chosen: RunSettings) -> tuple[Fact, ...]:
    """What its user set, as far as the mode takes it; the threads are told as measured."""
    kind = type(chosen)
    return tuple(
        Fact(known.label, _setting(getattr(chosen, name), known))
        for name, known in settings_of(kind).items()
        if chosen.mode in known.modes
        and name != "threads"
        and (known.is_shown_unset or getattr(chosen, name) != default_of(kind, name))
    )


def _setting(value: Any, known: Setting) -> str:
    if value is None:
        return known.absent or fmt.ABSENT
    return ("yes" if value else "no") if known.is_flag else value if known.choices else f"{value:,}"


def _conditions(found: RunFacts) -> tuple[Fact, ...]:
    report = found.report
    if report is None or report.measurement is None:
        return ()
    measured = report.measurement
    cold = next((block.load_us for block in measured.blocks if block.cold), None)
    return (
        Fact("Protocol", measured.protocol),
        Fact("Counts as", _counts_as(found)),
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
        Fact("cgroup peak", fmt.size(report.memory.cgroup_peak_bytes), hint="Counts page cache"),
    )


def _counts_as(found: RunFacts) -> str:
    """Whether it is a benchmark, which a valid profile run of enough blocks is, and else why not."""
    if found.mode != "profile":
        return "no benchmark: another mode"
    if not found.timing_means_something:
        return "no benchmark: its times say nothing of a board"
    if found.verdict != "valid":
        return f"no benchmark: {found.verdict or 'not judged'}"
    return "a benchmark" if found.has_interval else f"no benchmark: fewer than {LEAST_BLOCKS} blocks"


def _downloads(found: RunFacts) -> tuple[Fact, ...]:
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
        files.append(_file("Trained weights", found.trained_weights_bytes, addresses.weights(found.id),
                           found.weights_removed_at))  # fmt: skip
    files.append(_file("Bundle", found.bundle_bytes, addresses.bundle(found.bundle_digest), found.bundle_removed_at))
    if found.events_removed_at is not None:
        files.append(_file("Events", None, "", found.events_removed_at))
    return tuple(files)


def _file(label: str, size_bytes: int | None, href: str, removed_at: float | None) -> Fact:
    if removed_at is not None:
        return Fact(label, f"removed by retention on {fmt.clock(removed_at)}")
    return Fact(label, fmt.size(size_bytes), href)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
