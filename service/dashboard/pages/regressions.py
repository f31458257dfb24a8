"""Where times became slower: told by the farm's timed canaries, and by users' own runs over compilers.

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
from service.dashboard.names import device_names
from service.dashboard.parts import Figure
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
    says: str
    explains: str
    href: str
    run_href: str
    form: Form | None
    """To say that it is known; None: the visitor may not."""


@dataclass(frozen=True, slots=True)
class RegressionsPage:
    """What the page shows."""

    open: tuple[OpenChange, ...]
    changes: Table
    works: Table
    chosen: Figure | None
    """The history of one kind of work."""


def regressions_page(session: Session, run_id: str = "", refused: Form | None = None) -> RegressionsPage:
    """`run_id`: show the history of what that run did. `refused`: a form that comes back."""
    found = newest_changes(session, MOST_CHANGES)
    names = device_names(session, [change.device_id for change, _ in found])
    views = [change_view(change, is_last=is_last) for change, is_last in found]
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
    """The form that says that a slower device is known of."""
    action = f"{addresses.device(device_id)}/canaries/{change_id}/acknowledge"
    reason = Field("reason", "Why it is so, or what will be done", "area", max_length=1000)
    return Form(f"known-{change_id}", "Say that it is known", action, "It is known", (reason,))


def _open(view: ChangeView, names: Mapping[str, str], refused: Form | None) -> OpenChange:
    form = acknowledgement(view.device_id, view.id)
    return OpenChange(
        title=f"{names.get(view.device_id, view.device_id)}: {view.canary} on {view.target}",
        says=view.says,
        explains=view.explains,
        href=addresses.device(view.device_id),
        run_href=addresses.run(view.after_run_id),
        form=(refused if refused and refused.id == form.id else form) if visitors.current().may("operate") else None,
    )


def _change_row(view: ChangeView, names: Mapping[str, str]) -> Row:
    values: dict[str, Value] = {
        "device": names.get(view.device_id, view.device_id),
        "state": view.state,
        "change": view.says,
        "canary": f"{view.canary} on {view.target}",
        "found_at": fmt.iso(view.found_at),
        "explains": view.explains,
        "acknowledgement": view.acknowledgement or None,
    }
    links = {"device": addresses.device(view.device_id), "canary": addresses.run(view.after_run_id)}
    return Row(values, links, anchor=view.id, dimmed=view.state == "over")


def _works(session: Session) -> Table:
    """What more than one compiler's bundles did, and whether the last one's are slower."""
    found = over_compilers(session, MOST_WORKS)
    pairs = [(one, change) for one in found if (change := one.newest_change) is not None]
    ids = [run.run_id for _, change in pairs for run in change]
    facts = {run.id: run for run in queries.with_reports(session, queries.runs_by_id(session, ids))}
    known = variations(session, {one.device_id for one in found}, judged=ids)
    notes = _notes(session, found)
    rows = [
        _work_row(one, facts[before.run_id], facts[after.run_id], (before, after), known, notes)
        for one, (before, after) in pairs
        if before.run_id in facts and after.run_id in facts
    ]
    return table("works", "Your own runs, before and after a change of the compiler", WORK_COLUMNS, rows)


def _notes(session: Session, found: Sequence[OverCompilers]) -> Mapping[str, str]:
    """By id, of runs of each work's newest compiler: what people noted there is what is known of its times."""
    ids = [run.run_id for one in found for run in one.runs if run.compiler == one.runs[-1].compiler]
    noted = session.execute(select(Run.id, Run.note).where(Run.id.in_(ids), Run.note != "").order_by(Run.id))
    return {str(row.id): str(row.note) for row in noted}


def _work_row(
    one: OverCompilers,
    before: RunFacts,
    after: RunFacts,
    change: tuple[Timed, Timed],
    known: Mapping[str, Variation],
    noted: Mapping[str, str],
) -> Row:
    compilers = " to ".join(fmt.short_digest(run.compiler) for run in change)
    said = _said(before, after, known)
    note = next((noted[run.run_id] for run in reversed(one.runs) if run.run_id in noted), "")
    may_say = "slower" in said and visitors.current().may("submit")
    values: dict[str, Value] = {
        "work": f"{one.model_name} · {one.plan_name}",
        "state": ("acknowledged" if note else "open") if "slower" in said else None,
        "said": said,
        "note": note or ("say why" if may_say else None),
        "after_ms": after.median_ms,
        "before_ms": before.median_ms,
        "device": after.device_name,
        "compilers": compilers,
        "see": "both runs",
    }
    links = {
        "work": addresses.page("regressions", ("of", after.id)),
        "device": addresses.device(one.device_id),
        "see": addresses.compare([before.id, after.id]),
        **({"note": f"{addresses.run(after.id)}#about"} if may_say and not note else {}),
    }
    notes = {"work": f"{one.target}, {fmt.plural(len(one.runs), 'valid run')} lately"}
    medians = f"step median {fmt.latency(after.median_ms)}, was {fmt.latency(before.median_ms)}"
    return Row(values, links, notes, narrow_notes={"said": medians})


def _said(before: RunFacts, after: RunFacts, known: Mapping[str, Variation]) -> str:
    """Of two runs that were made apart: at most that one is likely slower."""
    found = [one for one in comparison.obstacles([before, after]) if one.quantity == "time"]
    if found:
        return f"not comparable: {found[0].reason}"
    told = comparison.time_difference(before, after, known)
    if told is None:
        return "cannot tell: a report is missing"
    if told.interval is None:
        silent = comparison.no_rank(before, known) or comparison.no_rank(after, known)
        return f"cannot tell: {silent}" if silent else "cannot tell"
    return told.words


def _figure(session: Session, run_id: str) -> Figure | None:
    found = history_of(session, run_id)
    if found is None:
        return None
    points = [_point(run) for run in found.runs]
    changes = [
        HistoryChange(run.at, f"compiler {fmt.short_digest(run.compiler)} from here on")
        for before, run in zip(found.runs, found.runs[1:], strict=False)
        if before.compiler != run.compiler
    ]
    rows = [_run_row(run) for run in found.runs[::-1]]
    device = session.scalar(select(Device.name).where(Device.id == found.device_id)) or found.device_id
    note = f"{fmt.plural(len(found.runs), 'run')} by bundles of {fmt.plural(len(found.compilers), 'compiler')}: the \
same model, plan, spec, settings and data. Runs were made apart, so the device's weather is in them too."
    title = f"{found.model_name} · {found.plan_name} on {device} ({found.target})"
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
