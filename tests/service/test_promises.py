"""A challenge is good once, and a device is held to the isolation that it promised."""

from __future__ import annotations

import base64
import re
import threading

import pytest
from sqlalchemy import select

from device_agents import wire as p
from service.store.database.models import UsedChallenge
from tests.service.board import Board, description, leased
from tests.service.farms import TestFarm


def renewal(board: Board) -> p.RenewRequest:
    answer = board.post(p.CHALLENGE_PATH, p.ChallengeRequest(board.device_id))
    challenge = p.loads(p.Challenge, answer.content).challenge
    message = p.pae(p.CHALLENGE_TYPE, p.challenge_message(board.device_id, board.session, challenge))
    signature = base64.b64encode(board.key.sign(message)).decode()
    return p.RenewRequest(board.device_id, board.session, challenge, signature, board.description)


def test_a_challenge_is_answered_once(farm: TestFarm) -> None:
    board = farm.board()
    request = renewal(board)
    assert board.post(p.RENEW_PATH, request).status_code == 200
    again = board.post(p.RENEW_PATH, request)
    assert (again.status_code, again.json()["code"]) == (403, "renew.challenge")
    assert "used before" in again.json()["detail"]
    assert board.post(p.RENEW_PATH, renewal(board)).status_code == 200, "another one is good"


def test_of_many_who_send_it_at_once_one_is_answered(farm: TestFarm) -> None:
    board = farm.board()
    request, said, start = renewal(board), [], threading.Barrier(6)

    def send() -> None:
        start.wait()
        said.append(board.post(p.RENEW_PATH, request).status_code)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [200, 403, 403, 403, 403, 403]


def test_a_forged_answer_does_not_use_it_up(farm: TestFarm) -> None:
    board, other = farm.board(), farm.board(name="other")
    request = renewal(board)
    message = p.pae(p.CHALLENGE_TYPE, p.challenge_message(board.device_id, board.session, request.challenge))
    forged = p.RenewRequest(
        board.device_id,
        board.session,
        request.challenge,
        base64.b64encode(other.key.sign(message)).decode(),
        board.description,
    )
    assert other.post(p.RENEW_PATH, forged).json()["code"] == "renew.signature"
    assert board.post(p.RENEW_PATH, request).status_code == 200


def test_used_challenges_are_not_kept_for_ever(farm: TestFarm) -> None:
    board = farm.board()
    board.post(p.RENEW_PATH, renewal(board))
    with farm.farm.database.transaction() as session:
        [first] = session.scalars(select(UsedChallenge))
        first.expires_at = 1.0
        spent = first.challenge_hash
    board.post(p.RENEW_PATH, renewal(board))
    with farm.farm.database.read() as session:
        [left] = session.scalars(select(UsedChallenge))
    assert left.challenge_hash != spent


def history(farm: TestFarm, board: Board) -> list[tuple[str, str]]:
    lines = farm.http.get(f"/devices/{board.device_id}").json()["history"]
    return [(line["kind"], line["message"]) for line in lines]


def test_another_level_than_before_is_in_the_devices_history(farm: TestFarm) -> None:
    board = farm.board(isolation_level=3)
    board.lease()
    assert "isolation" not in dict(history(farm, board))
    board.post(p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 1))
    board.post(p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 1))
    [message] = [message for kind, message in history(farm, board) if kind == "isolation"]
    assert re.findall(r"\d", message) == ["1", "3"]


@pytest.mark.parametrize(("ran_at", "counts"), [(4, True), (3, True), (2, False), (0, False)])
def test_a_result_that_was_isolated_less_than_promised_does_not_count(
    farm: TestFarm, ran_at: int, counts: bool
) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board(isolation_level=3)
    work = leased(board)
    assert board.report(work, isolation_level=ran_at).status_code == 200
    shown = farm.show(run["id"])
    if counts:
        assert shown["state"] == "succeeded"
        return
    assert shown["state"] == "queued", "another device is to try it"
    strike = dict(history(farm, board))["strike"]
    assert re.search(rf"\bdevice\.isolation: .* level {ran_at}, .* promised 3\b", strike)
    assert board.lease() is None, "it is not given this run again"


def test_a_token_binds_a_device_to_its_targets_also_later(farm: TestFarm) -> None:
    token = farm.http.post("/devices/enrolment-tokens", json={"targets": ["x86-64-v3"]}).json()["token"]
    greedy = Board(farm.anonymous, targets=("x86-64-v4", "x86-64-v3"))
    refused = greedy.try_enrol(token)
    assert (refused.status_code, refused.json()["code"]) == (403, "enrol.targets")
    board = Board(farm.anonymous, targets=("x86-64-v3",)).enrol(token)
    board.description = description(targets=("x86-64-v4", "x86-64-v3"))
    grown = board.try_renew()
    assert (grown.status_code, grown.json()["code"], grown.json()["where"]) == (403, "renew.targets", "targets")
    board.description = description(targets=("x86-64-v3",))
    assert board.try_renew().status_code == 200
    assert farm.http.get(f"/devices/{board.device_id}").json()["targets"] == ["x86-64-v3"]
