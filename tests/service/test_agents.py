"""Agents over HTTP: identity, leases with fencing tokens, signed work, signed reports, recorded exactly once."""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select, update

from device_agents import wire as p
from service.agents import leasing
from service.agents.enrolment import Agent
from service.database.models import Attempt, Device, Result, Run
from service.identifiers import digest_of
from service.signing import verify
from tests.service.board import Board
from tests.service.farms import TestFarm, open_test_farm


def expire_lease(farm: TestFarm, run_id: str) -> None:
    """What a minute of silence does."""
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).where(Attempt.run_id == run_id).values(lease_expires_at=time.time() - 1))
    farm.sweep()


def leased(board: Board) -> p.Assignment:
    work = board.lease()
    assert work is not None
    return work


# ------------------------------------------------------------------------------------------------------- identity


def test_enrolment_token_works_once_and_for_its_class(farm: TestFarm) -> None:
    token = farm.http.post("/devices/enrolment-tokens", json={"device_class": "x86-64"}).json()["token"]
    wrong = Board(farm.anonymous, device_class="raspberry-pi-4").try_enrol(token)
    assert (wrong.status_code, wrong.json()["code"]) == (403, "enrol.device-class")
    assert wrong.json()["detail"] == "this token is for devices of class x86-64, and this device is a raspberry-pi-4"
    assert "make a token for raspberry-pi-4" in wrong.json()["hint"]
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
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.role")


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


# --------------------------------------------------------------------------------------------------------- leases


def test_assignment_is_signed_for_this_run_device_and_bundle(farm: TestFarm) -> None:
    digest, dataset = farm.bundle(), farm.dataset()
    run = farm.run(bundle=digest, mode="train", steps=7, dataset=dataset, seed=3, learning_rate=0.5, threads=1)
    board = farm.board()
    work = leased(board)
    assert (work.run_id, work.attempt, work.lease_s) == (run["id"], 1, 60.0)
    assert work.settings == p.RunSettings("train", 7, 0, 3, learning_rate=0.5, threads=1, tune_s=None)
    payload = work.envelope.payload_bytes()
    statement = p.loads(p.Statement, payload)
    assert (statement.run_id, statement.device_id, statement.bundle_digest) == (run["id"], board.device_id, digest)
    assert (statement.dataset_digest, statement.weights_digest) == (dataset, None)
    assert statement.not_before < time.time() < statement.expires_at
    [key], [signature] = board.server_keys, work.envelope.signatures
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
    timer = threading.Timer(0.3, lambda: farm.run(bundle=digest))
    timer.start()
    answer = board.try_lease(wait_s=20)
    timer.join()
    assert answer.status_code == 200


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
            with farm.farm.database.read() as session:
                found = leasing.candidates(session, seeker)
            for run_id in found:
                with farm.farm.database.transaction() as session:
                    work = leasing.lease(session, farm.farm, agent, run_id)
                if work is not None:
                    return work.run_id
        return None

    with ThreadPoolExecutor(len(boards)) as threads:
        taken = [run_id for run_id in threads.map(claim, boards) if run_id is not None]
    assert sorted(taken) == sorted(runs)
    with farm.farm.database.read() as session:
        assert session.query(Attempt).count() == 3


# -------------------------------------------------------------------------------------------------------- attempts


def test_whole_life_of_a_training_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle(), mode="train", steps=2, dataset=farm.dataset())
    board = farm.board()
    work = leased(board)
    assert farm.show(run["id"])["state"] == "leased"
    beat = p.loads(p.HeartbeatResponse, board.heartbeat(work, "download").content)
    assert not beat.cancel
    assert beat.lease_expires_at > time.time() + 50
    shown = farm.show(run["id"])
    assert (shown["state"], shown["phase"]) == ("running", "download")
    steps = [p.Event(n, 1.0, "step", step=n, loss=1.0 / n, step_us=5.0) for n in (1, 2)]
    assert p.loads(p.EventsResponse, board.send_events(work, *steps).content).next_sequence == 3
    weights = b"trained weights"
    digest = digest_of(weights)
    assert board.put_weights(work, weights, digest_of(b"other")).json()["code"] == "upload.digest"
    assert board.put_weights(work, weights, digest).status_code == 201
    answer = board.report(work, weights=p.Blob(digest, len(weights)), evaluation_before=p.Evaluation(8, 2.0, 0.1),
                          evaluation_after=p.Evaluation(8, 0.5, 0.9))  # fmt: skip
    assert p.loads(p.ReportResponse, answer.content).state == "recorded"
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"], shown["steps_done"]) == ("succeeded", None, 2)
    assert shown["trained_weights_digest"] == digest
    summary = shown["summary"]
    assert (summary["loss_first"], summary["loss_last"]) == (2.5, 1.25)
    assert (summary["accuracy_before"], summary["accuracy_after"], summary["energy_per_step_mj"]) == (0.1, 0.9, None)
    assert farm.http.get(f"/runs/{run['id']}/weights").content == weights
    report = farm.http.get(f"/runs/{run['id']}/report").json()
    assert report["report"]["losses"] == [2.5, 1.25]
    text = farm.http.get(f"/runs/{run['id']}/events").text
    assert text.count("event: step") == 2
    assert text.endswith("event: end\ndata: {}\n\n")


