"""Files hold whole tables, whatever the page shows, and are sent while they are read."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, insert, update

from device_agents.wire import RunSettings
from service.dashboard.exports import BATCH_ROWS, runs_file
from service.dashboard.measured import MAX_MEASURED_RUNS
from service.dashboard.tables import csv_text
from service.store.database.models import Device, DeviceEvent, Event, Job, Run
from service.work.runs.filter import RunFilter
from tests.dashboard.conftest import SeededFarm, make_farm
from tests.sample import sample
from tests.service.client import Client

MANY = MAX_MEASURED_RUNS + 2 * BATCH_ROWS + 7


def copies(row: Any, count: int, **changes: Any) -> list[dict[str, Any]]:
    """Rows like `row`, older than any of the seeded ones; some without a median, in no order of it."""
    plain = {column.key: getattr(row, column.key) for column in row.__table__.columns} | changes
    return [plain | {"id": f"{row.id[:4]}0{n:025d}"} for n in range(count)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededFarm]:
    """The seeded farm with `MANY` more runs, jobs and lines of a device's history."""
    made = make_farm(tmp_path_factory.mktemp("large"))
    with made.farm.database.transaction() as session:
        run, job = session.get_one(Run, made.ids.sparse_run), session.query(Job).filter_by(state="succeeded").first()
        runs = copies(run, MANY)
        for n, row in enumerate(runs):
            row["median_us"] = None if n % 7 == 3 else float(n * 7919 % 10_007)
        session.execute(insert(Run), runs)
        session.execute(insert(Job), copies(job, MANY, state="failed"))
        history = [{"device_id": run.device_id, "at": float(n), "kind": "note", "message": str(n)} for n in range(MANY)]
        session.execute(insert(DeviceEvent), history)
        session.execute(update(Device).values(strikes=0))
    yield made
    made.farm.close()


@pytest.fixture(scope="module")
def reader(large: SeededFarm) -> Client:
    return large.browser()


def rows_of(client: Client, path: str) -> list[dict[str, str]]:
    """The CSV file's rows; the JSON file has the same."""
    rows = list(csv.DictReader(io.StringIO(client.get(path.replace("{}", ".csv")).text)))
    body = client.get(path.replace("{}", ".json")).json()
    assert [entry["key"] for entry in body["columns"]] == list(rows[0])
    shown = [{key: "" if value is None else str(value) for key, value in entry.items()} for entry in body["rows"]]
    assert shown == rows
    return rows


def ids(large: SeededFarm, table: type[Run] | type[Job], **chosen: Any) -> list[str]:
    chosen |= {"is_canary": False} if table is Run else {}
    with large.farm.database.read() as session:
        return [row.id for row in session.query(table.id).filter_by(**chosen).order_by(table.id.desc())]


def test_files_hold_every_row_once(large: SeededFarm, reader: Client) -> None:
    assert [row["id"] for row in rows_of(reader, "/dashboard/runs{}")] == ids(large, Run)
    assert [row["id"] for row in rows_of(reader, "/dashboard/jobs{}")] == ids(large, Job)
    assert len(ids(large, Run)) > MANY


def test_files_of_a_later_page_hold_every_row_too(large: SeededFarm, reader: Client) -> None:
    middle = ids(large, Run)[60]
    assert len(rows_of(reader, f"/dashboard/runs{{}}?before={middle}")) == len(ids(large, Run))


def test_filters_stay_in_force(large: SeededFarm, reader: Client) -> None:
    assert [row["id"] for row in rows_of(reader, "/dashboard/jobs{}?state=failed")] == ids(large, Job, state="failed")


@pytest.mark.thorough
@pytest.mark.parametrize("sort", sample(["median_ms", "-median_ms"], {"-median_ms"}))
def test_a_sorted_file_is_sorted_as_a_whole(large: SeededFarm, reader: Client, sort: str) -> None:
    rows = rows_of(reader, f"/dashboard/runs{{}}?sort={sort}")
    assert sorted(row["id"] for row in rows) == sorted(ids(large, Run))
    medians = [float(row["median_ms"]) for row in rows if row["median_ms"]]
    assert medians == sorted(medians, reverse=sort.startswith("-"))
    assert not any(row["median_ms"] for row in rows[len(medians) :])


def test_the_files_of_a_device_and_a_job_are_whole(large: SeededFarm, reader: Client) -> None:
    with large.farm.database.read() as session:
        run = session.get_one(Run, large.ids.sparse_run)
        job = session.query(Job).filter_by(bundle_digest=run.bundle_digest, state="succeeded").first()
    assert job is not None
    messages = [row["message"] for row in rows_of(reader, f"/dashboard/devices/{run.device_id}/history{{}}")]
    assert messages[:MANY] == [str(n) for n in reversed(range(MANY))]
    of_device = rows_of(reader, f"/dashboard/devices/{run.device_id}/runs{{}}")
    assert [row["id"] for row in of_device] == ids(large, Run, device_id=run.device_id)
    of_job = rows_of(reader, f"/dashboard/jobs/{job.id}/runs{{}}")
    assert [row["id"] for row in of_job] == ids(large, Run, bundle_digest=run.bundle_digest)


def test_benchmarks_as_a_file_know_every_measured_run(large: SeededFarm, reader: Client) -> None:
    with large.farm.database.transaction() as session:
        oldest = session.get_one(Run, ids(large, Run)[-1])
        oldest.settings = RunSettings("profile")
        oldest.batch, oldest.verdict = 77, "valid"  # a configuration of its own
        oldest.state, oldest.median_us = "succeeded", 123.0
    assert [row["median_ms"] for row in rows_of(reader, "/dashboard/benchmarks{}") if row["batch"] == "77"] == ["0.123"]


def test_losses_of_a_long_run_are_all_there(large: SeededFarm, reader: Client) -> None:
    with large.farm.database.transaction() as session:
        run = session.query(Run).filter_by(state="running").first()
        assert run is not None
        run_id = run.id
        bodies = [
            {"subject": run_id, "kind": "step", "at": 1.0, "body": {"loss": float(n), "attempt": 9}}
            for n in range(6000)
        ]
        session.execute(insert(Event), bodies)
    assert len(rows_of(reader, f"/dashboard/runs/{run_id}/losses{{}}")) == 6000


def test_a_file_is_sent_while_it_is_read_and_holds_no_connection(large: SeededFarm) -> None:
    database, statements = large.farm.database, []
    event.listen(database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    pieces = csv_text(runs_file(database, RunFilter()))
    first = list(itertools.islice(pieces, 2))
    assert len(first) == 2
    assert sum("FROM runs" in statement for statement in statements) == 1
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert "".join([*first, *pieces]).count("\n") == len(ids(large, Run)) + 1
    assert sum("FROM runs" in statement for statement in statements) == MANY // BATCH_ROWS + 2
