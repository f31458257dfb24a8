"""What pages ask of the runs is read by index, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from service.boards.fleet.marks import marks_of
from service.dashboard import queries
from service.dashboard.measured import measured
from service.store.database.models import Device
from service.work.runs.filter import RunFilter
from tests.service.board import leased
from tests.service.farms import TestFarm
from tests.service.test_lanes import queue_like, statements

ASKED: dict[str, tuple[Callable[[Session, str], object], str]] = {
    "measurements": (lambda session, _: measured(session, RunFilter()), "ix_runs_measured"),
    "runs of a device": (
        lambda session, device: queries.runs(session, RunFilter(device=device), 20),
        "ix_runs_device_id_id",
    ),
    "what a device's marks go by": (
        lambda session, device: marks_of(session, session.get_one(Device, device), None),
        "ix_runs_",
    ),
}
NOTHING = "One-Time Filter: false"
"""PostgreSQL's plan of what cannot find a row."""


@pytest.mark.parametrize("asked", ASKED)
def test_no_page_scans_all_runs(farm: TestFarm, asked: str) -> None:
    """One device has some runs that were measured, another has thousands, none of which was."""
    digest = farm.bundle()
    few, many = farm.board(name="few"), farm.board(name="many")
    work = farm.run(bundle=digest, device=few.device_id)["id"]
    assert few.report(leased(few)).status_code == 200
    queue_like(farm, work, 100, median_us=1000.0, verdict="valid")
    queue_like(farm, work, 5000, device_id=many.device_id, median_us=None, verdict=None)
    ask, index = ASKED[asked]
    with farm.farm.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    with statements(farm.farm) as seen, farm.farm.database.read() as session:
        ask(session, few.device_id)
    plans = [_plan(farm, *one) for one in seen if "FROM runs" in one[0]]
    assert plans
    for plan in (one for one in plans if NOTHING not in one):
        assert index in plan or farm.farm.database.engine.dialect.name == "sqlite", plan  # which chooses by state
        assert "SCAN runs" not in plan, plan
        assert "Seq Scan on runs" not in plan, plan


def _plan(farm: TestFarm, statement: str, parameters: Sequence[Any]) -> str:
    engine = farm.farm.database.engine
    prefix = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
    with engine.connect() as connection:
        return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, parameters))