def test_earlier_weights_start_a_later_run(farm: TestFarm) -> None:
    digest, dataset = farm.bundle(), farm.dataset()
    farm.run(bundle=digest, mode="train", dataset=dataset)
    board = farm.board()
    work = leased(board)
    weights = b"w" * 100
    board.put_weights(work, weights, digest_of(weights))
    assert board.report(work, weights=p.Blob(digest_of(weights), 100)).status_code == 200
    second = farm.run(bundle=digest, mode="train", dataset=dataset, weights=digest_of(weights))
    work = leased(board)
    assert (work.run_id, work.weights and work.weights.digest) == (second["id"], digest_of(weights))
    assert work.weights is not None
    assert work.weights.url is not None
    assert board.get(work.weights.url).content == weights
    assert p.loads(p.Statement, work.envelope.payload_bytes()).weights_digest == digest_of(weights)


def test_events_are_recorded_once_and_without_gaps(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    one, two, four = (p.Event(n, 1.0, "log", message=f"line {n}\x00") for n in (1, 2, 4))
    replies = [board.send_events(work, *batch) for batch in ((one, two), (one, two), (two, four), ())]
    assert [p.loads(p.EventsResponse, reply.content).next_sequence for reply in replies] == [3, 3, 3, 3]
    listed = farm.http.get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"}).json()
    assert [event["body"]["message"] for event in listed if event["kind"] == "log"] == ["line 1 ", "line 2 "]


def test_same_report_twice_is_recorded_once_and_another_is_refused(farm: TestFarm) -> None:
    farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    states = [p.loads(p.ReportResponse, board.report(work).content).state for _ in range(2)]
    assert states == ["recorded", "already-recorded"]
    other = board.report(work, losses=(9.0,))
    assert (other.status_code, other.json()["code"]) == (409, "report.other")


def test_forged_or_foreign_reports_are_refused(small_farm: TestFarm) -> None:
    run = small_farm.run(bundle=small_farm.bundle())
    board, stranger = small_farm.board(name="one"), small_farm.board(name="two")
    work = leased(board)
    path = p.attempt_path(p.REPORT_PATH, work.lease_token)
    forged = board.envelope(board.make_report(work), key=Ed25519PrivateKey.generate())
    assert board.post(path, forged).json()["code"] == "report.signature"
    for changes in ({"run_id": "run_other"}, {"attempt": 2}, {"measurement_class": "hardware"}):
        assert board.report(work, **changes).json()["code"] == "report.mismatch"
    unsent = p.Blob("sha256:" + "0" * 64, 1)
    assert board.report(work, weights=unsent).json()["code"] == "report.weights"
    assert stranger.report(work).status_code == 409
    assert stranger.heartbeat(work).status_code == 409
    assert small_farm.show(run["id"])["state"] == "leased"


MEASURED = p.to_json(
    p.Measurement(8, (9e5,), (p.Block((9e5,)),), 9e5, 9e5, 9e5, 9e5, 9e5, 9e5, 8.9, 0.0, 0.0, 3, 2)
)  # fmt: skip
KERNEL = p.to_json(p.KernelTime(0, "k", "forward", 10.0, 100, 8, 4))
TUNED = p.KernelTuning("a", "n", 1, (p.VariantTime("", 9, 1.0, 1.0, 1.0, 1.0, 0.0),), "")
NO_TIME = {**p.to_json(TUNED.variants[0]), "median_us": 0.0}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "no time": {"measurement": {**MEASURED, "median_us": 0.0}},
    "a step of no time": {"measurement": {**MEASURED, "step_us": [9e5, 0]}},
    "a negative time": {"kernels": [{**KERNEL, "us": -1.0}]},
    "more operations than the device's peak": {"kernels": [{**KERNEL, "flops": 10**12}]},
    "a step above the peak": {"measurement": MEASURED, "kernels": [{**KERNEL, "us": 1e6, "flops": 10**13}] * 8},
    "kernels longer than the step": {"measurement": {**MEASURED, "step_us": [1.0]}, "kernels": [KERNEL] * 99},
    "more memory than the device has": {"memory": {"peak_rss_bytes": (1 << 33) + 1}},
    "an arena beyond any memory": {"memory": {"arena_bytes": 1 << 62}},
    "bytes beyond a database's integer": {"memory": {"arena_bytes": 1 << 64}},
    "negative bytes": {"memory": {"arena_bytes": -1}},
    "an accuracy above one": {"evaluation_before": {"samples": 4, "loss": 1.0, "accuracy": 1.5}},
    "an evaluation of nothing": {"evaluation_before": {"samples": 0, "loss": 1.0}},
    "negative energy": {"energy": {"total_mj": -1.0, "per_step_mj": 1.0, "sensor": "x"}},
    "a schedule of no time": {"tuning": {"threads": 2, "kernels": [{**p.to_json(TUNED), "variants": [NO_TIME]}]}},
    "half a surrogate": {"environment": {"kernel": "\ud800"}},
    "a wrong type": {"run_s": "long"},
    "an unknown field": {"surprise": 1},
    "a time beyond all clocks": {"started_at": 1e300},
}  # fmt: skip


