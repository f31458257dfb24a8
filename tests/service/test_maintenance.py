"""Drain and maintenance: what runs goes on, nothing starts that may not, and everybody who waits is told."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from service.devices.maintenance.windows import WEEK_S, Times, first_touched
from service.store.database.models import MaintenanceWindow
from tests.agents.live_farm import LiveFarm
from tests.service.board import Board, leased
from tests.service.farms import TestFarm

ATTEMPT_S = 900.0 + 1800.0
"""The farm's transfer and run clocks, which the tests leave at their defaults."""


def at(seconds_from_now: float) -> str:
    return datetime.datetime.fromtimestamp(time.time() + seconds_from_now, datetime.UTC).isoformat()


def plan(farm: TestFarm, start: float, end: float, **body: Any) -> dict[str, Any]:
    answer = farm.http.post("/maintenance", json={"starts_at": at(start), "ends_at": at(end), **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def waiting(farm: TestFarm, run: dict[str, Any]) -> dict[str, Any]:
    return dict(farm.http.get(f"/runs/{run['id']}/why").json()["waiting"])


def test_a_drained_device_finishes_what_it_has_and_takes_nothing_new(farm: TestFarm) -> None:
    board, bundle = farm.board(), farm.bundle()
    first, second = farm.run(bundle=bundle), farm.run(bundle=bundle)
    work = leased(board)
    answer = farm.http.post(f"/devices/{board.device_id}/drain", json={"reason": "a new fan"})
    assert answer.json()["drained_at"] is not None
    assert farm.http.get(f"/devices/{board.device_id}").json()["working_on"] == first["id"]
    assert board.heartbeat(work).json()["cancel"] is False
    assert board.report(work).status_code == 200
    assert board.lease() is None
    seen = farm.http.get(f"/devices/{board.device_id}").json()
    assert (seen["working_on"], seen["hold"]["code"]) == (None, "drained")
    told = waiting(farm, second)
    assert (told["code"], told["devices"][0]["code"]) == ("unavailable", "drained")
    assert "a new fan" in told["message"]
    farm.http.post(f"/devices/{board.device_id}/resume")
    assert leased(board).run_id == second["id"]
    kinds = [line["kind"] for line in farm.http.get(f"/devices/{board.device_id}").json()["history"]]
    assert kinds[:2] == ["resumed", "drained"]


def test_a_run_for_a_drained_device_is_queued_and_says_that_it_waits(farm: TestFarm) -> None:
    board = farm.board()
    farm.http.post(f"/devices/{board.device_id}/drain", json={"reason": "moving house"})
    run = farm.run(bundle=farm.bundle(), device=board.device_id)
    assert run["warnings"][0]["code"] == "run.waits"
    assert "moving house" in run["warnings"][0]["message"]


def test_another_device_takes_what_a_drained_one_does_not(farm: TestFarm) -> None:
    drained, other = farm.board(name="drained"), farm.board(name="other")
    farm.http.post(f"/devices/{drained.device_id}/drain", json={})
    run = farm.run(bundle=farm.bundle())
    assert run["warnings"] == []
    assert drained.lease() is None
    assert leased(other).run_id == run["id"]


def test_nothing_starts_in_a_window_nor_what_could_reach_into_it(farm: TestFarm) -> None:
    board, run = farm.board(), farm.run(bundle=farm.bundle())
    window = plan(farm, -60, 600, reason="firmware")
    assert board.lease() is None
    told = waiting(farm, run)
    assert told["devices"][0]["code"] == "maintenance"
    assert told["devices"][0]["until"] == window["next_ends_at"]
    assert "firmware" in told["message"]
    farm.http.delete(f"/maintenance/{window['id']}")
    soon = plan(farm, ATTEMPT_S / 2, ATTEMPT_S)
    assert board.lease() is None, "it could reach into it"
    assert "a run may take 45 minutes" in waiting(farm, run)["message"]
    farm.http.delete(f"/maintenance/{soon['id']}")
    plan(farm, ATTEMPT_S + 60, ATTEMPT_S + 120)
    assert leased(board).run_id == run["id"], "its time fits before"


def test_a_long_run_waits_for_its_own_time_and_hides_no_shorter_one(farm: TestFarm) -> None:
    board, bundle = farm.board(), farm.bundle()
    long = farm.run(bundle=bundle, time_limit_s=5 * 3600.0)
    plan(farm, 2 * 3600.0, 3 * 3600.0)
    told = waiting(farm, long)
    assert told["devices"][0]["code"] == "maintenance"
    assert "a run may take 5 hours" in told["message"]
    assert board.lease() is None
    late = farm.run(bundle=bundle, time_limit_s=4 * 3600.0)
    assert late["warnings"][0]["code"] == "run.waits"
    short = farm.run(bundle=bundle)
    assert leased(board).run_id == short["id"]


@pytest.mark.parametrize("short_s", [None, 60.0])
def test_a_hundred_long_runs_hide_no_shorter_one(farm: TestFarm, short_s: float | None) -> None:
    """Nor do they when the window comes near while a device waits."""
    board, bundle = farm.board(), farm.bundle()
    for _ in range(100):
        farm.run(bundle=bundle, time_limit_s=5 * 3600.0)
    fitting = farm.run(bundle=bundle, time_limit_s=1.5 * 3600.0)
    short = farm.run(bundle=bundle, time_limit_s=short_s)
    plan(farm, 2 * 3600.0, 3 * 3600.0)
    for run in (fitting, short):
        work = leased(board)
        assert work.run_id == run["id"]
        board.report(work)
    assert board.lease() is None


def test_what_runs_when_a_window_begins_goes_on(farm: TestFarm) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle())
    work = leased(board)
    plan(farm, -1, 600)
    assert board.heartbeat(work).json()["cancel"] is False
    assert board.report(work).status_code == 200


def test_a_window_is_about_a_device_a_class_or_all(farm: TestFarm) -> None:
    mine, peer = farm.board(name="mine"), farm.board(name="peer")
    other = farm.board(name="other", device_class="raspberry-pi-4")
    bundle = farm.bundle()
    for _ in range(3):
        farm.run(bundle=bundle)
    windows = [plan(farm, -1, 600, device=mine.device_id)]
    assert mine.lease() is None
    windows.append(plan(farm, -1, 600, device_class="raspberry-pi-4"))
    assert other.lease() is None
    assert peer.lease() is not None
    for window in windows:
        farm.http.delete(f"/maintenance/{window['id']}")
    windows = [plan(farm, -1, 600)]
    assert mine.lease() is None
    assert other.lease() is None


def test_a_window_of_an_organisation_is_about_its_own_devices(farm: TestFarm) -> None:
    ours, acme = farm.board(name="ours"), farm.tenant("acme")
    theirs = acme.board(name="theirs")
    farm.run(bundle=farm.bundle())
    acme.run(bundle=acme.bundle(), device=theirs.device_id)
    window = plan(acme, -1, 600)
    assert theirs.lease() is None
    assert ours.lease() is not None
    assert farm.http.get("/maintenance").json()["items"] == []
    assert farm.http.delete(f"/maintenance/{window['id']}").status_code == 404
    assert acme.http.post(f"/devices/{ours.device_id}/drain", json={}).status_code == 403, "shared, and not theirs"


def test_a_weekly_window_comes_again_and_is_over_in_between(farm: TestFarm) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle())
    window = plan(farm, -86400, -80000, weekly=True)
    with farm.farm.database.transaction() as session:  # three weeks of it have passed
        values = {"starts_at": time.time() - 3 * WEEK_S - 10, "ends_at": time.time() - 3 * WEEK_S + 600}
        session.execute(update(MaintenanceWindow).values(**values))
    assert board.lease() is None
    with farm.farm.database.transaction() as session:
        values = {"starts_at": time.time() - 3 * WEEK_S - 7200, "ends_at": time.time() - 3 * WEEK_S - 10}
        session.execute(update(MaintenanceWindow).values(**values))
    assert board.lease() is not None
    (seen,) = farm.http.get("/maintenance").json()["items"]
    assert seen["id"] == window["id"]
    assert seen["next_starts_at"] > at(6 * 86400)


