"""What devices tell of their storage and temperature: kept, shown, warned about; odd values do nothing but be told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from device_agents import wire as p
from service.devices import conditions
from service.devices.conditions import KEPT_QUARTERS, Conditions
from service.operations.sweeper import forget_temperatures, note_conditions
from service.store.database.models import QUARTER_S, DeviceCondition, DeviceTemperature
from tests.agents.live_farm import LiveFarm
from tests.sample import thinned
from tests.service.board import Board, leased
from tests.service.farms import TestFarm
from tests.service.tenants import make_tenant

GIB = 1 << 30
FINE = p.Condition(29 * GIB, 12 * GIB, 5 << 20, 61.25)


def tell(farm: TestFarm, board: Board, said: p.Condition | str | None) -> dict[str, Any]:
    """What the farm shows of the device after a request for work that says this."""
    board.condition = p.dumps(said).decode() if isinstance(said, p.Condition) else said
    assert board.try_lease().status_code == 204
    note_conditions(farm.farm)
    return dict(farm.http.get(f"/devices/{board.device_id}").json())


def marks(shown: dict[str, Any]) -> dict[str, str]:
    return {mark["code"]: mark["message"] for mark in shown["marks"]}


def test_what_is_told_with_a_request_for_work_is_shown(farm: TestFarm) -> None:
    before = time.time()
    shown = tell(farm, farm.board(), FINE)["condition"]
    at = shown.pop("at")
    assert shown == {
        "storage_total_bytes": 29 * GIB,
        "storage_free_bytes": 12 * GIB,
        "storage_is_nearly_full": False,
        "kept_bytes": 5 << 20,
        "temperature_c": 61.25,
        "problem": "",
    }
    assert at.endswith("Z")
    with farm.farm.database.read() as session:
        assert before <= session.scalars(select(DeviceCondition.at)).one() <= time.time()


def test_what_is_told_with_a_heartbeat_counts_too(farm: TestFarm) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle(), mode="profile")
    work = leased(board)
    board.condition = p.dumps(replace(FINE, temperature_c=74.0)).decode()
    assert board.heartbeat(work).status_code == 200
    note_conditions(farm.farm)
    assert farm.http.get(f"/devices/{board.device_id}").json()["condition"]["temperature_c"] == 74.0


def test_an_older_agent_that_tells_nothing_works_as_before(farm: TestFarm) -> None:
    board = farm.board()
    assert tell(farm, board, None)["condition"] is None
    run = farm.run(bundle=farm.bundle(), mode="profile")["id"]
    assert leased(board).run_id == run


def test_an_agent_that_knows_nothing_of_itself_says_so(farm: TestFarm) -> None:
    shown = tell(farm, farm.board(), p.Condition())
    assert shown["condition"]["storage_total_bytes"] is None
    assert not marks(shown)


ODD = {
    "negative": {"storage_total_bytes": 10, "storage_free_bytes": -1},
    "more free than there is": {"storage_total_bytes": 10, "storage_free_bytes": 11},
    "half of it": {"storage_free_bytes": 11},
    "a fraction of a byte": {"storage_total_bytes": 10.5, "storage_free_bytes": 1},
    "larger than a column": {"storage_total_bytes": 1 << 63, "storage_free_bytes": 1},
    "no number": {"kept_bytes": True},
    "text": {"temperature_c": "hot"},
    "hotter than fire": {"temperature_c": 1e6},
    "colder than anything": {"temperature_c": -274},
    "unknown": {"humidity": 3},
}
TEXTS = (
    "",
    "{",
    "[]",
    "null",
    '{"temperature_c":NaN}',
    '{"temperature_c":1e999}',
    "9" * 600,
    "\u00b2",
    "{}" * 300,
    '{"kept_bytes":1,"kept_bytes":2}',
)


@pytest.mark.parametrize("condition", thinned([*map(json.dumps, ODD.values()), *TEXTS], 7))
def test_what_cannot_be_is_not_taken_and_told(small_farm: TestFarm, condition: str) -> None:
    board = small_farm.board()
    tell(small_farm, board, FINE)
    board.condition = condition
    answer = board.post(p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 2))
    assert answer.status_code == 204, "it is no reason to refuse work"
    note_conditions(small_farm.farm)
    shown = small_farm.http.get(f"/devices/{board.device_id}").json()
    assert shown["condition"]["problem"]
    assert shown["condition"]["temperature_c"] is shown["condition"]["storage_free_bytes"] is None
    assert "cannot be" in marks(shown)["condition"]
    assert not marks(tell(small_farm, board, FINE)), "the next good one takes its place"


@pytest.mark.parametrize(
    ("total", "free", "is_full"),
    [
        (29 * GIB, int(1.4 * GIB), True),
        (29 * GIB, int(1.5 * GIB), False),  # a twentieth
        (1000 * GIB, int(3.9 * GIB), True),
        (1000 * GIB, 4 * GIB, False),  # 4 GiB are enough, however large it is
        (8 * GIB, GIB - 1, True),
        (8 * GIB, GIB, False),  # and 1 GiB is wanted, however small
    ],
)
def test_storage_that_is_nearly_full_is_warned_about(
    small_farm: TestFarm, total: int, free: int, is_full: bool
) -> None:
    board = small_farm.board(name="shelf-3")
    shown = tell(small_farm, board, p.Condition(total, free))
    assert shown["condition"]["storage_is_nearly_full"] is is_full
    assert ("storage" in marks(shown)) is is_full
    page = small_farm.http.get("/dashboard", headers={"Accept": "text/html"}).text
    assert ("The storage of shelf-3 is nearly full" in page) is is_full
    assert f"pockfarm_devices_nearly_full {float(is_full)}" in small_farm.http.get("/metrics").text


def test_the_hottest_of_a_quarter_is_kept_and_a_week_of_them(farm: TestFarm) -> None:
    board = farm.board()
    for heat_c in (50.0, 63.5, 41.0):
        tell(farm, board, p.Condition(temperature_c=heat_c))
    with farm.farm.database.transaction() as session:
        rows = session.scalars(select(DeviceTemperature)).all()
        assert 63.5 in [row.hottest_c for row in rows], "a quarter may end in between"
        now = int(time.time() // QUARTER_S)
        session.execute(
            update(DeviceTemperature)
            .values(quarter=now - KEPT_QUARTERS)
            .where(DeviceTemperature.quarter == rows[0].quarter)
        )
        session.add(DeviceTemperature(device_id=board.device_id, quarter=now - KEPT_QUARTERS - 2, hottest_c=1.0))
    forget_temperatures(farm.farm)
    with farm.farm.database.read() as session:
        assert session.scalar(select(func.min(DeviceTemperature.quarter))) == now - KEPT_QUARTERS
        assert 1.0 not in [heat_c for _, heat_c in conditions.temperatures(session, board.device_id)]


def test_an_older_word_of_another_process_does_not_count(farm: TestFarm) -> None:
    board = farm.board()
    tell(farm, board, FINE)
    late = conditions.Conditions()
    late.note(board.device_id, p.dumps(p.Condition(temperature_c=20.0)).decode())
    with farm.farm.database.transaction() as session:
        session.execute(update(DeviceCondition).values(at=time.time() + 60))
    late.write(farm.farm.database)
    assert farm.http.get(f"/devices/{board.device_id}").json()["condition"]["temperature_c"] == 61.25


def test_what_the_database_does_not_take_is_told_the_next_time(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    board = farm.board()
    board.condition = p.dumps(FINE).decode()
    board.try_lease()
    with monkeypatch.context() as away:
        away.setattr(conditions, "keep_higher", _fail)
        with pytest.raises(ConnectionError):
            note_conditions(farm.farm)
    note_conditions(farm.farm)
    shown = farm.http.get(f"/devices/{board.device_id}").json()["condition"]
    assert shown["storage_free_bytes"] == 12 * GIB


def _fail(*_: object, **__: object) -> None:
    raise ConnectionError("away")


def test_others_are_not_told(farm: TestFarm) -> None:
    acme = make_tenant(farm, "acme")
    board = farm.board()
    tell(farm, board, FINE)
    theirs = acme.farm.http.get(f"/devices/{board.device_id}")
    assert theirs.status_code == 200, "the farm's own boards are shared"
    assert theirs.json()["condition"] is None
    rows = acme.farm.http.get(f"/dashboard/devices/{board.device_id}/temperatures.json")
    assert rows.json() in ([], {"rows": []}) or not rows.json().get("rows")


def test_the_command_shows_it(live: LiveFarm, said: Callable[..., str]) -> None:
    board = Board(live.http, name="pi").enrol(live.token())
    board.condition = p.dumps(p.Condition(29 * GIB, GIB, 5 << 20, 61.25)).decode()
    board.try_lease()
    live.farm.part(Conditions).write(live.farm.database)
    lines = {line.split("  ")[0]: line for line in said("devices", "show", "pi").splitlines()}
    assert lines["storage"].endswith("1.00 GiB of 29.0 GiB free, nearly full")
    assert "61 \u00b0C at" in lines["temperature"]
