"""Enrolment tokens for many boards: as often, as long and for those boards that they say, and no further."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import select, update

from service.boards.fleet import tokens
from service.store.database.models import EnrolmentToken
from tests.service.board import Board
from tests.service.farms import TestFarm


def make(farm: TestFarm, **body: Any) -> dict[str, Any]:
    answer = farm.http.post("/devices/enrolment-tokens", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def show(farm: TestFarm, token: dict[str, Any]) -> dict[str, Any]:
    return dict(farm.http.get(f"/devices/enrolment-tokens/{token['id']}").json())


def test_a_token_lets_in_as_many_boards_as_it_says(farm: TestFarm) -> None:
    token = make(farm, uses=3, name="rack 7")
    boards = [Board(farm.anonymous, name=f"board {n}").enrol(token["token"]) for n in range(3)]
    refused = Board(farm.anonymous).try_enrol(token["token"])
    assert (refused.status_code, refused.json()["code"]) == (403, "enrol.token")
    assert "3 times" in refused.json()["detail"]
    seen = show(farm, token)
    assert (seen["uses"], seen["max_uses"], seen["name"]) == (3, 3, "rack 7")
    assert [one["device_id"] for one in seen["used_by"]] == [board.device_id for board in boards]
    assert len(farm.http.get("/devices").json()["items"]) == 3, "the refused board left nothing behind"
    history = farm.http.get(f"/devices/{boards[0].device_id}").json()["history"]
    assert token["id"] in history[-1]["message"]


def test_a_board_whose_answer_was_lost_counts_once(farm: TestFarm) -> None:
    token = make(farm, uses=2)
    board = Board(farm.anonymous).enrol(token["token"])
    for _ in range(3):
        assert board.try_enrol(token["token"]).status_code == 201
    assert show(farm, token)["uses"] == 1
    Board(farm.anonymous).enrol(token["token"])
    assert board.try_enrol(token["token"]).status_code == 201, "it is one of the two"
    assert show(farm, token)["uses"] == 2


def test_boards_that_come_at_once_are_not_let_in_beyond_the_limit(farm: TestFarm) -> None:
    token = make(farm, uses=4)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(Board(farm.anonymous).try_enrol(token["token"]).status_code))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201] * 4 + [403] * 8
    assert show(farm, token)["uses"] == 4


def test_a_revoked_token_lets_nobody_in_and_its_boards_stay(farm: TestFarm) -> None:
    token = make(farm, uses=5)
    board = Board(farm.anonymous).enrol(token["token"])
    assert farm.http.delete(f"/devices/enrolment-tokens/{token['id']}").status_code == 200
    refused = Board(farm.anonymous).try_enrol(token["token"])
    assert (refused.status_code, "revoked" in refused.json()["detail"]) == (403, True)
    assert board.try_lease().status_code == 204
    assert board.try_enrol(token["token"]).status_code == 403, "not even a board that it let in"


def test_a_token_for_a_class_and_targets_is_for_those(farm: TestFarm) -> None:
    token = make(farm, uses=9, device_class="x86-64", targets=["x86-64-v3", "x86-64-v4"])
    Board(farm.anonymous).enrol(token["token"])
    Board(farm.anonymous, targets=("x86-64-v3",)).enrol(token["token"])
    more = Board(farm.anonymous, targets=("x86-64-v3", "raspberry-pi-4")).try_enrol(token["token"])
    assert (more.status_code, more.json()["code"], more.json()["where"]) == (403, "enrol.targets", "targets")
    assert "raspberry-pi-4" in more.json()["detail"]
    other = Board(farm.anonymous, device_class="raspberry-pi-4").try_enrol(token["token"])
    assert other.json()["code"] == "enrol.device-class"
    assert show(farm, token)["uses"] == 2


def test_a_token_runs_out_and_is_told_of_for_a_season(farm: TestFarm) -> None:
    token = make(farm, uses=2, lifetime_s=60)
    Board(farm.anonymous).enrol(token["token"])
    with farm.farm.database.transaction() as session:
        session.execute(update(EnrolmentToken).values(expires_at=time.time() - 1))
    assert Board(farm.anonymous).try_enrol(token["token"]).status_code == 403
    farm.sweep()
    assert len(show(farm, token)["used_by"]) == 1
    with farm.farm.database.transaction() as session:
        session.execute(update(EnrolmentToken).values(expires_at=time.time() - tokens.FORGET_AFTER_S - 1))
    farm.sweep()
    assert farm.http.get(f"/devices/enrolment-tokens/{token['id']}").json()["code"] == "enrol.token-unknown"


def test_secrets_are_shown_once_and_kept_as_hashes(farm: TestFarm) -> None:
    token = make(farm, uses=2)
    assert token["token"] not in farm.http.get("/devices/enrolment-tokens").text
    assert token["token"] not in str(show(farm, token))
    with farm.farm.database.read() as session:
        assert token["token"] not in str(session.scalars(select(EnrolmentToken.token_hash)).all())


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"uses": 0}, "uses"),
        ({"uses": 10_001}, "uses"),
        ({"lifetime_s": 1}, "lifetime_s"),
        ({"targets": []}, "targets"),
        ({"lifetime_s": 1e9}, "lifetime_s"),
        ({"lifetime_s": "1e999"}, "lifetime_s"),
    ],
)
def test_a_token_beyond_the_limits_is_refused(small_farm: TestFarm, body: dict[str, Any], where: str) -> None:
    answer = small_farm.http.post("/devices/enrolment-tokens", json=body)
    assert answer.status_code == 422
    assert where in answer.json()["where"]


def test_tokens_are_operators_business(small_farm: TestFarm) -> None:
    token, user = make(small_farm), small_farm.key("user")
    for method, path in (("GET", ""), ("POST", ""), ("GET", f"/{token['id']}"), ("DELETE", f"/{token['id']}")):
        answer = small_farm.anonymous.request(method, f"/devices/enrolment-tokens{path}", headers=user, content=b"{}")
        assert answer.status_code == 403


def test_a_closed_organisations_tokens_let_nobody_in(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    token = make(acme)
    organisation = next(item for item in farm.http.get("/organisations").json() if item["name"] == "acme")
    assert farm.http.post(f"/organisations/{organisation['id']}/close", json={}).is_success
    answer = Board(farm.anonymous).try_enrol(token["token"])
    assert (answer.status_code, answer.json()["code"]) == (403, "enrol.token")