@given(start=st.floats(0, 1e9), length=st.floats(1, WEEK_S - 1), since=st.floats(-1e6, 1e8), needed=st.floats(1, 1e5))
def test_no_time_of_a_weekly_window_is_passed_over(start: float, length: float, since: float, needed: float) -> None:
    """Against every single time of it, written out."""
    window, now = Times(start, start + length, WEEK_S), start + since
    found = first_touched([window], now, now + needed)
    weeks = range(max(0, int(since // WEEK_S) - 2), max(0, int((since + needed) // WEEK_S)) + 3)
    touching = [k for k in weeks if start + k * WEEK_S < now + needed and now < start + length + k * WEEK_S]
    assert (found is not None) == bool(touching)
    if found is not None:
        assert found[0] == pytest.approx(start + touching[0] * WEEK_S, abs=1e-3)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"starts_at": at(60), "ends_at": at(0)}, "maintenance.times"),
        ({"starts_at": at(-60), "ends_at": at(-30)}, "maintenance.times"),
        ({"starts_at": at(0), "ends_at": at(8 * 86400), "weekly": True}, "maintenance.times"),
        ({"starts_at": at(0), "ends_at": at(400 * 86400)}, "maintenance.times"),
        ({"starts_at": "2030-01-01T00:00:00", "ends_at": "2030-01-02T00:00:00"}, "request.invalid"),
        ({"starts_at": at(0), "ends_at": at(86400), "device": "dev_none"}, "device.unknown"),
        ({"starts_at": at(0), "ends_at": at(86400), "device": "dev_none", "device_class": "x"}, "maintenance.about"),
    ],
)
def test_a_window_that_is_none_is_refused(small_farm: TestFarm, body: dict[str, Any], code: str) -> None:
    answer = small_farm.http.post("/maintenance", json=body)
    assert (answer.json()["code"], answer.status_code) == (code, 404 if code == "device.unknown" else 422)


