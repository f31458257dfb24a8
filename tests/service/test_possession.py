"""Who enrols has the device's key: public keys are no secret, and no token makes another device of one that is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from device_agents import wire as p
from tests.service.board import Board, description, leased
from tests.service.farms import TestFarm


def new_token(farm: TestFarm, **body: Any) -> str:
    return str(farm.http.post("/devices/enrolment-tokens", json=body).json()["token"])


def published_key(farm: TestFarm, board: Board) -> str:
    """The board's public key, as anybody who may read results finds it in a receipt."""
    run = farm.run(bundle=farm.bundle())
    assert board.report(leased(board)).status_code == 200
    farm.sweep()
    return str(farm.http.get(f"/runs/{run['id']}/receipt").json()["entry"]["device_key"])


def said(farm: TestFarm, board: Board) -> dict[str, Any]:
    """What the farm holds of the device, but for the time."""
    shown = dict(farm.http.get(f"/devices/{board.device_id}").json())
    return {name: value for name, value in shown.items() if name != "last_seen_at"}


@pytest.mark.parametrize("signed", ["by the thief", "not at all", "by the victim, for another token", "nonsense"])
def test_anothers_public_key_and_a_good_token_make_nobody_that_board(farm: TestFarm, signed: str) -> None:
    victim, thief = farm.board(name="victim"), Board(farm.anonymous, name="thief")
    stolen, token = published_key(farm, victim), new_token(farm)
    assert stolen == victim.public_key
    forged = thief.enrolment(token, public_key=stolen)
    requests = {
        "by the thief": forged,
        "not at all": replace(forged, signature=""),
        "by the victim, for another token": replace(victim.enrolment(new_token(farm)), token=token),
        "nonsense": replace(forged, signature="no base64"),
    }
    before = said(farm, victim)
    refused = thief.post(p.ENROL_PATH, requests[signed])
    assert (refused.status_code, refused.json()["code"], refused.json()["where"]) == (
        403,
        "enrol.signature",
        "signature",
    )
    assert refused.json()["hint"]
    assert said(farm, victim) == before
    assert victim.try_lease().status_code == 204, "its session goes on"
    assert thief.enrol(token).device_id != victim.device_id, "the token is still good, for who has its own key"


def test_an_agent_that_is_too_old_to_sign_is_told_the_way_out(small_farm: TestFarm) -> None:
    board, token = Board(small_farm.anonymous), new_token(small_farm)
    body = json.loads(p.dumps(board.enrolment(token)))
    del body["signature"]
    refused = board.post(p.ENROL_PATH, None, content=json.dumps(body).encode()).json()
    assert (refused["status"], refused["code"]) == (403, "enrol.signature")
    assert "is missing" in refused["detail"]
    assert "line of enrolment" in refused["hint"]
    assert board.enrol(token).device_id


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"measurement_class": "hardware"}, "measurement_class"),
        ({"device_class": "raspberry-pi-4"}, "device_class"),
        ({"targets": ("x86-64-v4", "x86-64-v3")}, "targets"),
    ],
)
@pytest.mark.parametrize("act", ["enrol", "renew"])
def test_neither_enrolling_again_nor_renewing_makes_it_another_device(
    farm: TestFarm, act: str, changed: dict[str, Any], where: str
) -> None:
    of_class: dict[str, Any] = {"targets": ("x86-64-v3",), "measurement_class": "emulated"}
    board = Board(farm.anonymous, **of_class).enrol(new_token(farm, targets=["x86-64-v3"]))
    before, token = said(farm, board), new_token(farm)
    board.description = description(**(of_class | changed))
    refused = board.try_enrol(token) if act == "enrol" else board.try_renew()
    code = f"{act}.targets" if where == "targets" else f"{act}.class"
    assert (refused.status_code, refused.json()["code"], refused.json()["where"]) == (403, code, where)
    assert "new state folder" in refused.json()["hint"]
    assert said(farm, board) == before
    assert board.try_lease().status_code == 204
    assert Board(farm.anonymous).enrol(token).device_id, "the token is still good"


def test_a_token_without_targets_does_not_lift_a_binding(farm: TestFarm) -> None:
    board = Board(farm.anonymous, targets=("x86-64-v3",)).enrol(new_token(farm, targets=["x86-64-v3"]))
    board.enrol(new_token(farm))
    board.description = description(targets=("x86-64-v4", "x86-64-v3"))
    assert board.try_renew().json()["code"] == "renew.targets"