def raw_report(board: Board, work: p.Assignment, **changes: object) -> httpx.Response:
    """A report as no agent of ours could write it, signed all the same."""
    payload = json.dumps({**p.to_json(board.make_report(work)), **changes}).encode()
    signature = p.Signature(board.device_id, board.sign(p.REPORT_TYPE, payload))
    envelope = p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (signature,))
    return board.post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope)


@pytest.mark.parametrize("kind", sorted(IMPOSSIBLE))
def test_a_report_that_cannot_be_strikes_the_device_until_another_sends_one(farm: TestFarm, kind: str) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    answer = raw_report(board, work, **IMPOSSIBLE[kind])
    assert (answer.status_code, answer.json()["code"]) == (422, "report.impossible"), answer.text
    assert answer.json()["where"]
    with farm.farm.database.read() as session:
        attempt = session.scalars(select(Attempt).where(Attempt.run_id == run["id"])).one()
        device = session.get_one(Device, board.device_id)
        assert (attempt.state, attempt.cause, attempt.code) == ("failed", "infra", "report.impossible")
        assert answer.json()["where"] in (attempt.message or "")
        assert (device.strikes, device.state) == (1, "active")
        assert session.scalar(select(Result).where(Result.attempt_id == attempt.id)) is None
    assert farm.show(run["id"])["state"] == "queued", "another device may try"
    bare = board.report(work, p.Outcome("failed", "infra", "report.refused", "refused"), losses=(), verdict=None)
    assert p.loads(p.ReportResponse, bare.content).state == "superseded", "the agent is done with it, too"
    second = farm.board()
    assert raw_report(second, leased(second), **IMPOSSIBLE[kind]).status_code == 422
    assert farm.show(run["id"])["state"] == "inconclusive"
    with farm.farm.database.read() as session:
        assert [session.get_one(Device, one.device_id).strikes for one in (board, second)] == [0, 0]


def test_the_same_figures_of_an_emulated_board_are_taken(small_farm: TestFarm) -> None:
    """Its times and its memory mean nothing, and say so."""
    run = small_farm.run(bundle=small_farm.bundle())
    board = small_farm.board(measurement_class="emulated")
    changes = {"kernels": [{**KERNEL, "flops": 10**12}], "memory": {"peak_rss_bytes": 1 << 40}}
    assert raw_report(board, leased(board), **changes).status_code == 200
    assert small_farm.show(run["id"])["state"] == "succeeded"


