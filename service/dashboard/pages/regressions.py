"""The page of regressions: times that became slower in the farm's timed canaries, and in users' runs from one compiler
to another.

The two say different things. A canary's change is found among many runs of one thing and exceeds the device's noise
(decision 72). Of users' runs, which were made apart, at most a "likely" is said (decision 70).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.figures.separate_runs import Variation
from service.boards.canary.schemas import ChangeView
from service.boards.canary.service import change_view, newest_changes
from service.dashboard import addresses, comparison, queries, visitors
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.history import HistoryChange, HistoryPoint, history_plot
from service.dashboard.facts import RunFacts
from service.dashboard.forms import Field, Form
from service.dashboard.parts import Figure
from service.dashboard.queries import device_names
from service.dashboard.tables import Column, Row, Table, Value, table
from service.store.database.models import Device, Run
from service.work.runs.compilers import OverCompilers, Timed, history_of, over_compilers
from service.work.runs.variation import variations

MOST_CHANGES = 50
MOST_OPEN = 20
MOST_WORKS = 4
"""Kinds of work whose last two compilers are judged: of each, two reports are read."""
CHANGE_COLUMNS = (
    Column("device", "Device", primary=True),
    Column("state", "Standing", "state"),
    Column("change", "Change", wrap=True),
    Column("canary", "Canary", wrap=True),
    Column("found_at", "Found", "time", "UTC"),
    Column("explains", "What else changed there", wrap=True),
    Column("acknowledgement", "Said about it", wrap=True),
)
WORK_COLUMNS = (
    Column("work", "Model and plan", primary=True),
    Column("state", "Standing", "state", wide_only=True),
    Column("said", "What may be said", wrap=True),
    Column("after_ms", "Step median now", "number", "ms", fits=True, wide_only=True),
    Column("before_ms", "Before", "number", "ms", fits=True, wide_only=True),
    Column("device", "Device"),
    Column("compilers", "Compiler", "code", wrap=True),
    Column("note", "Said about it", wrap=True),
    Column("see", "See"),
)
RUN_COLUMNS = (
    Column("at", "When", "time", "UTC", primary=True),
    Column("median_ms", "Step median", "number", "ms", fits=True),
    Column("verdict", "Verdict", "verdict"),
    Column("compiler", "Compiler", "code"),
    Column("run", "Run", "code"),
)
LEGEND = (("history-dot", "valid"), ("history-hollow", "not judged"), ("change-line", "another compiler from here on"))


@dataclass(frozen=True, slots=True)
class OpenChange:
    """A regression that nobody has acknowledged."""

    title: str
    message: str
    explains: str
    href: str
    run_href: str
    form: Form | None
    """Form to acknowledge the regression; None: the visitor may not."""


@dataclass(frozen=True, slots=True)
class RegressionsPage:
    """The contents of the page."""

    open: tuple[OpenChange, ...]
    changes: Table
    works: Table
    chosen: Figure | None
    """The history of one kind of work."""


def regressions_page(session: Session, run_id: str = "", refused: Form | None = None) -> RegressionsPage:
    """Returns the page of regressions. `run_id`: adds the history of the work that this run did. `refused`: a form that
    comes back.
    """
    changes = newest_changes(session, MOST_CHANGES)
    names = device_names(session, [change.device_id for change, _ in changes])
    views = [change_view(change, is_last=is_last) for change, is_last in changes]
    waiting = [view for view in views if view.state == "open"][:MOST_OPEN]
    return RegressionsPage(
        open=tuple(_open(view, names, refused) for view in waiting),
        changes=table(
            "changes",
            "Every change that canaries found, newest first",
            CHANGE_COLUMNS,
            [_change_row(view, names) for view in views],
        ),
        works=_works(session) if not run_id else table("works", "", WORK_COLUMNS, ()),
        chosen=_figure(session, run_id) if run_id else None,
    )


def acknowledgement(device_id: str, change_id: str) -> Form:
    """Returns the form that acknowledges that a device has become slower."""
    action = f"{addresses.device(device_id)}/canaries/{change_id}/acknowledge"
    reason = Field("reason", "Why it is so, or what will be done", "area", max_length=1000)
    return Form(f"known-{change_id}", "Say that it is known", action, "It is known", (reason,))


def _open(view: ChangeView, names: Mapping[str, str], refused: Form | None) -> OpenChange:
    form = acknowledgement(view.device_id, view.id)
    return OpenChange(
        title=f"{names.get(view.device_id, view.device_id)}: {view.canary} on {view.target}",
        message=view.message,
        explains=view.explains,
        href=addresses.device(view.device_id),
        run_href=addresses.run(view.after_run_id),
        form=(refused if refused and refused.id == form.id else form) if visitors.current().may("operate") else None,
    )


def _change_row(view: ChangeView, names: Mapping[str, str]) -> Row:
    values: dict[str, Value] = {
        "device": names.get(view.device_id, view.device_id),
        "state": view.state,
        "change": view.message,
        "canary": f"{view.canary} on {view.target}",
        "found_at": fmt.iso(view.found_at),
        "explains": view.explains,
        "acknowledgement": view.acknowledgement or None,
    }
    links = {"device": addresses.device(view.device_id), "canary": addresses.run(view.after_run_id)}
    return Row(values, links, anchor=view.id, dimmed=view.state == "over")


def _works(session: Session) -> Table:
    """Tabulates the work that more than one compiler's bundles did, and whether the last one's are slower."""
    works = over_compilers(session, MOST_WORKS)
    pairs = [(work, change) for work in works if (change := work.newest_change) is not None]
    ids = [run.run_id for _, change in pairs for run in change]
    facts = {run.id: run for run in queries.with_reports(session, queries.runs_by_id(session, ids))}
    variability = variations(session, {work.device_id for work in works}, judged=ids)
    notes = _notes(session, works)
    rows = [
        _work_row(work, facts[before.run_id], facts[after.run_id], (before, after), variability, notes)
        for work, (before, after) in pairs
        if before.run_id in facts and after.run_id in facts
    ]
    return table("works", "Your own runs, before and after a change of the compiler", WORK_COLUMNS, rows)


def _notes(session: Session, works: Sequence[OverCompilers]) -> Mapping[str, str]:
    """Returns notes by run id, for the runs of each work's newest compiler. What people noted there explains the change
    of times.
    """
    ids = [run.run_id for work in works for run in work.runs if run.compiler == work.runs[-1].compiler]
    noted = session.execute(select(Run.id, Run.note).where(Run.id.in_(ids), Run.note != "").order_by(Run.id))
    return {str(row.id): str(row.note) for row in noted}


def _work_row(
    work: OverCompilers,
    before: RunFacts,
    after: RunFacts,
    change: tuple[Timed, Timed],
    variability: Mapping[str, Variation],
    noted: Mapping[str, str],
) -> Row:
    compilers = " to ".join(fmt.short_digest(run.compiler) for run in change)
    finding = _finding(before, after, variability)
    note = next((noted[run.run_id] for run in reversed(work.runs) if run.run_id in noted), "")
    may_say = "slower" in finding and visitors.current().may("submit")
    values: dict[str, Value] = {
        "work": f"{work.model_name} · {work.plan_name}",
        "state": ("acknowledged" if note else "open") if "slower" in finding else None,
        "said": finding,
        "note": note or ("say why" if may_say else None),
        "after_ms": after.median_ms,
        "before_ms": before.median_ms,
        "device": after.device_name,
        "compilers": compilers,
        "see": "both runs",
    }
    links = {
        "work": addresses.page("regressions", ("of", after.id)),
        "device": addresses.device(work.device_id),
        "see": addresses.compare([before.id, after.id]),
        **({"note": f"{addresses.run(after.id)}#about"} if may_say and not note else {}),
    }
    notes = {"work": f"{work.target}, {fmt.plural(len(work.runs), 'valid run')} lately"}
    medians = f"step median {fmt.latency(after.median_ms)}, was {fmt.latency(before.median_ms)}"
    return Row(values, links, notes, narrow_notes={"said": medians})


def _finding(before: RunFacts, after: RunFacts, variability: Mapping[str, Variation]) -> str:
    """Judges two runs that were made apart: at most that one is likely slower."""
    obstacles = [obstacle for obstacle in comparison.obstacles([before, after]) if obstacle.quantity == "time"]
    if obstacles:
        return f"not comparable: {obstacles[0].reason}"
    difference = comparison.time_difference(before, after, variability)
    if difference is None:
        return "cannot tell: a report is missing"
    if difference.interval is None:
        silent = comparison.no_rank(before, variability) or comparison.no_rank(after, variability)
        return f"cannot tell: {silent}" if silent else "cannot tell"
    return difference.words


def _figure(session: Session, run_id: str) -> Figure | None:
    history = history_of(session, run_id)
    if history is None:
        return None
    points = [_point(run) for run in history.runs]
    changes = [
        HistoryChange(run.at, f"compiler {fmt.short_digest(run.compiler)} from here on")
        for before, run in zip(history.runs, history.runs[1:], strict=False)
        if before.compiler != run.compiler
    ]
    rows = [_run_row(run) for run in history.runs[::-1]]
    device = session.scalar(select(Device.name).where(Device.id == history.device_id)) or history.device_id
    note = (
        f"{fmt.plural(len(history.runs), 'run')} by bundles of {fmt.plural(len(history.compilers), 'compiler')}: the \
same model, plan, spec, settings and data. Runs were made apart, so the device's weather is in them too."
    )
    title = f"{history.model_name} · {history.plan_name} on {device} ({history.target})"
    drawing = for_screens(lambda width: history_plot(points, changes, width), FULL_WIDTH)
    return Figure("history", title, drawing, note, LEGEND, table("runs", "Its runs, newest first", RUN_COLUMNS, rows))


def _point(run: Timed) -> HistoryPoint:
    compiler = fmt.short_digest(run.compiler)
    label = f"{fmt.clock(run.at)} UTC: {fmt.latency(run.median_us / 1000)}, {run.verdict}, compiler {compiler}"
    return HistoryPoint(run.at, run.median_us / 1000, run.verdict == "valid", label)


def _run_row(run: Timed) -> Row:
    values: dict[str, Value] = {
        "at": fmt.iso(run.at),
        "median_ms": run.median_us / 1000,
        "verdict": run.verdict or None,
        "compiler": fmt.short_digest(run.compiler),
        "run": run.run_id,
    }
    return Row(values, {"run": addresses.run(run.run_id)})
