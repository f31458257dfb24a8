"""Attempts that end otherwise: stale tokens, silence, cancellation, failures that may pass, clocks that run out."""

from __future__ import annotations

import json
import time

import pytest
from sqlalchemy import select, update

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.boards.agents import recording
from service.store.database.models import Attempt, Device, Event, Run
from tests.service.board import leased
from tests.service.farms import TestFarm, expire_lease


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
    twin = board.copy(machine=None)
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
    first = leased(board)
    assert board.heartbeat(first).status_code == 200
    second = leased(board)
    assert (first.run_id, second.run_id, second.attempt) == (one["id"], two["id"], 1)
    assert board.heartbeat(first).status_code == 409
    again = leased(farm.board(name="other"))
    assert (again.run_id, again.attempt) == (one["id"], 2)
    assert farm.show(one["id"])["tries"][0]["code"] == "infra.abandoned"


def test_an_assignment_that_never_arrived_is_nobodys_fault(farm: TestFarm) -> None:
    """Two boards lose two answers each: neither is struck, the run is theirs again at once, and ends as it should."""
    run = farm.run(bundle=farm.bundle())
    one, two = farm.board(name="one"), farm.board(name="two")
    for n in (1, 2, 3):
        assert leased(one).attempt == n, "the same board has it again at once"
    assert one.lease() is None, "three answers lost: the run is no longer held up by this board"
    assert farm.show(run["id"])["state"] == "queued"
    for n in (4, 5):
        assert leased(two).attempt == n
    work = leased(two)
    two.report(work)
    shown = farm.show(run["id"])
    assert (shown["state"], shown["device_id"]) == ("succeeded", two.device_id)
    assert [(one["state"], one["code"]) for one in shown["tries"][:-1]] == [("lost", "infra.not-received")] * 5
    why = farm.http.get(f"/runs/{run['id']}/why").json()
    assert [(one["fault"], one["strike"]) for one in why["tries"][:-1]] == [("nobody", None)] * 5
    for board in (one, two):
        device = farm.http.get(f"/devices/{board.device_id}").json()
        assert (device["state"], device["strikes"]) == ("active", 0)


def test_answers_that_were_lost_are_no_tries_of_the_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    boards = [farm.board(name=f"board {n}") for n in range(3)]
    passing = p.Outcome("failed", "infra", "agent.disk", "full")
    for n, board in enumerate(boards, 1):
        assert farm.show(run["id"])["state"] == "queued", f"after {n - 1} tries"
        leased(board)
        board.report(leased(board), passing)
    assert farm.show(run["id"])["state"] == "inconclusive"


def test_a_run_whose_answer_was_lost_can_be_cancelled(farm: TestFarm) -> None:
    run, board = farm.run(bundle=farm.bundle()), farm.board()
    leased(board)
    farm.http.post(f"/runs/{run['id']}/cancel")
    assert board.lease() is None
    assert farm.show(run["id"])["state"] == "cancelled"


def test_a_board_that_begins_and_then_asks_for_other_work_is_still_suspected(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    for name in ("one", "two"):
        board = farm.board(name=name)
        board.heartbeat(leased(board))
        assert board.lease() is None
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"]["code"]) == ("failed", "model.kills-devices")


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
    assert shown["ending"] == {
        "cause": cause,
        "code": "data.shape",
        "message": "wrong shape",
        "where": "",
        "hint": "fix it",
    }


@pytest.mark.parametrize(
    "outcome",
    [p.Outcome("failed", "infra", "agent.disk", "full"), p.Outcome("cancelled", "infra", "agent.down", "going down")],
)
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
            Attempt, Attempt.device_id == Device.id
        )
        clocks = dict(iter(rows))
    settings = small_farm.farm.settings
    assert clocks["host"] == pytest.approx(settings.transfer_s + settings.run_s, abs=1)
    assert clocks["emulated"] == pytest.approx(settings.transfer_s + 10 * settings.run_s, abs=1)


def test_a_run_has_the_time_that_it_asked_for(small_farm: TestFarm) -> None:
    small_farm.run(bundle=small_farm.bundle(), time_limit_s=4 * 3600.0)
    work = leased(small_farm.board())
    assert (work.limits.run_s, work.settings.time_limit_s) == (4 * 3600.0, 4 * 3600.0)
    with small_farm.farm.database.read() as session:
        attempt = session.query(Attempt).one()
        clock_s = attempt.deadline_at - attempt.created_at
    assert clock_s == pytest.approx(small_farm.farm.settings.transfer_s + 4 * 3600.0, abs=1)


def test_run_nobody_takes_expires(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).values(queue_deadline_at=time.time() - 1))
    assert farm.board().lease() is None
    farm.sweep()
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"]["code"]) == ("expired", "device.none")


def test_events_of_an_attempt_are_limited_in_bytes(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_EVENT_BYTES_PER_ATTEMPT", 100_000)
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    for number in range(8):
        batch = [p.Event(number * 5 + k + 1, 1.0, "log", message="\U0001f600" * 4000) for k in range(5)]
        answer = board.send_events(work, *batch)
        assert (answer.status_code, answer.json()["next_sequence"]) == (200, number * 5 + 6)
    with farm.farm.database.read() as session:
        bodies = session.scalars(select(Event.body).where(Event.subject == run["id"])).all()
    assert sum(len(json.dumps(body)) for body in bodies) < 110_000
    assert [body["message"] for body in bodies if "no more are kept" in body.get("message", "")] == [
        "events of this attempt take more than 100,000 bytes: no more are kept"
    ]


def test_events_of_an_organisation_are_limited_in_bytes_a_day(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "DAY_CHECK_BYTES", 1)
    acme, other, board = farm.tenant("acme"), farm.tenant("other"), farm.board()
    limit = {"quotas": {"event_bytes_per_day": 100_000}}
    assert farm.http.patch(f"/organisations/{acme.organisation_id}", json=limit).status_code == 200

    def events_of(tenant: TestFarm, bundle: str) -> list[str]:
        run = tenant.run(bundle=bundle)
        work = leased(board)
        for number in range(10):
            batch = [p.Event(number * 5 + k + 1, 1.0, "log", message="x" * 1000) for k in range(5)]
            assert board.send_events(work, *batch).json()["next_sequence"] == number * 5 + 6
        assert board.report(work).status_code == 200
        with farm.farm.database.read() as session:
            bodies = session.scalars(select(Event.body).where(Event.subject == run["id"], Event.kind == "log")).all()
        return [body["message"] for body in bodies]

    dropped = (
        "events of the organisation's runs take more than 100,000 bytes a day (quota event_bytes_per_day): "
        "no more are kept"
    )
    bundle = acme.bundle()
    assert events_of(acme, bundle) == ["x" * 1000] * 50
    second = events_of(acme, bundle)
    assert (second.count(dropped), second[-1]) == (1, dropped)
    assert 40 < len(second) < 50
    assert events_of(acme, bundle) == [dropped]
    assert events_of(other, other.bundle(b"theirs")) == ["x" * 1000] * 50
    use = next(
        quota["use"]
        for quota in acme.http.get("/organisation").json()["quotas"]
        if quota["name"] == "event_bytes_per_day"
    )
    assert 90_000 < use <= 100_000