def test_users_plan_no_maintenance_and_drain_nothing(small_farm: TestFarm) -> None:
    board, user = small_farm.board(), small_farm.key("user")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/maintenance", {"starts_at": at(0), "ends_at": at(60)}),
        (f"/devices/{board.device_id}/drain", {}),
        (f"/devices/{board.device_id}/resume", {}),
    ]
    for path, body in asked:
        assert small_farm.anonymous.post(path, json=body, headers=user).status_code == 403


def test_the_command_line_makes_tokens_drains_and_plans(live: LiveFarm, said: Callable[..., str]) -> None:
    token_id, token = (line.split()[1] for line in said("tokens", "add", "--uses", "2").splitlines())
    board = Board(live.http, name="shelf").enrol(token)
    assert "shelf" in said("tokens", "show", token_id)
    assert token_id in said("tokens", "list")
    assert "takes nothing new" in said("devices", "drain", board.device_id, "--reason", "dust")
    assert "is drained: dust" in said("devices", "show", board.device_id)
    assert "drained" in said("devices")
    assert "takes work again" in said("devices", "resume", board.device_id)
    window = said("maintenance", "add", at(60), at(120), "--device", board.device_id, "--weekly").split()[0]
    assert window in said("maintenance", "list")
    said("maintenance", "remove", window)
    assert said("maintenance", "list") == "no maintenance windows\n"
    said("tokens", "revoke", token_id)
    assert Board(live.http).try_enrol(token).status_code == 403
