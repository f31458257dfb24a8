"""Which measurements the page of benchmarks shows: what lists of runs filter by, and what explains a number."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, select
from sqlalchemy.orm import Session

from service.dashboard import format as fmt
from service.dashboard.pages.runs import what_ran_where
from service.dashboard.parts import Filter
from service.database.models import Holding, Job, Run
from service.runs.filter import RunFilter

DAY_S = 86_400.0
AGES = (("1", "the last day"), ("7", "the last 7 days"), ("30", "the last 30 days"), ("365", "the last year"))
SYNTHETIC = "synthetic"
NEWEST_JOBS = 500
"""That tell which versions of the compiler there were."""


@dataclass(frozen=True, slots=True)
class BenchmarkFilter(RunFilter):
    """`days`: how old at most; `compiler`: the version that built the bundle; `data`: a digest, or `synthetic`."""

    days: str = ""
    compiler: str = ""
    data: str = ""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Over `Run` joined with the `Holding` of its bundle."""
        found = RunFilter.conditions(self)
        if self.days in dict(AGES):
            found.append(Run.created_at >= time.time() - float(self.days) * DAY_S)
        if self.compiler:
            found.append(exists().where(Job.bundle_digest == Run.bundle_digest, Job.compiler_version == self.compiler))
        if self.data == SYNTHETIC:
            found.append(and_(Run.dataset_digest.is_(None), Run.own_data.is_(None)))
        elif self.data:
            found.append(Run.dataset_digest == self.data)
        return found


def query_of(chosen: RunFilter) -> tuple[tuple[str, str], ...]:
    """What is in force, for links that keep it."""
    pairs = [("model", chosen.model), ("plan", chosen.plan), ("target", chosen.target), ("device", chosen.device),
             ("class", chosen.measurement_class), ("mode", chosen.mode), ("verdict", chosen.verdict),
             ("tag", chosen.tag)]  # fmt: skip
    if isinstance(chosen, BenchmarkFilter):
        pairs += [("days", chosen.days), ("compiler", chosen.compiler), ("data", chosen.data)]
    return tuple(pair for pair in pairs if pair[1])


def filters(session: Session, chosen: RunFilter) -> tuple[Filter, ...]:
    """The form. Every step computes in float32, so there is no choice of a precision."""
    days, compiler, data = (
        (chosen.days, chosen.compiler, chosen.data) if isinstance(chosen, BenchmarkFilter) else ("", "", "")
    )
    return (
        *what_ran_where(session, chosen),
        Filter("days", "Measured in", days, AGES),
        Filter("compiler", "Compiler", compiler, _compilers(session)),
        Filter("data", "Data", data, ((SYNTHETIC, "synthetic"), *_datasets(session))),
    )


def _compilers(session: Session) -> tuple[tuple[str, str], ...]:
    """(version, its digits and when it was new here) of the newest jobs, the newest version first."""
    newest = (
        select(Job.compiler_version, Job.created_at)
        .where(Job.bundle_digest.is_not(None))
        .order_by(Job.id.desc())
        .limit(NEWEST_JOBS)
    )
    since: dict[str, float] = {}
    for version, at in session.execute(newest):
        since[version] = at
    return tuple((one, f"{fmt.short_digest(one)} since {fmt.clock(at)[:10]}") for one, at in since.items() if one)


def _datasets(session: Session) -> tuple[tuple[str, str], ...]:
    """By name; of several that are called the same, each with its digest."""
    held = select(Holding.digest, Holding.name).where(Holding.kind == "dataset").order_by(Holding.name)
    rows = [(digest, name) for digest, name in session.execute(held.limit(200))]
    counts = Counter(name for _, name in rows)
    return tuple((digest, name if name and counts[name] == 1 else f"{name} {fmt.short_digest(digest)}".strip())
                 for digest, name in rows)  # fmt: skip
