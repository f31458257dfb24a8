"""The farm is off for a day, or its clock jumps: no board is blamed, nothing that waits ends, operators read of it."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import func, select, update

from device_agents.wire import Credential, loads
from service.operations.gaps import Gaps
from service.operations.sweeper import sweep
from service.store.database.models import Attempt, AuditEntry, Device, IdempotencyRecord, Job, Run, SignOfLife
from service.store.farm import Farm
from service.store.signs_of_life import forget_silent, newest
from tests.service.board import leased
from tests.service.farms import TestFarm

DAY_S = 86_400.0


def set_clock(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + by_s)


def strikes(farm: Farm) -> list[int]:
    with farm.database.read() as session:
        return list(session.scalars(select(Device.strikes)))


def entries(farm: Farm) -> list[str]:
    with farm.database.read() as session:
        return list(session.scalars(select(AuditEntry.detail).where(AuditEntry.action == "farm clock jumped")))


def give_old_sign(farm: Farm, age_s: float) -> None:
    with farm.database.transaction() as session:
        session.add(SignOfLife(name="sweeper@before", kind="sweeper", seen_at=time.time() - age_s, slots=0))


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_clock_that_jumps_ends_nothing_and_blames_nobody(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle(), steps=2)
    work = leased(board)
    waiting, job = farm.run(bundle=work.bundle.digest), farm.compile(b"waits").json()["id"]
    gaps, others = Gaps(farm.farm), Gaps(farm.farm)
    sweep(farm.farm, gaps)
    sweep(farm.farm, others)
    set_clock(monkeypatch, jump_s)
    sweep(farm.farm, gaps)
    sweep(farm.farm, others)
    assert board.try_renew().status_code == 200
    assert farm.show(waiting["id"])["state"] == farm.http.get(f"/jobs/{job}").json()["state"] == "queued"
    assert strikes(farm.farm) == [0]
    assert ["86,400 s" in detail for detail in entries(farm.farm)] == [True, True]
    with farm.farm.database.read() as session:
        attempt = session.scalars(select(Attempt)).one()
        assert 0 < attempt.lease_expires_at - time.time() <= farm.farm.settings.lease_s
        assert 0 < attempt.deadline_at - time.time() < DAY_S


def test_a_report_is_possible_though_the_clock_went_back(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before a sweeper has noticed."""
    board, run = farm.board(), farm.run(bundle=farm.bundle(), steps=2)
    work = leased(board)
    set_clock(monkeypatch, -DAY_S)
    assert board.report(work).status_code == 200
    assert farm.show(run["id"])["state"] == "succeeded"
    assert strikes(farm.farm) == [0]


def run_out(farm: TestFarm, ago_s: float) -> None:
    at = time.time() - ago_s
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).values(lease_expires_at=at, deadline_at=at))
        session.execute(update(Run).values(queue_deadline_at=at))
        session.execute(update(Job).values(queue_deadline_at=at))


def test_a_farm_that_was_off_waits_for_its_boards(farm: TestFarm) -> None:
    board, run = farm.board(), farm.run(bundle=farm.bundle(), steps=2)
    work = leased(board)
    give_old_sign(farm.farm, DAY_S)
    run_out(farm, DAY_S / 2)
    gaps = Gaps(farm.farm)
    sweep(farm.farm, gaps)
    assert board.heartbeat(work).json()["cancel"] is False
    assert not gaps.may_delete
    assert "off" in entries(farm.farm)[0]
    assert board.report(work).status_code == 200
    assert farm.show(run["id"])["state"] == "succeeded"


def test_what_had_run_out_before_the_gap_ends(farm: TestFarm) -> None:
    board, run = farm.board(), farm.run(bundle=farm.bundle(), steps=2)
    leased(board)
    give_old_sign(farm.farm, DAY_S)
    run_out(farm, 2 * DAY_S)
    sweep(farm.farm, Gaps(farm.farm))
    assert strikes(farm.farm) == [1]
    assert farm.show(run["id"])["state"] == "queued"


def test_a_board_that_stays_silent_after_a_gap_loses_its_run(farm: TestFarm) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle(), steps=2)
    leased(board)
    give_old_sign(farm.farm, DAY_S)
    run_out(farm, DAY_S / 2)
    gaps = Gaps(farm.farm)
    sweep(farm.farm, gaps)
    run_out(farm, 1.0)
    sweep(farm.farm, gaps)
    assert strikes(farm.farm) == [1]


@pytest.mark.parametrize(("age_s", "count"), [(600.0, 0), (DAY_S, 1)])
def test_only_a_long_gap_keeps_back_what_deletes(farm: TestFarm, age_s: float, count: int) -> None:
    farm.http.post("/runs", json={"bundle": farm.bundle()}, headers={"Idempotency-Key": "again"})
    give_old_sign(farm.farm, age_s)
    with farm.farm.database.transaction() as session:
        session.execute(update(IdempotencyRecord).values(expires_at=time.time() - 2 * DAY_S))
    sweep(farm.farm, Gaps(farm.farm))
    with farm.farm.database.read() as session:
        assert session.scalar(select(func.count()).select_from(IdempotencyRecord)) == count


def test_the_sign_where_a_gap_begins_is_not_forgotten(farm: TestFarm) -> None:
    give_old_sign(farm.farm, DAY_S)
    with farm.farm.database.transaction() as session:
        forget_silent(session)
        assert newest(session, "sweeper") is not None


def test_a_heartbeat_before_a_sweeper_has_noticed_stops_no_run(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    board, gaps = farm.board(), Gaps(farm.farm)
    farm.run(bundle=farm.bundle(), steps=2)
    work = leased(board)
    sweep(farm.farm, gaps)
    set_clock(monkeypatch, DAY_S)
    board.credential = loads(Credential, board.try_renew().content).token
    assert board.heartbeat(work).json()["cancel"] is False
    sweep(farm.farm, gaps)
    assert board.heartbeat(work).json()["cancel"] is False
