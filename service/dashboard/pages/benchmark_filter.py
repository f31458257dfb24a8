"""The filter of the benchmarks page: the fields by which lists of runs are filtered, and those that explain a
number.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import ColumnElement, and_, exists, select
from sqlalchemy.orm import Session

from service.dashboard import format as fmt
from service.dashboard.facts import Measured, RunFacts
from service.dashboard.pages.runs import query_of as query_of_runs
from service.dashboard.pages.runs import what_ran_where
from service.dashboard.parts import Filter, choices
from service.store.database.models import Holding, Job, Run
from service.work.runs.filter import RunFilter

DAY_S = 86_400.0
Entry = TypeVar("Entry", RunFacts, Measured)
AGES = (("1", "the last day"), ("7", "the last 7 days"), ("30", "the last 30 days"), ("365", "the last year"))
SYNTHETIC = "synthetic"
NEWEST_JOBS = 500
"""Number of newest jobs whose compiler versions are offered."""


@dataclass(frozen=True, slots=True)
class BenchmarkFilter(RunFilter):
    """`days`: how old at most; `compiler`: the version that built the bundle; `data`: a digest, or `synthetic`;
    `precision`: what the step computes with, which no column tells: `of_precision` asks the bundles."""

    days: str = ""
    compiler: str = ""
    data: str = ""
    precision: str = ""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the conditions on `Run` joined with the `Holding` of its bundle."""
        conditions = RunFilter.conditions(self)
        if self.days in dict(AGES):
            conditions.append(Run.created_at >= time.time() - float(self.days) * DAY_S)
        if self.compiler:
            conditions.append(
                exists().where(Job.bundle_digest == Run.bundle_digest, Job.compiler_version == self.compiler)
            )
        if self.data == SYNTHETIC:
            conditions.append(and_(Run.dataset_digest.is_(None), Run.own_data.is_(None)))
        elif self.data:
            conditions.append(Run.dataset_digest == self.data)
        return conditions


def query_of(chosen: RunFilter) -> tuple[tuple[str, str], ...]:
    """Returns the query fields in force, for links that keep them."""
    pairs = query_of_runs(chosen)
    if isinstance(chosen, BenchmarkFilter):
        names = ("precision", "days", "compiler", "data")
        pairs += tuple((name, value) for name in names if (value := getattr(chosen, name)))
    return pairs


def of_precision(chosen: RunFilter, entries: Sequence[Entry]) -> list[Entry]:
    """Returns the entries that compute with the chosen precision."""
    precision = chosen.precision if isinstance(chosen, BenchmarkFilter) else ""
    return [entry for entry in entries if precision in ("", entry.precision)]


def filters(session: Session, chosen: RunFilter, precisions: Collection[str]) -> tuple[Filter, ...]:
    """Returns the form. `precisions`: those of what was measured."""
    selection = chosen if isinstance(chosen, BenchmarkFilter) else BenchmarkFilter()
    days, compiler, data = selection.days, selection.compiler, selection.data
    options = sorted({*precisions, selection.precision} - {""})
    return (
        *what_ran_where(session, chosen),
        Filter("precision", "Precision", selection.precision, choices(options)),
        Filter("days", "Measured in", days, AGES),
        Filter("compiler", "Compiler", compiler, _compilers(session)),
        Filter("data", "Data", data, ((SYNTHETIC, "synthetic"), *_datasets(session))),
    )


def _compilers(session: Session) -> tuple[tuple[str, str], ...]:
    """Returns (version, its digits and when it was new here) of the newest jobs, the newest version first."""
    newest = (
        select(Job.compiler_version, Job.created_at)
        .where(Job.bundle_digest.is_not(None))
        .order_by(Job.id.desc())
        .limit(NEWEST_JOBS)
    )
    since: dict[str, float] = {}
    for version, at in session.execute(newest):
        since[version] = at
    return tuple(
        (compiler, f"{fmt.short_digest(compiler)} since {fmt.clock(at)[:10]}")
        for compiler, at in since.items()
        if compiler
    )


def _datasets(session: Session) -> tuple[tuple[str, str], ...]:
    """Returns (digest, label) of the data sets by name. Where several have the same name, each label includes the
    digest.
    """
    query = select(Holding.digest, Holding.name).where(Holding.kind == "dataset").order_by(Holding.name)
    rows = [(digest, name) for digest, name in session.execute(query.limit(200))]
    counts = Counter(name for _, name in rows)
    return tuple(
        (digest, name if name and counts[name] == 1 else f"{name} {fmt.short_digest(digest)}".strip())
        for digest, name in rows
    )
