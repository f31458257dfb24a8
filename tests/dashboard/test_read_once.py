"""A recorded report never changes: pages read it once, and only for those who may see its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import event, select

from service.dashboard import queries
from service.dashboard.pages.run import drawings
from service.store.database.models import Result
from tests.dashboard.conftest import SeededFarm
from tests.service.client import Client


@contextmanager
def statements(farm: SeededFarm) -> Iterator[list[str]]:
    """What is asked of the database meanwhile."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    engine = farm.farm.database.engine
    event.listen(engine, "before_cursor_execute", note)
    yield asked
    event.remove(engine, "before_cursor_execute", note)


def test_the_second_visit_reads_no_report(seeded: SeededFarm, browser: Client) -> None:
    path = f"/dashboard/runs/{seeded.ids.full_run}"
    first = browser.get(path).text
    with statements(seeded) as asked:
        second = browser.get(path).text
    assert any("FROM results" in statement for statement in asked), "which report counts is asked each time"
    assert not [statement for statement in asked if "results.report" in statement]
    assert first.count("<svg") == second.count("<svg") > 3


def test_what_is_remembered_is_shown_to_nobody_else(seeded: SeededFarm) -> None:
    database = seeded.farm.database
    with database.read() as session:
        known = queries.run(session, seeded.ids.full_run)
        assert known is not None
        assert known.report is not None
    with database.of("org_other").read() as session:
        assert queries.with_reports(session, [known])[0].report is known.report, "an entry keeps what it came with"
        assert queries.reports_of(session, [known.id]) == {}


def test_a_report_that_counts_no_more_is_not_shown(seeded: SeededFarm) -> None:
    database = seeded.farm.database
    with database.read() as session:
        assert queries.reports_of(session, [seeded.ids.sparse_run])
    with database.transaction() as session:
        row = session.scalars(select(Result).where(Result.run_id == seeded.ids.sparse_run)).one()
        row.state = "superseded"
        session.flush()
        assert queries.reports_of(session, [seeded.ids.sparse_run]) == {}
        session.rollback()


def test_pictures_that_are_remembered_lead_to_the_own_run(seeded: SeededFarm, browser: Client) -> None:
    """Both ran the same bundle: one memory plan, drawn once, whose data are asked for under each run's address."""
    with seeded.farm.database.read() as session:
        first, second = (queries.run(session, run_id) for run_id in (seeded.ids.full_run, seeded.ids.noisy_run))
    assert first is not None
    assert second is not None
    assert first.bundle_digest == second.bundle_digest
    for mine, other in ((first.id, second.id), (second.id, first.id), (first.id, second.id)):
        page = browser.get(f"/dashboard/runs/{mine}").text
        for table in ("memory", "steps", "losses" if first.mode == "train" else "kernels"):
            assert f'href="/dashboard/runs/{mine}/{table}.csv' in page
        assert f"/dashboard/runs/{other}" not in page


def test_another_report_is_drawn_anew(seeded: SeededFarm) -> None:
    with seeded.farm.database.read() as session:
        found = queries.run(session, seeded.ids.full_run)
        assert found is not None
        kept = drawings(session, found, None, (), None)
        assert drawings(session, found, None, (), None) is kept
        assert kept.size_bytes > len(kept.steps.drawing if kept.steps else "") > 1000
        other = replace(found, report_key=("another attempt", "another digest"))
        assert drawings(session, other, None, (), None) is not kept
