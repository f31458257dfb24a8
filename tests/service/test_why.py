"""Why a run or a job is where it is: what is said of attempts, of waiting, and of what is not there."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from sqlalchemy import update

from device_agents import wire as p
from pockfarm.commands.why import why_text
from service.artefacts.jobs import claims
from service.store.database.models import Attempt, Device, Job, Run
from service.work.runs.forecast import MOST_AHEAD, estimate
from tests.service.board import leased
from tests.service.farms import TestFarm, expire_lease

DISK = p.Outcome("failed", "device", "device.disk", "the job needs 3,000 bytes of disk, 0 are free")
NETWORK = p.Outcome("failed", "infra", "download.failed", "the farm did not answer")
KILLED = p.Outcome("failed", "device", "step.killed", "killed from outside")


def why(farm: TestFarm, subject: str) -> dict[str, Any]:
    kind = "jobs" if subject.startswith("job_") else "runs"
    answer = farm.http.get(f"/{kind}/{subject}/why")
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    assert said["message"] in why_text(said), "the command prints the sum of it"
    return said


def go_away(farm: TestFarm, device_id: str, seconds: float) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(update(Device).where(Device.id == device_id).values(last_seen_at=time.time() - seconds))


def test_a_free_device_is_next(small_farm: TestFarm) -> None:
    farm = small_farm
    board = farm.board(name="bench left")
    run = farm.run(bundle=farm.bundle())
    assert run["warnings"] == []
    waiting = why(farm, run["id"])["waiting"]
    assert (waiting["code"], waiting["position"], waiting["confidence"]) == ("next", 1, "fair")
    assert "bench left is free" in waiting["message"]
    board.report(leased(board))
    said = why(farm, run["id"])
    assert (said["waiting"], said["message"]) == (None, "It succeeded on bench left.")
    assert said["tries"][0]["decision"] == "the run ended with it"


def test_a_farm_without_devices_says_so_at_once_and_later(small_farm: TestFarm) -> None:
    farm = small_farm
    run = farm.run(bundle=farm.bundle())
    (warning,) = run["warnings"]
    assert (warning["code"], warning["where"]) == ("run.waits", "target")
    assert "no device is enrolled" in warning["message"]
    assert " x86-64-v3" in warning["message"]
    waiting = why(farm, run["id"])["waiting"]
    assert (waiting["code"], waiting["position"], waiting["expected_start_at"]) == ("none", None, None)
    assert "expires in 6 hours" in waiting["message"]


def test_an_unknown_class_is_refused_with_near_names_unless_one_wants_to_wait(small_farm: TestFarm) -> None:
    farm = small_farm
    digest = farm.bundle()
    farm.board(name="pi", device_class="raspberry-pi-4", targets=("raspberry-pi-4",))
    farm.board(name="host")
    body = {"bundle": digest, "device_class": "rasberry-pi-4"}
    answer = farm.http.post("/runs", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["where"]) == (422, "run.device-class-unknown", "device_class")
    assert "raspberry-pi-4, x86-64" in problem["detail"]
    assert "did you mean raspberry-pi-4?" in problem["hint"]
    run = farm.run(**body, allow_waiting=True)
    assert "no device of class rasberry-pi-4 is enrolled" in run["warnings"][0]["message"]
    assert why(farm, run["id"])["waiting"]["code"] == "none"


def test_a_class_whose_devices_cannot_take_it_is_taken_with_a_warning(farm: TestFarm) -> None:
    digest = farm.bundle()
    away, held = farm.board(name="away"), farm.board(name="held")
    farm.board(name="weak", features=("sse",))
    farm.board(name="pi", targets=("raspberry-pi-4",))
    go_away(farm, away.device_id, 7200)
    farm.http.post(f"/devices/{held.device_id}/quarantine", json={"reason": "its fan is loud"})
    run = farm.run(bundle=digest, device_class="x86-64")
    (warning,) = run["warnings"]
    for part in (
        "away has been silent for 2 hours",
        "held is quarantined: its fan is loud",
        "weak lacks the CPU features avx2, fma",
        "pi runs raspberry-pi-4, not x86-64-v3",
    ):
        assert part in warning["message"]
    waiting = why(farm, run["id"])["waiting"]
    assert waiting["code"] == "unavailable"
    assert {one["name"]: one["code"] for one in waiting["devices"]} == {
        "away": "silent",
        "held": "quarantined",
        "weak": "features",
        "pi": "target",
    }


def test_a_device_that_is_quarantined_or_away_is_warned_of(small_farm: TestFarm) -> None:
    farm = small_farm
    digest, board = farm.bundle(), farm.board(name="mine")
    farm.http.post(f"/devices/{board.device_id}/quarantine", json={})
    run = farm.run(bundle=digest, device=board.device_id)
    assert run["warnings"][0]["where"] == "device"
    assert "mine is quarantined: an operator said so" in run["warnings"][0]["message"]


def test_the_queue_says_who_is_busy_how_many_are_ahead_and_when_it_may_start(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board(name="bench")
    for _ in range(5):
        done = farm.run(bundle=digest)
        board.report(leased(board))
        with farm.farm.database.transaction() as session:
            values = update(Attempt).where(Attempt.run_id == done["id"])
            session.execute(values.values(finished_at=Attempt.created_at + 120))
    busy, second, third = (farm.run(bundle=digest) for _ in range(3))
    other = farm.run(bundle=farm.bundle(b"other", target="raspberry-pi-4"))
    leased(board)
    waiting = why(farm, third["id"])["waiting"]
    assert (waiting["code"], waiting["position"], waiting["confidence"]) == ("queue", 2, "fair")
    assert f"bench, works on {busy['id']}; 1 run ahead of it" in waiting["message"]
    assert re.search(r" 4 minutes \(5 earlier runs .* 2 minutes each\)", waiting["message"])
    assert "first in the queue" in why(farm, second["id"])["waiting"]["message"]
    assert why(farm, other["id"])["waiting"]["code"] == "unavailable"


def test_a_run_ahead_that_wants_another_device_is_not_in_the_way(small_farm: TestFarm) -> None:
    digest, left = small_farm.bundle(), small_farm.board(name="left")
    small_farm.run(bundle=digest, device=left.device_id)
    run = small_farm.run(bundle=digest)
    assert why(small_farm, run["id"])["waiting"]["position"] == 2
    small_farm.board(name="right")
    waiting = why(small_farm, run["id"])["waiting"]
    assert (waiting["code"], waiting["position"]) == ("next", 1)
    assert "right is free" in waiting["message"]


@pytest.mark.parametrize(
    ("ahead", "lengths", "busy", "expected"),
    [
        (0, [], [None], ("fair", 0.0)),
        (1, [], [None, None], ("fair", 0.0)),
        (0, [], [0.0], ("unknown", None)),
        (2, [60.0] * 5, [-30.0], ("fair", 150.0)),
        (2, [60.0] * 4, [-30.0], ("rough", 150.0)),
        (2, [10.0, 60.0, 60.0, 60.0, 60.0], [-30.0], ("rough", 150.0)),
        (3, [60.0] * 5, [-30.0, None], ("fair", 90.0)),
        (0, [60.0] * 5, [-300.0], ("fair", 0.0)),
        (MOST_AHEAD + 1, [1.0] * 5, [None], ("rough", 1000.0)),
    ],
)
def test_a_forecast_from_figures(
    ahead: int, lengths: list[float], busy: list[float | None], expected: tuple[str, float | None]
) -> None:
    made = estimate(ahead, lengths, busy, now=0.0)
    assert (made.confidence, made.start_at) == expected


def test_attempts_tell_what_was_decided_because_of_them(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    full, flaky = farm.board(name="full"), farm.board(name="flaky")
    full.report(leased(full), DISK)
    response = why(farm, run["id"])
    assert (response["tries"][0]["fault"], response["tries"][0]["strike"]) == ("device", "counted")
    assert "a strike against full" in response["tries"][0]["decision"]
    flaky.report(leased(flaky), NETWORK)
    response = why(farm, run["id"])
    assert response["tries"][0]["decision"].endswith("attempt 2 followed")
    assert (response["tries"][1]["fault"], response["tries"][1]["strike"]) == ("passing", None)
    assert re.search(r"\bflaky .* 10 minutes\b", response["tries"][1]["decision"])
    assert response["waiting"]["code"] == "excluded"
    by_name = {device["name"]: device for device in response["waiting"]["devices"]}
    assert by_name["flaky"]["until"] is not None
    assert "may try again in 10 minutes" in by_name["flaky"]["message"]
    assert "an operator's release lifts that" in by_name["full"]["message"]
    assert response["message"].startswith("It was tried twice ")
    farm.http.post(f"/devices/{full.device_id}/release", json={})
    assert why(farm, run["id"])["waiting"]["code"] == "next"


def test_a_run_that_kills_two_devices_says_that_the_strikes_were_taken_back(small_farm: TestFarm) -> None:
    farm = small_farm
    run = farm.run(bundle=farm.bundle())
    one, two = farm.board(name="one"), farm.board(name="two")
    one.report(leased(one), KILLED)
    two.report(leased(two), KILLED)
    said = why(farm, run["id"])
    assert said["message"].startswith("It failed: 2 devices died")
    assert "Next step: it may need more memory" in said["message"]
    assert [entry["strike"] for entry in said["tries"]] == ["taken-back", "taken-back"]
    assert "was taken back: the run was to blame" in said["tries"][0]["decision"]


def test_a_running_and_a_late_attempt(small_farm: TestFarm) -> None:
    farm = small_farm
    run = farm.run(bundle=farm.bundle())
    slow, quick = farm.board(name="slow"), farm.board(name="quick")
    work = leased(slow)
    assert "It has been on slow for" in why(farm, run["id"])["message"]
    expire_lease(farm, run["id"])
    quick.report(leased(quick))
    slow.report(work)
    said = why(farm, run["id"])
    assert said["message"] == "It succeeded on quick, at attempt 2."
    assert said["tries"][0]["state"] == "lost"


def test_runs_from_before_have_decisions_too(small_farm: TestFarm) -> None:
    farm = small_farm
    run, board = farm.run(bundle=farm.bundle()), farm.board()
    board.report(leased(board), DISK)
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).values(fault=None, strike=None))
    assert "went back into the queue" in why(farm, run["id"])["tries"][0]["decision"]


def test_a_compile_that_waits_is_tried_again_and_ends(farm: TestFarm) -> None:
    first = farm.compile(b"one").json()["id"]
    second = farm.compile(b"two").json()["id"]
    response = why(farm, second)
    assert (response["waiting"]["position"], response["waiting"]["confidence"]) == (2, "unknown")
    assert "if it stays so, no worker is up" in response["message"]
    farm.work_off(first)
    with farm.farm.database.transaction() as session:
        claim = claims.claim(session, farm.compile(b"three").json()["id"], lease_s=60)
        session.execute(update(Job).where(Job.id == first).values(finished_at=Job.started_at + 30))
    assert claim is not None
    response = why(farm, second)
    assert response["waiting"]["confidence"] == "rough"
    assert "30 seconds" in response["message"]
    assert "A worker has been at it for" in why(farm, claim.job_id)["message"]
    with farm.farm.database.transaction() as session:
        claims.fail(session, claim, claims.Failure("infra", "infra.killed", "it was killed", retry=True), attempts=3)
    response = why(farm, claim.job_id)
    assert response["tries"] == [
        {"n": 1, "began_at": response["tries"][0]["began_at"], "decision": "it was killed; it went back into the queue"}
    ]
    farm.http.post(f"/jobs/{second}/cancel")
    assert why(farm, second)["message"].startswith("It was cancelled: ")
    assert why(farm, first)["message"] == "It succeeded."


def test_what_is_not_there_has_no_why(small_farm: TestFarm) -> None:
    farm = small_farm
    for path in ("/runs/run_x/why", "/jobs/job_x/why"):
        assert farm.http.get(path).status_code == 404


def test_expired_runs_say_who_did_not_take_them(small_farm: TestFarm) -> None:
    farm = small_farm
    run = farm.run(bundle=farm.bundle())
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).values(queue_deadline_at=time.time() - 1))
    farm.sweep()
    response = why(farm, run["id"])
    assert re.search(r"^It expired: .* x86-64-v3 ", response["message"])
