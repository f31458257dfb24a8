"""The tables of a run's page as files, all of their rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from device_agents.wire import Validation
from service.base.settings import Settings
from service.dashboard import memory_plan, progress_events, queries
from service.dashboard.facts import RunFacts
from service.dashboard.pages.comparison_run import comparison_view, turns_table
from service.dashboard.pages.device_roof import seen_roof
from service.dashboard.pages.history import attempt_table, waiting_table
from service.dashboard.pages.memory import memory_table
from service.dashboard.pages.run_figures import kernel_table, state_table, step_table
from service.dashboard.pages.run_progress import sent_table
from service.dashboard.pages.schedules import schedule_table
from service.dashboard.pages.sustained import sustained_view as curve_in
from service.dashboard.pages.sustained import window_table
from service.dashboard.pages.timeline import moment_table
from service.dashboard.pages.training import loss_table, validation_table
from service.dashboard.tables import Column, Row, Table, table
from service.store.database.models import Run
from service.work.runs.why import why

EVALUATION_COLUMNS = (
    Column("when", "When", primary=True),
    Column("samples", "Samples", "number"),
    Column("loss", "Mean loss", "number", significant=4),
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
    "moments",
    "sent",
)


def run_data(session: Session, settings: Settings, run_id: str, name: str, sort: str) -> Table | None:
    """Returns one of the run's tables by name, all of its rows; None when there is no such run or table."""
    run = queries.run(session, run_id)
    if run is None or name not in TABLES:
        return None
    if name in ("attempts", "waiting"):
        explanation = why(session, settings, session.get_one(Run, run_id))
        waiting = waiting_table(explanation.waiting) if explanation.waiting else None
        return attempt_table(explanation) if name == "attempts" else waiting
    if name == "memory":
        built = queries.bundle(session, run.bundle_digest)
        plan = memory_plan.arena_plan(built) if built else None
        return memory_table(plan) if plan else None
    if name == "losses":
        training = run.report.training if run.report else None
        losses = run.report.losses if run.report else progress_events.losses(session, run_id, limit=None)
        return loss_table(losses, training.learning_rates if training else ())
    if name == "validations":
        return validation_table(validations_of(session, run))
    if name == "sent":
        return sent_table(progress_events.steps(session, run_id))
    if name == "windows":
        curve = curve_in(run)
        return window_table(curve) if curve else None
    if name == "turns":
        turns = comparison_view(session, run)
        return turns_table(turns) if turns else None
    return _report_table(session, run, name, sort)


def validations_of(session: Session, run: RunFacts) -> Sequence[Validation]:
    if run.report is None:
        return progress_events.validations(session, run.id)
    return run.report.training.validations if run.report.training else ()


def _report_table(session: Session, run: RunFacts, name: str, sort: str) -> Table | None:
    report = run.report
    if report is None:
        return None
    if name == "kernels":
        device_roof = seen_roof(session, run)
        return kernel_table(report.kernels, device_roof.roof if device_roof else None, sort)
    if name == "schedules":
        return schedule_table(report.tuning) if report.tuning else None
    if name == "moments":
        return moment_table(report)
    if name == "steps":
        return step_table(report.measurement) if report.measurement else None
    return state_table(report.device_states) if name == "state" else evaluation_table(run)


def evaluation_table(run: RunFacts) -> Table:
    """Returns a table of loss and accuracy over the data set, before and after."""
    report = run.report
    pairs = (("before", report.evaluation_before), ("after", report.evaluation_after)) if report else ()
    rows = [
        Row(
            {
                "when": when if run.mode == "train" else "as given",
                "samples": result.samples,
                "loss": result.loss,
                "accuracy_percent": None if result.accuracy is None else 100 * result.accuracy,
            }
        )
        for when, result in pairs
        if result is not None
    ]
    return table("evaluation", "Evaluation over the data set", EVALUATION_COLUMNS, rows)
