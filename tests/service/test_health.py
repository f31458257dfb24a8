"""What `/healthz` and `/readyz` say, and when they say otherwise."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text, update

from service.app import create_app
from service.base.settings import Settings
from service.features.webhooks.courier import Courier
from service.operations.health.checks import Check, NotReady, Readiness
from service.operations.sweeper import Sweeper
from service.store import signs_of_life as signs
from service.store.database import schema
from service.store.database.models import Job, SignOfLife
from tests.service.client import Client
from tests.service.farms import RecordingQueue, TestFarm
from tests.service.newer_code import TODAY, VERSIONS
from tests.waiting import HANG_S, until

PARTS = ("database", "migrations", "storage", "broker", "disk", "workers")


def states(farm: TestFarm, query: str = "") -> tuple[int, dict[str, str]]:
    answer = farm.anonymous.get(f"/readyz{query}")
    return answer.status_code, answer.json()["parts"]


def test_a_farm_with_all_its_parts_is_ready(farm: TestFarm) -> None:
    farm.worker_lives()
    assert farm.anonymous.get("/healthz").json() == {"status": "ok"}
    answer = farm.anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert answer.json()["parts"] == dict.fromkeys(PARTS, "ok")
    assert set(answer.json()["limits_s"]) == set(PARTS)
    assert answer.json()["why"] == {}


def test_it_says_which_part_is_down_and_goes_on_without_those_excluded(farm: TestFarm) -> None:
    assert states(farm) == (503, dict.fromkeys(PARTS, "ok") | {"workers": "none"})
    assert states(farm, "?exclude=workers") == (200, dict.fromkeys(PARTS[:-1], "ok"))
    farm.queue.is_down = True
    assert states(farm, "?exclude=workers")[1]["broker"] == "down"
    assert states(farm, "?exclude=workers&exclude=broker")[0] == 200
    answer = farm.anonymous.get("/readyz?exclude=nothing")
    assert (answer.status_code, answer.json()["code"]) == (422, "ready.unknown")


def test_a_worker_that_went_silent_is_no_worker(farm: TestFarm) -> None:
    farm.worker_lives()
    with farm.farm.database.transaction() as session:
        session.execute(update(SignOfLife).values(seen_at=time.time() - signs.FRESH_S - 1))
    assert states(farm)[1]["workers"] == "none"
    farm.worker_lives()
    assert states(farm)[1]["workers"] == "ok"


def test_workers_that_live_and_take_no_work_are_not_ready(farm: TestFarm) -> None:
    """Told by what is consumed: a job that waits is no sign while others begin, or every worker has its hands full."""
    farm.worker_lives()
    waiting, busy = (str(farm.compile(model).json()["id"]) for model in (b"one", b"two"))
    assert states(farm)[1]["workers"] == "ok", "it has only just rung"
    long_ago = time.time() - 2 * farm.farm.settings.doorbell_s - 1
    change(farm, waiting, created_at=long_ago)
    answer = farm.anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]["workers"]) == (503, "idle")
    assert answer.json()["why"]["workers"].startswith(
        "1 job(s) wait in the queue 'pockfarm' for more than 60 s, and the 1 worker(s) could run 1 more"
    )
    change(farm, busy, state="succeeded", started_at=time.time(), finished_at=time.time())
    assert states(farm)[1]["workers"] == "ok", "another has begun"
    change(farm, busy, started_at=long_ago)
    assert states(farm)[1]["workers"] == "idle"
    change(farm, busy, state="compiling", finished_at=None)
    assert states(farm)[1]["workers"] == "ok", "the worker has work"


def test_a_job_that_waits_for_its_organisations_share_is_no_fault_of_the_workers(farm: TestFarm) -> None:
    with farm.farm.database.transaction() as session:
        signs.give_sign(session, "worker", slots=2)
    acme = farm.tenant("acme")
    busy, waiting = (acme.compile(model).json()["id"] for model in (b"long", b"next"))
    long_ago = time.time() - 2 * farm.farm.settings.doorbell_s - 1
    change(farm, busy, state="compiling", started_at=long_ago)
    change(farm, waiting, created_at=long_ago)
    assert states(farm)[1]["workers"] == "ok"
    change(farm, busy, state="succeeded", finished_at=long_ago)
    assert states(farm)[1]["workers"] == "idle"


def change(farm: TestFarm, job_id: str, **columns: object) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(**columns))


def test_a_newer_schema_is_not_ready(farm: TestFarm) -> None:
    with farm.farm.database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    answer = farm.anonymous.get("/readyz")
    with farm.farm.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{TODAY}'"))
    assert (answer.status_code, answer.json()["parts"]["migrations"]) == (503, "ahead")
    assert "the database has schema 9999" in answer.json()["why"]["migrations"]


def test_an_older_schema_is_not_ready(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "VERSIONS", VERSIONS)
    answer = farm.anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]["migrations"]) == (503, "behind")
    assert f"the database has schema {TODAY}" in answer.json()["why"]["migrations"]


def test_a_database_without_tables_takes_no_write(tmp_path: Path) -> None:
    app = create_app(Settings(state=tmp_path / "empty", sweep_s=0), queue=RecordingQueue())
    with Client(app) as http:
        parts = http.get("/readyz").json()["parts"]
    assert (parts["database"], parts["migrations"]) == ("down", "behind")


def test_the_answer_holds_no_word_of_a_driver(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ConnectionError("redis://:the-password@broker:6379 refused")

    monkeypatch.setattr(farm.queue, "check", broken)
    checks = [Check(check.name, check.limit_s, broken) for check in farm.anonymous.app.state.readiness.checks]
    farm.anonymous.app.state.readiness = Readiness(checks, keep_s=0)
    answer = farm.anonymous.get("/readyz")
    assert set(answer.json()["parts"].values()) == {"down"}
    assert "password" not in answer.text
    assert "ConnectionError" in answer.json()["why"]["broker"]


def test_a_hung_part_costs_its_limit_of_time_and_one_thread() -> None:
    gate, asked = threading.Event(), []

    def hang() -> None:
        asked.append(1)
        gate.wait(HANG_S)

    readiness = Readiness([Check("hung", 0.05, hang), Check("well", HANG_S, lambda: None)], keep_s=0)
    for _ in range(3):
        findings = readiness.findings()
        assert (findings["hung"].state, findings["well"].state) == ("slow", "ok")
        assert "0.05 s" in findings["hung"].why
    assert len(asked) == 1
    gate.set()


def test_findings_are_kept_for_a_moment() -> None:
    asked = []

    def act() -> None:
        asked.append(1)
        raise NotReady("none", "nobody is there")

    readiness = Readiness([Check("one", 1.0, act)], keep_s=60)
    assert [readiness.findings()["one"].state for _ in range(3)] == ["none"] * 3
    assert len(asked) == 1


def test_a_sweeper_says_that_it_sweeps(farm: TestFarm) -> None:
    sweeper = Sweeper(farm.farm)
    sweeper._signs.give()
    sweeper._signs.give()
    with farm.farm.database.read() as session:
        assert signs.count_alive(session, "sweeper") == 1
        assert signs.newest(session, "worker") is None


def test_a_courier_says_that_it_looks(farm: TestFarm) -> None:
    courier = Courier(farm.farm.database, farm.farm.settings.model_copy(update={"sweep_s": 1.0}))
    courier.start()
    try:
        until(lambda: counted(farm, "courier") == 1)
    finally:
        courier.stop()
    assert 'pockfarm_processes{kind="courier"} 1.0' in farm.http.get("/metrics").text


def counted(farm: TestFarm, kind: signs.Kind) -> int:
    with farm.farm.database.read() as session:
        return signs.count_alive(session, kind)


def test_old_signs_are_forgotten(farm: TestFarm) -> None:
    with farm.farm.database.transaction() as session:
        session.add(SignOfLife(name="worker@gone:1", kind="worker", seen_at=time.time() - 7200))
        session.add(SignOfLife(name="worker@here:1", kind="worker", seen_at=time.time()))
    signs.Signs(farm.farm.database, "api").give()
    with farm.farm.database.read() as session:
        assert {one.name for one in session.query(SignOfLife)} == {"worker@here:1", signs.own_name("api")}
