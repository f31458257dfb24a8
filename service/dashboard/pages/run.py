"""The page of a run: what was measured, whether it counts, where its time and memory went, and all downloads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.dashboard import addresses, progress_events, queries
from service.dashboard.actions import Action
from service.dashboard.facts import EventFacts, RunFacts
from service.dashboard.forms import Form
from service.dashboard.pages.comparison_run import comparison_view, turns_facts, turns_table
from service.dashboard.pages.device_roof import seen_roof
from service.dashboard.pages.history import attempt_table, waiting_table
from service.dashboard.pages.memory import memory_drawing
from service.dashboard.pages.run_actions import Words, about_form, acts, citation, copies
from service.dashboard.pages.run_conditions import conditions, request_facts
from service.dashboard.pages.run_data import evaluation_table, validations_of
from service.dashboard.pages.run_drawings import drawings
from service.dashboard.pages.run_figures import kernel_table
from service.dashboard.pages.run_progress import progress_facts
from service.dashboard.pages.run_summary import chips, downloads, key_figures
from service.dashboard.pages.schedules import schedule_table
from service.dashboard.pages.sustained import sustained_facts
from service.dashboard.pages.sustained import sustained_view as curve_in
from service.dashboard.pages.timeline import timeline_note
from service.dashboard.pages.training import training_notice, validation_table
from service.dashboard.parts import Chip, Fact, Figure, KeyFigure, environment_facts
from service.dashboard.tables import Table, thinned
from service.store.database.models import OPEN_RUN_STATES, Run
from service.work.runs import remarks
from service.work.runs.schemas import RunWarning
from service.work.runs.why import TryWhy, why


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
    """Those with `find` in their names are shown."""
    words = find.casefold()
    rows = (replace(row, is_hidden=words not in str(row.values["kernel"]).casefold()) for row in kernels.rows)
    return replace(kernels, rows=tuple(rows)) if words else kernels
