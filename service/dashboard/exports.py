"""Whole tables as files, whatever a page shows of them.

Rows are read in batches, each in a session of its own, and sent as they come: memory does not grow with the table, and
a slow client holds no connection and no snapshot. Ids sort by age, so rows added meanwhile do not shift the rest.
A sorted file reads the table twice: once for the order (an id and a value of each row), once for the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from service.artefacts.jobs.filter import JobFilter
from service.dashboard import queries
from service.dashboard.facts import JobFacts, RunFacts
from service.dashboard.pages.benchmark_filter import of_precision
from service.dashboard.pages.benchmarks import benchmark_table, configuration, known_of, ranked_groups
from service.dashboard.pages.devices import EVENT_COLUMNS, history_row
from service.dashboard.pages.jobs import COLUMNS as JOB_COLUMNS
from service.dashboard.pages.jobs import job_row
from service.dashboard.pages.run_table import COLUMNS as RUN_COLUMNS
from service.dashboard.pages.run_table import run_row
from service.dashboard.parts import COUNTING
from service.dashboard.tables import Column, Row, Table, Value, WholeTable, order
from service.store.database.engine import Database
from service.work.runs.filter import RunFilter

BATCH_ROWS = 200
Facts = TypeVar("Facts", RunFacts, JobFacts)


@dataclass(frozen=True, slots=True)
class Source(Generic[Facts]):
    """Functions that read the entries of one table."""

    before: Callable[[Session, str, int], list[Facts]]
    """Entries with ids below the given one (empty: all), the newest first."""
    by_id: Callable[[Session, Sequence[str]], list[Facts]]
    row: Callable[[Facts], Row]


def runs_file(database: Database, chosen: RunFilter, sort: str = "") -> WholeTable:
    """Returns every run that matches the filter, older pages too."""

    def before(session: Session, last: str, limit: int) -> list[RunFacts]:
        return queries.runs(session, chosen, limit, last)

    source = Source(before, queries.runs_by_id, run_row)
    return WholeTable("runs", RUN_COLUMNS, _rows(database, source, RUN_COLUMNS, sort))


def jobs_file(database: Database, chosen: JobFilter, sort: str = "") -> WholeTable:
    """Returns every job that matches the filter, older pages too."""

    def before(session: Session, last: str, limit: int) -> list[JobFacts]:
        return queries.jobs(session, chosen, limit, last)

    source = Source(before, queries.jobs_by_id, job_row)
    return WholeTable("jobs", JOB_COLUMNS, _rows(database, source, JOB_COLUMNS, sort))


def history_file(database: Database, device_id: str) -> WholeTable:
    """Returns a device's whole health history."""

    def rows() -> Iterator[Row]:
        last: int | None = None
        while True:
            with database.read() as session:
                records = queries.device_history(session, device_id, BATCH_ROWS, before=last)
            yield from map(history_row, records)
            if len(records) < BATCH_ROWS:
                return
            last = records[-1].id

    return WholeTable("history", EVENT_COLUMNS, rows())


def benchmarks_file(database: Database, chosen: RunFilter, *, all_verdicts: bool, sort: str = "") -> Table:
    """Returns the newest measured run of each configuration that there ever was; memory grows with the
    configurations.
    """
    newest: dict[tuple[object, ...], RunFacts] = {}
    counted: Counter[tuple[object, ...]] = Counter()

    def before(session: Session, last: str, limit: int) -> list[RunFacts]:
        return queries.with_precision(session, queries.measured_runs(session, chosen, limit, last))

    for entry in _newest_first(database, before):
        if not of_precision(chosen, [entry]):
            continue
        if all_verdicts or entry.verdict in COUNTING:
            newest.setdefault(configuration(entry), entry)
            counted[configuration(entry)] += 1
    runs, reported = list(newest.values()), []
    for first in range(0, len(runs), BATCH_ROWS):
        with database.read() as session:
            reported += queries.with_reports(session, runs[first : first + BATCH_ROWS])
    with database.read() as session:
        variations = known_of(session, reported)
    return benchmark_table(ranked_groups(reported, variations, counted, sort))


def _newest_first(database: Database, before: Callable[[Session, str, int], list[Facts]]) -> Iterator[Facts]:
    last = ""
    while True:
        with database.read() as session:
            batch = before(session, last, BATCH_ROWS)
        yield from batch
        if len(batch) < BATCH_ROWS:
            return
        last = batch[-1].id


def _rows(database: Database, source: Source[Facts], columns: Sequence[Column], sort: str) -> Iterator[Row]:
    key = sort.removeprefix("-")
    if not any(column.key == key and column.sortable for column in columns):
        yield from map(source.row, _newest_first(database, source.before))
        return
    values: list[tuple[str, Value]] = [
        (entry.id, source.row(entry).values.get(key)) for entry in _newest_first(database, source.before)
    ]
    ids = [entry_id for entry_id, _ in order(values, sort, lambda pair: pair[1])]
    for first in range(0, len(ids), BATCH_ROWS):
        batch = ids[first : first + BATCH_ROWS]
        with database.read() as session:
            facts_by_id = {entry.id: entry for entry in source.by_id(session, batch)}
        yield from (source.row(facts_by_id[entry_id]) for entry_id in batch if entry_id in facts_by_id)
