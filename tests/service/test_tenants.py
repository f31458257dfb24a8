"""Organisations, their people and keys: scopes, ends of keys, devices of one's own and of the farm's."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import update

from device_agents import wire as p
from service.people.permissions import SCOPES
from service.store.database.models import HOME, ApiKey
from tests.service.board import Board, leased
from tests.service.farms import TestFarm


def bearer(made: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['secret']}"}


def status(farm: TestFarm, path: str, header: dict[str, str]) -> int:
    return farm.anonymous.get(path, headers=header).status_code


def test_a_key_has_scopes_an_owner_an_end_and_a_last_use(farm: TestFarm) -> None:
    user = farm.http.post("/users", json={"name": "Ada"}).json()
    asked = {"name": "ci", "scopes": ["submit", "read"], "user": user["id"], "lifetime_s": 3600}
    made = farm.http.post("/keys", json=asked).json()
    assert (made["scopes"], made["role"], made["user_id"]) == (["read", "submit"], "user", user["id"])
    assert made["organisation_id"] == HOME
    assert made["last_used_at"] is None
    assert status(farm, "/jobs", bearer(made)) == 200
    assert status(farm, "/keys", bearer(made)) == 403
    farm.sweep()
    (shown,) = [key for key in farm.http.get("/keys").json() if key["id"] == made["id"]]
    assert shown["last_used_at"] is not None
    assert shown["expires_at"] > shown["created_at"]
    with farm.farm.database.transaction() as session:
        session.execute(update(ApiKey).where(ApiKey.id == made["id"]).values(expires_at=time.time() - 1))
    assert status(farm, "/jobs", bearer(made)) == 401


def test_the_devices_of_a_closed_organisation_are_removed(farm: TestFarm) -> None:
    acme, shared = farm.tenant("acme"), farm.board(name="shared")
    token = acme.http.post("/devices/enrolment-tokens", json={}).json()["token"]
    board = Board(farm.anonymous).enrol(token)
    run = acme.run(bundle=acme.bundle())["id"]
    assert farm.http.post(f"/organisations/{acme.organisation_id}/close").status_code == 200
    assert (board.try_lease().status_code, board.try_renew().status_code) == (401, 403)
    assert leased(shared).run_id == run, "what it began goes on elsewhere"


def test_a_removed_person_and_a_closed_organisation_have_no_keys(farm: TestFarm) -> None:
    user = farm.http.post("/users", json={"name": "Ada"}).json()["id"]
    key = bearer(farm.http.post("/keys", json={"name": "hers", "user": user}).json())
    assert status(farm, "/jobs", key) == 200
    assert farm.http.delete(f"/users/{user}").json()["removed_at"] is not None
    assert status(farm, "/jobs", key) == 401
    acme = farm.tenant("acme")
    assert acme.http.get("/organisation").json()["name"] == "acme"
    assert farm.http.post(f"/organisations/{acme.organisation_id}/close").json()["closed_at"] is not None
    assert acme.http.get("/organisation").status_code == 401
    assert farm.http.post(f"/organisations/{HOME}/close").json()["code"] == "organisation.home"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "n", "role": "user", "scopes": ["read"]}, "request.invalid"),
        ({"name": "n", "scopes": []}, "request.invalid"),
        ({"name": "n", "scopes": ["all"]}, "request.invalid"),
        ({"name": "n", "lifetime_s": 0}, "request.invalid"),
        ({"name": "n", "user": "usr_x"}, "user.unknown"),
    ],
)
def test_keys_that_cannot_be(small_farm: TestFarm, body: dict[str, Any], code: str) -> None:
    assert small_farm.http.post("/keys", json=body).json()["code"] == code


def test_names_are_taken_once(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    assert farm.http.post("/organisations", json={"name": "acme"}).json()["code"] == "organisation.name"
    assert farm.http.patch(f"/organisations/{acme.organisation_id}", json={"name": "home"}).status_code == 409
    renamed = farm.http.patch(f"/organisations/{acme.organisation_id}", json={"name": "acme ltd"})
    assert renamed.json()["name"] == "acme ltd"
    assert farm.http.post("/users", json={"name": "Ada"}).status_code == 201
    assert acme.http.post("/users", json={"name": "Ada"}).status_code == 201
    assert farm.http.post("/users", json={"name": "Ada"}).json()["code"] == "user.name"
    assert farm.http.post("/organisations/org_x/keys", json={"name": "n"}).json()["code"] == "organisation.unknown"


def test_the_first_key_of_a_tenant_comes_from_the_farms_administrator(farm: TestFarm) -> None:
    made = farm.http.post("/organisations", json={"name": "acme"}).json()
    key = farm.http.post(f"/organisations/{made['id']}/keys", json={"name": "first", "role": "operator"}).json()
    assert (key["organisation_id"], key["scopes"]) == (made["id"], list(SCOPES))
    assert farm.anonymous.get("/organisation", headers=bearer(key)).json()["id"] == made["id"]
    assert key["id"] not in farm.http.get("/keys").text


def test_a_tenants_device_takes_its_own_runs_and_a_shared_one_everybodys(farm: TestFarm) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    own, shared = acme.board(name="own"), farm.board(name="shared")
    kept = farm.http.post("/devices/enrolment-tokens", json={"shared": False}).json()["token"]
    refused = acme.http.post("/devices/enrolment-tokens", json={"shared": True})
    assert (refused.status_code, refused.json()["code"]) == (403, "device.shared")
    assert [one["name"] for one in other.http.get("/devices").json()["items"]] == ["shared"]
    assert {one["name"] for one in acme.http.get("/devices").json()["items"]} == {"own", "shared"}
    theirs = other.run(bundle=other.bundle(b"theirs"))
    assert own.lease() is None
    work = leased(shared)
    assert work.run_id == theirs["id"]
    assert shared.heartbeat(work).status_code == 200
    said = acme.http.post("/runs", json={"bundle": acme.bundle(b"mine"), "device": shared.device_id}).json()
    told = acme.http.get(f"/runs/{said['id']}/why").text
    assert "another organisation's run" in told
    assert theirs["id"] not in told
    assert len(kept) == 64


def test_who_shares_a_device_does_not_decide_about_it(farm: TestFarm) -> None:
    acme, board = farm.tenant("acme"), farm.board()
    for answer in (
        acme.http.post(f"/devices/{board.device_id}/quarantine", json={"reason": "r"}),
        acme.http.post(f"/devices/{board.device_id}/release", json={"reason": "r"}),
        acme.http.post(f"/devices/{board.device_id}/canary", json={"enabled": False}),
        acme.http.delete(f"/devices/{board.device_id}"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "device.owner")
    shown = acme.http.get(f"/devices/{board.device_id}").json()
    assert (shown["state"], shown["history"], shown["marks"]) == ("active", [], [])


def test_what_a_run_said_is_not_in_the_history_of_a_device_that_others_own(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    board = farm.board()
    for number in range(3):
        acme.run(bundle=acme.bundle(f"model {number}".encode()))
        work = leased(board)
        outcome = p.Outcome("failed", cause="device", code="device.sandbox", message="secretmarker")
        assert board.report(work, outcome=outcome).status_code == 200
    shown = farm.http.get(f"/devices/{board.device_id}")
    assert "device.sandbox" in shown.text
    assert "secretmarker" not in shown.text
