"""The list of runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from device_agents.wire import MODES
from service.dashboard import addresses, queries
from service.dashboard.pages.run_table import run_table
from service.dashboard.parts import CLASSES, VERDICTS, Filter, Listing, choices
from service.store.database.models import RUN_STATES, RunGroup
from service.work.groups import service as groups
from service.work.runs.engines import ENGINES, engine_of
from service.work.runs.filter import RunFilter

PAGE_ROWS = 50


def runs_page(session: Session, chosen: RunFilter, before: str, sort: str) -> Listing:
    """Makes a page of runs, those older than `before`; `sort` orders the rows of the page, the pages go by age."""
    runs = queries.runs(session, chosen, PAGE_ROWS + 1, before)
    page = runs[:PAGE_ROWS]
    query = query_of(chosen)
    path = addresses.page("runs")
    return Listing(
        table=run_table(page, _caption(session, chosen)).sorted_by(sort),
        path=path,
        query=(*query, ("before", before)),
        filters=_filters(session, chosen),
        older=addresses.with_query(path, (*query, ("before", page[-1].id))) if len(runs) > PAGE_ROWS else "",
        newest=addresses.with_query(path, query) if before else "",
    )


def _caption(session: Session, chosen: RunFilter) -> str:
    """Describes how far a request for many devices is."""
    group = session.get(RunGroup, chosen.group) if chosen.group else None
    if group is None:
        return "Runs, newest first"
    states = groups.view(session, group).states
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"Group {group.name or group.id}, a run on each of {sum(states.values())} devices: {counts}"


def query_of(chosen: RunFilter) -> tuple[tuple[str, str], ...]:
    """Returns the filter as query parameters, those in force only."""
    pairs: Sequence[tuple[str, str]] = (
        ("state", chosen.state),
        ("mode", chosen.mode),
        ("model", chosen.model),
        ("plan", chosen.plan),
        ("target", chosen.target),
        ("device", chosen.device),
        ("class", chosen.measurement_class),
        ("verdict", chosen.verdict),
        ("bundle", chosen.bundle),
        ("group", chosen.group),
        ("code", chosen.code),
        ("tag", chosen.tag),
        ("engine", chosen.engine),
    )
    return tuple(pair for pair in pairs if pair[1])


def _filters(session: Session, chosen: RunFilter) -> tuple[Filter, ...]:
    return (
        *([Filter("group", "Group", chosen.group, choices((chosen.group,)))] if chosen.group else []),
        *([Filter("code", "Ended with", chosen.code, choices((chosen.code,)))] if chosen.code else []),
        Filter("state", "State", chosen.state, (("open", "open (any)"), *choices(RUN_STATES))),
        Filter("mode", "Mode", chosen.mode, choices(MODES)),
        *what_ran_where(session, chosen),
        *_tag_filter(session, chosen),
    )


def what_ran_where(session: Session, chosen: RunFilter) -> tuple[Filter, ...]:
    """Returns the filters that runs and benchmarks share."""
    values = queries.bundle_values(session)
    return (
        Filter("model", "Model", chosen.model, choices(values["model"])),
        Filter("plan", "Plan", chosen.plan, choices(values["plan"])),
        Filter("target", "Target", chosen.target, choices(values["target"])),
        *_engine_filter(values["target"], chosen.engine),
        Filter("device", "Device", chosen.device, queries.device_choices(session)),
        Filter("class", "Class", chosen.measurement_class, choices(tuple(CLASSES))),
        Filter("verdict", "Verdict", chosen.verdict, choices(tuple(VERDICTS))),
    )


def _engine_filter(targets: Sequence[str], chosen: str) -> tuple[Filter, ...]:
    """Returns a filter of engines if there are several, or if one is chosen."""
    engines = [engine for engine in ENGINES if engine == chosen or engine in set(map(engine_of, targets))]
    return (Filter("engine", "Engine", chosen, choices(engines)),) if len(engines) > 1 or chosen else ()


def _tag_filter(session: Session, chosen: RunFilter) -> tuple[Filter, ...]:
    """Returns a filter of tags if any run has one."""
    tags = queries.run_tags(session)
    options = tags if not chosen.tag or chosen.tag in tags else (*tags, chosen.tag)
    return (Filter("tag", "Tag", chosen.tag, choices(options)),) if options else ()
