"""Agents over HTTP: who they are, and the signed work that they lease."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents import wire as p
from device_agents.wire.ed25519 import verify
from service.base.identifiers import digest_of
from service.boards.agents import leasing
from service.boards.agents.enrolment import Agent
from service.store.database.models import Attempt
from service.work.lanes.dispatch import Dispatcher
from tests.service.board import Board, leased
from tests.service.farms import TestFarm, open_test_farm
from tests.waiting import HANG_S, until

# ------------------------------------------------------------------------------------------------------- identity


def test_enrolment_token_works_once_and_for_its_class(farm: TestFarm) -> None:
    token = farm.http.post("/devices/enrolment-tokens", json={"device_class": "x86-64"}).json()["token"]
    wrong = Board(farm.anonymous, device_class="raspberry-pi-4").try_enrol(token)
    assert (wrong.status_code, wrong.json()["code"]) == (403, "enrol.device-class")
    assert re.findall(r"x86-64|raspberry-pi-4", wrong.json()["detail"]) == ["x86-64", "raspberry-pi-4"]
    assert "make a token for class raspberry-pi-4" in wrong.json()["hint"]
    assert "--class x86-64" in wrong.json()["hint"]
    board = Board(farm.anonymous).enrol(token)
    again = Board(farm.anonymous).try_enrol(token)
    assert (again.status_code, again.json()["code"]) == (403, "enrol.token")
    assert board.try_enrol(token).status_code == 201  # the same device, whose first answer was lost
    devices = farm.http.get("/devices").json()["items"]
    assert [device["id"] for device in devices] == [board.device_id]
    assert Board(farm.anonymous).try_enrol("0" * 64).status_code == 403


def test_expired_enrolment_token_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, enrolment_token_s=0.0) as farm:
        token = farm.http.post("/devices/enrolment-tokens", json={}).json()["token"]
        assert Board(farm.anonymous).try_enrol(token).status_code == 403


def test_users_may_not_make_enrolment_tokens(small_farm: TestFarm) -> None:
    answer = small_farm.anonymous.post("/devices/enrolment-tokens", json={}, headers=small_farm.key("user"))
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.scope")


def test_renewal_needs_the_devices_key(farm: TestFarm) -> None:
    board = farm.board()
    old = board.credential
    assert board.try_renew(key=Ed25519PrivateKey.generate()).json()["code"] == "renew.signature"
    answer = board.try_renew()
    assert answer.status_code == 200
    assert p.loads(p.Credential, answer.content).token != old


def test_challenge_of_another_device_or_made_up_is_refused(small_farm: TestFarm) -> None:
    one, other = small_farm.board(name="one"), small_farm.board(name="other")
    challenge = p.loads(p.Challenge, one.post(p.CHALLENGE_PATH, p.ChallengeRequest(other.device_id)).content).challenge
    for text in (challenge, "1:2:3", "", "é:x:y"):
        message = p.challenge_message(one.device_id, one.session, text)
        request = p.RenewRequest(one.device_id, one.session, text, one.sign(p.CHALLENGE_TYPE, message), one.description)
        assert one.post(p.RENEW_PATH, request).json()["code"] == "renew.challenge"


def test_device_may_not_become_another_class(small_farm: TestFarm) -> None:
    board = small_farm.board(measurement_class="emulated")
    board.description = Board(small_farm.anonymous, measurement_class="hardware").description
    assert board.try_renew().json()["code"] == "renew.class"


@pytest.mark.parametrize("credential", ["", "nonsense"])
def test_strangers_get_401(small_farm: TestFarm, credential: str) -> None:
    board = small_farm.board()
    board.credential = credential
    assert board.try_lease().status_code == 401


def test_api_key_is_no_credential_and_credential_no_api_key(small_farm: TestFarm) -> None:
    board = small_farm.board()
    answer = small_farm.anonymous.get("/jobs", headers={"Authorization": f"Bearer {board.credential}"})
    assert (answer.status_code, answer.json()["code"]) == (401, "auth.invalid")
    board.credential = small_farm.key()["Authorization"].removeprefix("Bearer ")
    assert board.try_lease().status_code == 401


def test_removed_device_is_out_at_once(farm: TestFarm) -> None:
    board = farm.board()
    assert farm.http.delete(f"/devices/{board.device_id}").json()["state"] == "removed"
    assert board.try_lease().status_code == 401
    assert board.try_renew().status_code == 403


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"session": 1}', b'{"session": "12345678", "x": 1}', b"\xff"])
def test_malformed_messages_are_named(small_farm: TestFarm, body: bytes) -> None:
    answer = small_farm.board().post(p.LEASE_PATH, None, content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol.invalid")


def test_other_protocol_version_is_refused(small_farm: TestFarm) -> None:
    answer = small_farm.anonymous.post(p.ENROL_PATH, content=b"{}", headers={p.PROTOCOL_HEADER: "pockfarm.agent/0"})
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol.version")


def test_an_older_agent_finishes_what_it_has_and_gets_nothing_more(farm: TestFarm) -> None:
    digest = farm.bundle()
    run = farm.run(bundle=digest)
    board = farm.board()
    work = leased(board)
    board.protocol = "pockfarm.agent/1"
    assert board.heartbeat(work).status_code == 200
    assert board.report(work).status_code == 200
    assert farm.show(run["id"])["state"] == "succeeded"
    farm.run(bundle=digest, steps=5)
    answer = board.try_lease()
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol.version")
    assert "update the agent" in answer.json()["hint"]


# -------------------------------------------------------------------------------------------------------- refusals


UNTRUSTED = p.Outcome("failed", "policy", "envelope.signature", "the signature does not match the payload", "enrol")


def test_a_device_that_does_not_trust_its_assignment_says_so_without_a_lease_token(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board, other = farm.board(), farm.board(name="other")
    work = leased(board)
    assert board.post(p.REFUSAL_PATH, UNTRUSTED).status_code == 204
    assert board.post(p.REFUSAL_PATH, UNTRUSTED).status_code == 204, "there is nothing to refuse any more"
    shown = farm.show(run["id"])
    assert (shown["state"], shown["attempts"]) == ("queued", 1)
    why = farm.http.get(f"/runs/{run['id']}/why").text
    assert "envelope.signature" in why
    assert board.heartbeat(work).status_code == 409
    assert leased(other).run_id == run["id"], "it goes to another device"
    assert board.lease() is None


def test_a_refusal_is_a_failure_of_the_newest_session(farm: TestFarm) -> None:
    board = farm.board()
    for outcome in (p.Outcome("succeeded"), p.Outcome("failed", "policy"), p.Outcome("cancelled", "user", "x.y")):
        answer = board.post(p.REFUSAL_PATH, outcome)
        assert (answer.status_code, answer.json()["code"]) == (422, "refusal.state")
    older = board.credential
    board.restart()
    board.credential = older
    assert board.post(p.REFUSAL_PATH, UNTRUSTED).status_code == 409


# --------------------------------------------------------------------------------------------------------- leases


def test_assignment_is_signed_for_this_run_device_and_bundle(farm: TestFarm) -> None:
    digest, dataset = farm.bundle(), farm.dataset()
    run = farm.run(bundle=digest, mode="train", steps=7, dataset=dataset, seed=3, learning_rate=0.5, threads=1)
    board = farm.board()
    envelope = p.loads(p.Envelope, board.try_lease().content)
    payload = envelope.payload_bytes()
    work = p.loads(p.Assignment, payload)
    assert (work.run_id, work.attempt, work.lease_s) == (run["id"], 1, 60.0)
    assert work.settings == p.RunSettings("train", 7, 0, 3, learning_rate=0.5, threads=1, tune_s=None)
    assert (work.device_id, work.device_class, work.target) == (board.device_id, "x86-64", "x86-64-v3")
    assert (work.bundle.digest, work.weights) == (digest, None)
    assert work.not_before < time.time() < work.expires_at
    [key], [signature] = board.server_keys, envelope.signatures
    assert key.key_id == signature.keyid
    assert verify(key.public_key, signature.sig, p.pae(p.ASSIGNMENT_TYPE, payload))
    assert not verify(key.public_key, signature.sig, p.pae(p.ASSIGNMENT_TYPE, payload + b" "))
    assert work.bundle.url is not None
    bundle = board.get(work.bundle.url)
    assert (digest_of(bundle.content), len(bundle.content)) == (digest, work.bundle.size_bytes)
    assert work.dataset is not None
    assert work.dataset.url is not None
    assert digest_of(board.get(work.dataset.url).content) == dataset
    assert farm.http.get("/jobs").json()["items"][0]["state"] == "succeeded"


def test_no_work_is_204_and_work_arrives_during_the_wait(farm: TestFarm) -> None:
    board, digest = farm.board(), farm.bundle()
    assert board.try_lease().status_code == 204
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(board.try_lease, wait_s=p.MAX_LONG_POLL_S)
        until(lambda: len(farm.farm.part(Dispatcher).room) == 1)
        farm.run(bundle=digest)
        assert held.result(HANG_S).status_code == 200


def test_work_goes_only_where_it_runs(small_farm: TestFarm) -> None:
    digest = small_farm.bundle(target="x86-64-v3", features=("avx2", "fma", "bmi2"))
    weak = small_farm.board(name="weak", features=("avx2",))
    pi = small_farm.board(name="pi", device_class="raspberry-pi-4", targets=("raspberry-pi-4",), features=("asimd",))
    strong = small_farm.board(name="strong", features=("avx2", "bmi2", "fma", "sse"))
    run = small_farm.run(bundle=digest)
    assert weak.lease() is None
    assert pi.lease() is None
    assert leased(strong).run_id == run["id"]


def test_wanted_device_and_class_are_kept_to(small_farm: TestFarm) -> None:
    digest = small_farm.bundle()
    one, other = small_farm.board(name="one"), small_farm.board(name="other", device_class="server")
    for_other = small_farm.run(bundle=digest, device=other.device_id)
    for_class = small_farm.run(bundle=digest, device_class="server")
    assert one.lease() is None
    work = leased(other)
    assert work.run_id == for_other["id"]
    assert other.report(work).status_code == 200
    assert leased(other).run_id == for_class["id"]


def test_quarantined_or_unisolated_device_gets_nothing(tmp_path: Path, sqlite_url: str) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, isolation_level=2) as farm:
        farm.run(bundle=farm.bundle())
        assert farm.board(name="open", isolation_level=1).lease() is None
        board = farm.board(isolation_level=2)
        farm.http.post(f"/devices/{board.device_id}/quarantine", json={"reason": "smoke"})
        assert board.lease() is None
        assert farm.http.post(f"/devices/{board.device_id}/release", json={}).json()["state"] == "active"
        assert board.lease() is not None
        kinds = [line["kind"] for line in farm.http.get(f"/devices/{board.device_id}").json()["history"]]
        assert kinds == ["released", "quarantined", "enrolled"]


def test_concurrent_claims_give_each_run_to_one_device(farm: TestFarm) -> None:
    digest = farm.bundle()
    runs = {farm.run(bundle=digest)["id"] for _ in range(3)}
    boards = [farm.board(name=f"board {n}") for n in range(8)]
    start = threading.Barrier(len(boards))

    def claim(board: Board) -> str | None:
        agent = Agent(board.device_id, board.session)
        request = p.LeaseRequest(board.session, 0, 2)
        with farm.farm.database.transaction() as session:
            seeker = leasing.seek(session, farm.farm, agent, request)
        start.wait()
        for _ in range(20):  # a locked row is passed over, as in the endpoint's own loop
            work = leasing.work_for(farm.farm, agent, seeker)
            if work is not None:
                return p.loads(p.Assignment, work.assignment.payload_bytes()).run_id
        return None

    with ThreadPoolExecutor(len(boards)) as threads:
        taken = [run_id for run_id in threads.map(claim, boards) if run_id is not None]
    assert sorted(taken) == sorted(runs)
    with farm.farm.database.read() as session:
        assert session.query(Attempt).count() == 3