@pytest.mark.parametrize(
    "fields", [{"step": 1 << 70}, {"step": -1}, {"step_us": 0.0}, {"fraction": 2.0}, {"at": 1e300}]
)
def test_events_that_cannot_be_are_refused(small_farm: TestFarm, fields: dict[str, object]) -> None:
    small_farm.run(bundle=small_farm.bundle())
    board = small_farm.board()
    work = leased(board)
    event = {**p.to_json(p.Event(1, 1.0, "step", step=1, loss=0.5)), **fields}
    path = p.attempt_path(p.EVENTS_PATH, work.lease_token)
    answer = board.post(path, None, content=json.dumps({"events": [event]}).encode())
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol.invalid")


def test_expired_lease_goes_to_another_device_and_the_old_token_is_stale(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    slow, quick = farm.board(name="slow"), farm.board(name="quick")
    old = leased(slow)
    expire_lease(farm, run["id"])
    assert farm.show(run["id"])["state"] == "queued"
    new = leased(quick)
    assert (new.run_id, new.attempt) == (run["id"], 2)
    for answer in (slow.heartbeat(old), slow.send_events(old), slow.put_weights(old, b"w", digest_of(b"w"))):
        assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale")
    assert slow.get(p.attempt_path(p.BUNDLE_PATH, old.lease_token)).status_code == 409
    late = p.loads(p.ReportResponse, slow.report(old).content)
    assert late.state == "superseded"
    assert farm.show(run["id"])["state"] == "leased"
    assert quick.report(new).status_code == 200
    shown = farm.show(run["id"])
    assert (shown["state"], shown["device_id"]) == ("succeeded", quick.device_id)
    assert [attempt["state"] for attempt in shown["tries"]] == ["lost", "succeeded"]


def test_late_result_counts_while_nobody_has_taken_over(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    expire_lease(farm, run["id"])
    assert board.put_weights(work, b"w", digest_of(b"w")).status_code == 201
    assert p.loads(p.ReportResponse, board.report(work).content).state == "recorded"
    assert farm.show(run["id"])["state"] == "succeeded"
    assert farm.board(name="next").lease() is None


def test_new_session_voids_the_old_one_and_frees_its_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    twin = Board(farm.anonymous)
    twin.key, twin.device_id, twin.credential = board.key, board.device_id, ""
    twin.restart()
    for answer in (board.heartbeat(work), board.try_lease()):
        assert (answer.status_code, answer.json()["code"]) == (409, "session.voided")
    assert farm.show(run["id"])["state"] == "queued"
    assert twin.lease() is None, "a run that may have taken a device down is not tried on it again"
    again = leased(farm.board(name="other"))
    assert (again.run_id, again.attempt) == (run["id"], 2)


def test_run_for_one_device_goes_on_after_its_agent_restarted_but_not_for_ever(farm: TestFarm) -> None:
    board = farm.board()
    run = farm.run(bundle=farm.bundle(), device=board.device_id)
    for n in (1, 2, 3):
        assert leased(board).attempt == n
        board.restart()
    assert board.lease() is None
    assert (farm.show(run["id"])["state"], farm.show(run["id"])["phase"]) == ("queued", "waits for another device")
    assert farm.http.get(f"/devices/{board.device_id}").json()["strikes"] == 1, "one run strikes a device once"


def test_asking_for_work_again_gives_up_what_one_had(farm: TestFarm) -> None:
    digest = farm.bundle()
    one, two = farm.run(bundle=digest), farm.run(bundle=digest)
    board = farm.board()
    first, second = leased(board), leased(board)
    assert (first.run_id, second.run_id, second.attempt) == (one["id"], two["id"], 1)
    assert board.heartbeat(first).status_code == 409
    again = leased(farm.board(name="other"))
    assert (again.run_id, again.attempt) == (one["id"], 2)


def test_cancel_reaches_the_device_and_ends_the_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    assert farm.http.post(f"/runs/{run['id']}/cancel").json()["cancel_requested"] is True
    assert p.loads(p.HeartbeatResponse, board.heartbeat(work).content).cancel is True
    board.report(work, p.Outcome("cancelled", "user", "run.cancelled", "stopped"))
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"]["cause"]) == ("cancelled", "user")


def test_cancelled_run_whose_device_then_fails_is_not_tried_again(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    farm.http.post(f"/runs/{run['id']}/cancel")
    board.report(work, p.Outcome("failed", "infra", "agent.disk", "full"))
    assert farm.show(run["id"])["state"] == "cancelled"


def test_cancelled_run_of_a_silent_device_ends_too(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    leased(farm.board())
    farm.http.post(f"/runs/{run['id']}/cancel")
    expire_lease(farm, run["id"])
    assert farm.show(run["id"])["state"] == "cancelled"


@pytest.mark.parametrize("cause", ["model", "compiler", "limits", "user", "policy"])
def test_failure_that_will_not_pass_ends_the_run(small_farm: TestFarm, cause: p.Cause) -> None:
    run = small_farm.run(bundle=small_farm.bundle())
    board = small_farm.board()
    board.report(leased(board), p.Outcome("failed", cause, "data.shape", "wrong shape", "fix it"))
    shown = small_farm.show(run["id"])
    assert shown["state"] == "failed"
    assert shown["ending"] == {"cause": cause, "code": "data.shape", "message": "wrong shape", "where": "",
                               "hint": "fix it"}  # fmt: skip


@pytest.mark.parametrize("outcome", [p.Outcome("failed", "infra", "agent.disk", "full"),
                                     p.Outcome("cancelled", "infra", "agent.down", "going down")])  # fmt: skip
def test_failure_that_may_pass_is_tried_on_three_devices(farm: TestFarm, outcome: p.Outcome) -> None:
    run = farm.run(bundle=farm.bundle())
    for n in (1, 2, 3):
        assert farm.show(run["id"])["state"] == "queued"
        board = farm.board(name=f"board {n}")
        work = leased(board)
        assert work.attempt == n
        assert p.loads(p.ReportResponse, board.report(work, outcome, losses=(float(n),)).content).state == "recorded"
    shown = farm.show(run["id"])
    assert (shown["state"], len(shown["tries"])) == ("inconclusive", 3)
    assert farm.http.get(f"/runs/{run['id']}/report").json()["report"]["losses"] == [3.0]
    assert board.lease() is None


def test_failure_that_may_pass_is_tried_again_on_the_only_device_once_that_has_worked(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    run = farm.run(bundle=digest)
    for _ in range(4):
        work = leased(board)
        assert work.run_id == run["id"]
        board.report(work, p.Outcome("failed", "infra", "download.failed", "no route to the farm"))
        assert board.lease() is None
        farm.run(bundle=digest)
        board.report(leased(board))
    assert farm.show(run["id"])["state"] == "queued", "no run ends because of one device"


def test_three_silences_quarantine_the_device(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    for _ in range(3):
        run = farm.run(bundle=digest)
        leased(board)
        expire_lease(farm, run["id"])
        assert farm.show(run["id"])["state"] == "queued"
    device = farm.http.get(f"/devices/{board.device_id}").json()
    assert (device["state"], device["strikes"]) == ("quarantined", 3)
    farm.run(bundle=run["bundle_digest"])
    assert board.lease() is None


def test_silence_on_two_devices_is_blamed_on_the_model(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    for board in (farm.board(name="one"), farm.board(name="two")):
        leased(board)
        expire_lease(farm, run["id"])
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"]["cause"]) == ("failed", "model")


def test_attempt_over_its_clock_is_told_to_stop_and_then_ended(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).values(deadline_at=time.time() - 1))
    assert p.loads(p.HeartbeatResponse, board.heartbeat(work).content).cancel is True
    farm.sweep()
    assert farm.show(run["id"])["state"] == "running"
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).values(deadline_at=time.time() - 100))
    farm.sweep()
    shown = farm.show(run["id"])
    assert (shown["state"], shown["tries"][0]["code"]) == ("queued", "limits.run-time")


def test_emulated_device_is_given_ten_times_the_run_clock(small_farm: TestFarm) -> None:
    for name, target in (("host", "x86-64-v3"), ("emulated", "raspberry-pi-4")):
        small_farm.run(bundle=small_farm.bundle(target=target))
        board = small_farm.board(name=name, measurement_class=name, targets=(target,))
        leased(board)
    with small_farm.farm.database.read() as session:
        rows = session.query(Device.name, Attempt.deadline_at - Attempt.created_at).join(
            Attempt, Attempt.device_id == Device.id)  # fmt: skip
        clocks = dict(iter(rows))
    settings = small_farm.farm.settings
    assert clocks["host"] == pytest.approx(settings.transfer_s + settings.run_s, abs=1)
    assert clocks["emulated"] == pytest.approx(settings.transfer_s + 10 * settings.run_s, abs=1)


def test_run_nobody_takes_expires(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).values(queue_deadline_at=time.time() - 1))
    assert farm.board().lease() is None
    farm.sweep()
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"]["code"]) == ("expired", "device.none")
