"""Boards that are broken or lie: what they send is answered with a type, and changes nothing else.

Wrong clocks, sandboxes and disks are in `test_bad_devices.py`, coming back in `test_canary.py`; here are noise, lying
sensors, replayed and mutated messages, work that was not given, and descriptions that no board has.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.store.database.models import Attempt, Device, Result, Run
from tests.service.board import Board, assignment_of, leased
from tests.service.farms import TestFarm

MUTATIONS = 300


def marks(farm: TestFarm, board: Board) -> dict[str, str]:
    found = farm.http.get(f"/devices/{board.device_id}").json()
    return {mark["code"]: mark["message"] for mark in found["marks"]}


def measured(median_us: float) -> p.Measurement:
    return p.Measurement(
        batch=8,
        step_us=(median_us,) * 5,
        blocks=(p.Block((median_us,) * 5),),
        median_us=median_us,
        interval_low_us=median_us,
        interval_high_us=median_us,
        p90_us=median_us,
        p99_us=median_us,
        mean_us=median_us,
        samples_per_second=1e6 * 8 / median_us,
        cv_within=0.0,
        cv_between=0.0,
        warmup_steps=3,
        threads=2,
    )


def work(farm: TestFarm, board: Board, digest: str, **report: Any) -> None:
    farm.run(bundle=digest, device=board.device_id)
    answer = board.report(leased(board), **report)
    assert answer.status_code == 200, answer.text


def test_a_device_that_is_always_noisy_is_marked_and_goes_on(farm: TestFarm) -> None:
    digest, noisy, quiet = farm.bundle(), farm.board(name="noisy"), farm.board(name="quiet")
    for n in range(5):
        assert marks(farm, noisy) == {}
        work(farm, noisy, digest, verdict=p.Verdict("noisy", "spread"), measurement=measured(100.0))
        verdict = p.Verdict("valid" if n == 2 else "noisy", "x")
        work(farm, quiet, digest, verdict=verdict, measurement=measured(100.0))
    [(code, message)] = marks(farm, noisy).items()
    assert code == "always-noisy"
    assert " newest 5 measurements " in message
    assert marks(farm, quiet) == {}
    assert farm.http.get(f"/devices/{noisy.device_id}").json()["state"] == "active"


@pytest.mark.parametrize(("median_us", "word"), [(300.0, "3.0 times slower"), (25.0, "4.0 times quicker"), (110.0, "")])
def test_a_device_unlike_its_peers_is_marked(small_farm: TestFarm, median_us: float, word: str) -> None:
    farm = small_farm
    odd, peers = farm.board(name="odd"), [farm.board(name=f"peer {n}") for n in range(2)]
    other = farm.board(name="another class", device_class="server")
    for n in range(3):
        digest = farm.bundle(f"model {n}".encode())
        for board, us in ((odd, median_us), (peers[0], 99.0), (peers[1], 101.0), (other, 5000.0)):
            work(farm, board, digest, measurement=measured(us))
    found = marks(farm, odd)
    assert found.keys() == ({"unlike-peers"} if word else set())
    assert word in found.get("unlike-peers", "")
    assert marks(farm, other) == {}


@pytest.mark.parametrize(
    "state",
    [p.DeviceState(1.0, -400.0), p.DeviceState(1.0, frequency_hz=1e14), p.DeviceState(1.0, power_mw=-5.0)],
)
def test_sensors_that_lie_are_shown_and_marked(small_farm: TestFarm, state: p.DeviceState) -> None:
    farm = small_farm
    digest, board = farm.bundle(), farm.board()
    work(farm, board, digest, device_states=(p.DeviceState(1.0, temperature_c=45.0, frequency_hz=1e9), state))
    assert list(marks(farm, board)) == ["sensors"]


def test_figures_that_cannot_be_are_refused_struck_and_marked(small_farm: TestFarm) -> None:
    farm = small_farm
    digest, board = farm.bundle(), farm.board()
    run = farm.run(bundle=digest)
    assignment = leased(board)
    answer = board.report(assignment, memory=p.Memory(peak_rss_bytes=1 << 50))
    assert (answer.status_code, answer.json()["code"]) == (422, "report.impossible")
    [(code, message)] = marks(farm, board).items()
    assert code == "impossible-reports"
    assert " 1 times in its newest 1 attempts; " in message
    assert message.endswith(" memory.peak_rss_bytes")
    assert farm.show(run["id"])["state"] == "queued"


def snapshot(farm: TestFarm) -> dict[str, Any]:
    """What no message of a stranger may change."""
    with farm.farm.database.read() as session:
        return {
            "runs": [
                (one.id, one.state, one.attempts, one.steps_done, one.phase) for one in session.scalars(select(Run))
            ],
            "attempts": [
                (one.id, one.state, one.next_sequence, one.weights_digest, one.lease_expires_at)
                for one in session.scalars(select(Attempt))
            ],
            "results": [(one.attempt_id, one.digest) for one in session.scalars(select(Result))],
            "devices": [(one.id, one.state, one.session, one.strikes) for one in session.scalars(select(Device))],
        }


CLAIMS: dict[str, Callable[[Board, p.Assignment], Any]] = {
    "heartbeat": lambda board, given: board.heartbeat(given),
    "events": lambda board, given: board.send_events(given, p.Event(1, 1.0, "log", message="mine now")),
    "weights": lambda board, given: board.put_weights(given, b"w", digest_of(b"w")),
    "report": lambda board, given: board.report(given),
    "bundle": lambda board, given: board.get(p.attempt_path(p.BUNDLE_PATH, given.lease_token)),
    "dataset": lambda board, given: board.get(p.attempt_path(p.DATASET_PATH, given.lease_token)),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_work_that_was_given_to_another_is_nobody_elses(small_farm: TestFarm, kind: str) -> None:
    farm = small_farm
    run = farm.run(bundle=farm.bundle())
    owner, thief = farm.board(name="owner"), farm.board(name="thief")
    given = leased(owner)
    before = snapshot(farm)
    answer = CLAIMS[kind](thief, given)
    assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale")
    assert snapshot(farm) == before
    assert owner.report(given).status_code == 200
    assert farm.show(run["id"])["device_id"] == owner.device_id


def test_a_report_of_one_attempt_is_none_of_another(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    farm.run(bundle=digest)
    first = leased(board)
    signed = board.envelope(board.make_report(first))
    board.report(first)
    second_run = farm.run(bundle=digest)
    second = leased(board)
    before = snapshot(farm)
    answer = board.post(p.attempt_path(p.REPORT_PATH, second.lease_token), signed)
    assert (answer.status_code, answer.json()["code"]) == (422, "report.mismatch")
    assert snapshot(farm) == before
    board.report(second)
    assert farm.show(second_run["id"])["state"] == "succeeded"


def test_a_challenge_that_was_signed_for_one_session_starts_no_other(small_farm: TestFarm) -> None:
    farm = small_farm
    board = farm.board()
    challenge = p.loads(
        p.Challenge, board.post(p.CHALLENGE_PATH, p.ChallengeRequest(board.device_id)).content
    ).challenge
    message = p.pae(p.CHALLENGE_TYPE, p.challenge_message(board.device_id, "session-one", challenge))
    signature = base64.b64encode(board.key.sign(message)).decode()
    before = snapshot(farm)
    other = p.RenewRequest(board.device_id, "session-two", challenge, signature, board.description)
    assert board.post(p.RENEW_PATH, other).status_code == 403
    assert snapshot(farm) == before


def mutated(text: bytes, rng: random.Random) -> bytes:
    """The message with something changed: a byte, a piece lost or doubled, a value of another kind."""
    act = rng.randrange(5)
    place = rng.randrange(len(text))
    if act == 0:
        return text[:place] + bytes([rng.randrange(256)]) + text[place + 1 :]
    if act == 1:
        return text[:place] + text[place + rng.randrange(1, 40) :]
    if act == 2:
        return text[:place] + text[max(0, place - 30) : place] + text[place:]
    body = json.loads(text)
    name = rng.choice(sorted(body))
    values: list[Any] = [None, 0, -1, 1e308, "", "\0", "x" * 5000, [], {}, True, [[[]]], {"a": {"b": 1}}]
    if act == 3:
        body[name] = rng.choice(values)
    else:
        body.pop(name)
    return json.dumps(body).encode()


@pytest.mark.thorough
def test_mutated_messages_change_nothing_that_was_not_signed(small_farm: TestFarm) -> None:
    """Envelopes, renewals, requests for work and heartbeats, with something changed on the way."""
    farm = small_farm
    rng = random.Random(7)
    farm.run(bundle=farm.bundle())
    board = farm.board()
    given = leased(board)
    envelope = p.dumps(board.envelope(board.make_report(given)))
    payload = json.loads(envelope)["payload"]
    path = p.attempt_path(p.REPORT_PATH, given.lease_token)
    before = snapshot(farm)
    for _ in range(MUTATIONS):
        sent = mutated(envelope, rng)
        try:
            is_same = json.loads(sent).get("payload") == payload
        except (ValueError, AttributeError):
            is_same = False
        if is_same:
            continue
        answer = board.post(path, None, content=sent)
        assert 400 <= answer.status_code < 500, (answer.status_code, sent)
        assert answer.json()["code"]
    assert snapshot(farm) == before
    assert board.post(path, None, content=envelope).status_code == 200


@pytest.mark.parametrize("kind", ["lease", "heartbeat", "events", "renew", "enrol"])
def test_mutated_requests_are_answered_with_a_type(
    small_farm: TestFarm, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = small_farm
    monkeypatch.setattr(p, "MAX_LONG_POLL_S", 0.0)  # a mutated `wait_s` is no reason to wait
    rng = random.Random(kind)
    farm.run(bundle=farm.bundle())
    board, victim = farm.board(), farm.board(name="victim")
    given = leased(victim)
    token = p.attempt_path
    bodies: dict[str, tuple[str, object]] = {
        "lease": (p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 2)),
        "heartbeat": (token(p.HEARTBEAT_PATH, given.lease_token), p.HeartbeatRequest("run", 1)),
        "events": (token(p.EVENTS_PATH, given.lease_token), p.EventBatch((p.Event(1, 1.0, "log", message="m"),))),
        "renew": (p.RENEW_PATH, p.RenewRequest(board.device_id, "s" * 20, "c", "c2ln", board.description)),
        "enrol": (p.ENROL_PATH, board.enrolment("token")),
    }
    path, body = bodies[kind]
    before = snapshot(farm)["devices"]
    for _ in range(MUTATIONS // 5):
        answer = board.post(path, None, content=mutated(p.dumps(body), rng))
        assert answer.status_code < 500, answer.text
        assert answer.status_code in (200, 204) or answer.json()["code"]
    assert snapshot(farm)["devices"] == before
    assert victim.heartbeat(given).status_code == 200


DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "giant name": {"name": "x" * 1_000_000},
    "many features": {"features": ["f"] * 200_000},
    "deep": {"environment": json.loads("[" * 60 + "]" * 60)},
    "no memory": {"memory_bytes": -5},
    "huge memory": {"memory_bytes": 10**40},
    "no cores": {"cores": 0},
    "text as number": {"cores": "many"},
    "strange class": {"measurement_class": "imagined"},
    "nul": {"name": "a\0b"},
    "surrogate": {"cpu_model": "\ud800"},
    "terminal": {"name": "\x1b[2Jgone"},
    "unknown field": {"colour": "red"},
    "isolation": {"isolation_level": 99},
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_descriptions_that_no_board_has_enrol_none_or_are_cleaned(small_farm: TestFarm, kind: str) -> None:
    farm = small_farm
    token = farm.http.post("/devices/enrolment-tokens", json={}).json()["token"]
    board = Board(farm.anonymous)
    body = json.loads(p.dumps(board.enrolment(token)))
    body["description"] |= DESCRIPTIONS[kind]
    told = replace(board.enrolment(token), description=body["description"])
    body["signature"] = board.sign(p.ENROL_TYPE, p.enrol_message(told))
    answer = board.post(p.ENROL_PATH, None, content=json.dumps(body).encode())
    assert answer.status_code < 500, answer.text
    if answer.status_code != 201:
        assert 400 <= answer.status_code < 500
        assert answer.json()["code"]
        assert farm.http.get("/devices").json()["items"] == []
        assert Board(farm.anonymous).enrol(token).device_id, "the token is still good"
        return
    (device,) = farm.http.get("/devices").json()["items"]
    assert "\0" not in device["name"]
    assert "\x1b" not in device["name"]
    assert len(device["name"]) <= 200


def test_a_device_that_floods_reports_and_leases_hurts_itself_only(small_farm: TestFarm) -> None:
    """It fails every run that it gets, at once: three strikes, and the runs go to the other."""
    farm = small_farm
    digest = farm.bundle()
    runs = [farm.run(bundle=digest)["id"] for _ in range(6)]
    bad, good = farm.board(name="bad"), farm.board(name="good")
    failures = 0
    for _ in range(30):
        given = bad.lease()
        if given is not None:
            failures += 1
            bad.report(given, p.Outcome("failed", "device", "device.system", "no"))
    assert failures == 3
    while (given := good.lease()) is not None:
        good.report(given)
    assert {farm.show(run_id)["state"] for run_id in runs} == {"succeeded"}


def test_a_clock_that_is_wrong_is_told_and_comes_back_when_it_is_right(small_farm: TestFarm) -> None:
    farm = small_farm
    board = farm.board()
    farm.run(bundle=farm.bundle())
    for off_s in (-5000.0, 5000.0, 1e18, float("inf"), float("nan")):
        board.clock_off_s = off_s
        answer = board.try_lease()
        assert answer.status_code in (200, 204), answer.text
        if answer.status_code == 200:
            board.clock_off_s = None
            board.report(assignment_of(answer), p.Outcome("failed", "infra", "agent.stopped", "m"))
    board.clock_off_s = 0.0
    assert leased(board).run_id


def test_a_removed_device_does_not_come_back_with_a_right_clock(farm: TestFarm) -> None:
    board = farm.board()
    board.clock_off_s = 9000.0
    assert board.lease() is None
    farm.http.delete(f"/devices/{board.device_id}")
    board.clock_off_s = 0.0
    assert board.try_lease().status_code in (401, 403)
    assert farm.http.get(f"/devices/{board.device_id}").json()["state"] == "removed"
    with farm.farm.database.transaction() as session:
        session.execute(update(Device).values(quarantined_for="clock"))
    assert board.try_lease().status_code in (401, 403)
