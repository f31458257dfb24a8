"""A device with a fault of its own: its strikes count whoever reports it, no run ends of it, and it is quarantined."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import select, update

from device_agents import wire as p
from service.boards.canary.building import HEALTH
from service.store.database.models import Attempt, Job, Run
from tests.sample import sample
from tests.service.board import Board, leased
from tests.service.farms import TestFarm

CLOCK = p.Outcome("failed", "policy", "envelope.expired", "expired 480 s ago", "compare the clocks")
EARLY = p.Outcome("failed", "policy", "envelope.not_before", "not valid for another 3180 s", "compare the clocks")
STRANGER = p.Outcome("failed", "policy", "envelope.key", "signed by unknown keys", "enrol the device again")
SANDBOX = p.Outcome("failed", "device", "launch.sandbox", "cannot set up isolation level 3: unshare: not permitted")
EXEC = p.Outcome("failed", "device", "launch.exec", "cannot start ./step: Permission denied")
DISK = p.Outcome("failed", "device", "device.disk", "the job needs 3,000 bytes of disk, 0 are free")
SYSTEM = p.Outcome("failed", "device", "device.system", "the device's system failed: read-only file system")
UNSURE = p.Outcome("inconclusive", "device", "device.hot", "throttled")
KILLED = p.Outcome("failed", "device", "step.killed", "the binary was killed from outside (SIGKILL)")
DAMAGED = p.Outcome("failed", "policy", "download.digest", "the farm sent another file than the one announced")
DEFECT = p.Outcome("failed", "infra", "agent.internal", "a defect of the agent: KeyError('x')")
OF_THE_DEVICE = (CLOCK, EARLY, STRANGER, SANDBOX, EXEC, DISK, SYSTEM, UNSURE)


def code_of(outcome: p.Outcome) -> str:
    return str(outcome.code)


def go_silent(farm: TestFarm, work: p.Assignment) -> None:
    with farm.farm.database.transaction() as session:
        session.execute(update(Attempt).where(Attempt.run_id == work.run_id).values(lease_expires_at=time.time() - 1))
    farm.sweep()


def shown_device(farm: TestFarm, board: Board) -> dict[str, object]:
    return dict(farm.http.get(f"/devices/{board.device_id}").json())


def states(farm: TestFarm) -> list[str]:
    return [run["state"] for run in farm.http.get("/runs?limit=200").json()["items"]]


def work_off(farm: TestFarm, bad: Board, good: Board, outcome: p.Outcome, most: int = 60) -> int:
    """Both ask for work in turns until neither gets any; how often the bad one got some."""
    failures = 0
    for _ in range(most):
        spoilt, work = bad.lease(), None
        if spoilt is not None:
            failures += 1
            assert bad.report(spoilt, outcome).status_code == 200
        work = good.lease()
        if work is not None:
            assert good.report(work).status_code == 200
        if spoilt is None and work is None:
            return failures
    raise AssertionError("the boards never ran out of work")


@pytest.mark.parametrize("outcome", sample(OF_THE_DEVICE, ("envelope.expired",), code_of))
def test_a_bad_device_beside_a_good_one_spoils_no_run(farm: TestFarm, outcome: p.Outcome) -> None:
    digest = farm.bundle()
    for _ in range(12):
        farm.run(bundle=digest)
    bad, good = farm.board(name="bad"), farm.board(name="good")
    assert work_off(farm, bad, good, outcome) <= 3
    assert states(farm) == ["succeeded"] * 12
    device = shown_device(farm, bad)
    assert device["state"] == "quarantined"
    assert str(outcome.code) in str(device["state_reason"])
    assert outcome.message in str(device["state_reason"])
    assert shown_device(farm, good)["state"] == "active"


def test_a_success_between_makes_an_end_of_the_row(small_farm: TestFarm) -> None:
    digest, board = small_farm.bundle(), small_farm.board()
    for outcome in (DISK, SANDBOX, None, DISK, SANDBOX):
        small_farm.run(bundle=digest)
        board.report(leased(board), outcome)
    device = shown_device(small_farm, board)
    assert (device["state"], device["strikes"]) == ("active", 2)


def test_a_run_that_fails_by_itself_is_neither_strike_nor_success(small_farm: TestFarm) -> None:
    digest, board = small_farm.bundle(), small_farm.board()
    for outcome in (CLOCK, p.Outcome("failed", "user", "train.diverged", "not finite"), CLOCK, CLOCK):
        small_farm.run(bundle=digest)
        board.report(leased(board), outcome)
    device = shown_device(small_farm, board)
    assert (device["state"], device["strikes"]) == ("quarantined", 3)
    assert "envelope.expired 3 times" in str(device["state_reason"])


@pytest.mark.parametrize(
    "outcome",
    sample(
        [*OF_THE_DEVICE, KILLED, DAMAGED, DEFECT],
        ("envelope.key", "launch.sandbox", "device.hot", "step.killed", "download.digest", "agent.internal"),
        code_of,
    ),
)
def test_with_one_bad_device_only_runs_wait_and_say_so(farm: TestFarm, outcome: p.Outcome) -> None:
    digest, bad = farm.bundle(), farm.board(name="bad")
    runs = [farm.run(bundle=digest) for _ in range(5)]
    failures = 0
    while (work := bad.lease()) is not None:
        bad.report(work, outcome)
        failures += 1
    assert failures == 3
    assert states(farm) == ["queued"] * 5
    tried = farm.show(runs[0]["id"])
    assert (tried["phase"], len(tried["tries"]), tried["ending"]) == ("waits for another device", 1, None)
    listed = farm.http.get(f"/runs/{runs[0]['id']}/events", headers={"Accept": "application/json"}).json()
    reason = next(event["body"]["reason"] for event in listed if event["body"].get("reason"))
    assert "bad" in reason
    assert outcome.message in reason
    assert "waits for another device" in reason
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).values(queue_deadline_at=time.time() - 1))
    farm.sweep()
    ending = farm.show(runs[0]["id"])["ending"]
    assert (ending["cause"], ending["code"]) == ("device", "device.none")
    assert "bad" in ending["message"]
    assert str(outcome.code) in ending["message"]


def test_a_run_goes_to_each_device_once(farm: TestFarm) -> None:
    farm.run(bundle=farm.bundle())
    boards = [farm.board(name=f"board {n}") for n in range(5)]
    for board in boards:
        board.report(leased(board), SANDBOX)
        assert board.lease() is None
    assert states(farm) == ["queued"]
    last = farm.board(name="good")
    assert leased(last).attempt == 6


def test_release_says_that_the_device_is_mended_and_it_gets_the_runs_again(farm: TestFarm) -> None:
    run, board = farm.run(bundle=farm.bundle()), farm.board()
    board.report(leased(board), DISK)
    assert board.lease() is None
    farm.http.post(f"/devices/{board.device_id}/release", json={"reason": "made room"})
    work = leased(board)
    assert (work.run_id, work.attempt) == (run["id"], 2)
    board.report(work)
    assert farm.show(run["id"])["state"] == "succeeded"


def test_a_run_for_one_device_waits_for_that_device(farm: TestFarm) -> None:
    board, other = farm.board(name="wanted"), farm.board(name="other")
    run = farm.run(bundle=farm.bundle(), device=board.device_id)
    board.report(leased(board), SANDBOX)
    assert board.lease() is None
    assert other.lease() is None
    assert farm.show(run["id"])["state"] == "queued"


def test_an_agent_that_went_down_in_order_may_have_the_run_again(farm: TestFarm) -> None:
    run, board = farm.run(bundle=farm.bundle()), farm.board()
    board.report(leased(board), p.Outcome("failed", "infra", "agent.stopped", "the agent was told to stop"))
    work = leased(board)
    assert (work.run_id, work.attempt) == (run["id"], 2)
    assert shown_device(farm, board)["strikes"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("death", ["silent", "killed", "restarted"])
def test_a_run_that_takes_boards_down_ends_and_the_boards_are_not_blamed(farm: TestFarm, death: str) -> None:
    """Three such runs, three boards: without taking the strikes back the whole lab would be quarantined."""
    digest = farm.bundle()
    boards = [farm.board(name=f"board {n}") for n in range(3)]
    for _ in range(3):
        run = farm.run(bundle=digest)
        for board in boards[:2]:
            work = leased(board)
            if death == "killed":
                board.report(work, KILLED)
            elif death == "silent":
                go_silent(farm, work)
            else:
                board.restart()
        ending = farm.show(run["id"])
        assert (ending["state"], ending["ending"]["cause"], ending["ending"]["code"]) == (
            "failed",
            "model",
            "model.kills-devices",
        )
    for board in boards:
        device = shown_device(farm, board)
        assert (device["state"], device["strikes"]) == ("active", 0)


def kill_with(farm: TestFarm, boards: list[Board], *models: bytes) -> None:
    """A run of each model's bundle takes all boards down."""
    for model in models:
        run = farm.run(bundle=farm.bundle(model))
        for board in boards:
            board.report(leased(board), KILLED)
        assert farm.show(run["id"])["ending"]["code"] == "model.kills-devices"


def test_boards_that_all_bundles_take_down_have_to_prove_that_they_work(farm: TestFarm) -> None:
    """Two that drop every run together could else end whatever they are given, and stay in good standing."""
    pair = [farm.board(name="one"), farm.board(name="two")]
    kill_with(farm, pair, b"a", b"b")
    assert [shown_device(farm, board)["state"] for board in pair] == ["active", "active"]
    kill_with(farm, pair, b"c")
    for board in pair:
        device = shown_device(farm, board)
        assert (device["state"], device["strikes"]) == ("quarantined", 0)
        assert "runs of 3 bundles in a row have died with it" in str(device["state_reason"])
    farm.run(bundle=farm.bundle(b"d"))
    assert [board.lease() for board in pair] == [None, None]
    assert leased(farm.board(name="three")).run_id, "others work on"
    farm.sweep()
    with farm.farm.database.read() as session:
        waiting = session.scalars(select(Job.id).where(Job.model_name == HEALTH.name, Job.state == "queued")).all()
    assert waiting, "the canary comes at once: nobody has to mend a board that was not the cause"


def test_a_board_that_works_in_between_is_not_doubted(farm: TestFarm) -> None:
    pair, good = [farm.board(name="one"), farm.board(name="two")], farm.bundle(b"good")
    for model in (b"a", b"b", b"c"):
        kill_with(farm, pair, model)
        for board in pair:
            farm.run(bundle=good, device=board.device_id)
            assert board.report(leased(board)).status_code == 200
    assert [shown_device(farm, board)["state"] for board in pair] == ["active", "active"]


def test_strikes_taken_back_end_the_quarantine_that_they_made(farm: TestFarm) -> None:
    digest = farm.bundle()
    one, two = farm.board(name="one"), farm.board(name="two")
    killer = farm.run(bundle=digest)
    go_silent(farm, leased(one))
    for _ in range(2):
        farm.run(bundle=digest)
        one.report(leased(one), SANDBOX)
    assert shown_device(farm, one)["state"] == "quarantined"
    go_silent(farm, leased(two))
    assert farm.show(killer["id"])["state"] == "failed"
    device = shown_device(farm, one)
    assert (device["state"], device["strikes"]) == ("active", 2)
    assert shown_device(farm, two)["strikes"] == 0


def test_an_operators_quarantine_stays_when_strikes_are_taken_back(farm: TestFarm) -> None:
    one, two = farm.board(name="one"), farm.board(name="two")
    farm.run(bundle=farm.bundle())
    go_silent(farm, leased(one))
    farm.http.post(f"/devices/{one.device_id}/quarantine", json={"reason": "smoke"})
    go_silent(farm, leased(two))
    assert shown_device(farm, one)["state"] == "quarantined"


def test_a_stored_file_that_is_damaged_is_no_devices_fault(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    boards = [farm.board(name=name) for name in ("one", "two")]
    for board in boards:
        board.report(leased(board), DAMAGED)
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"]["cause"], shown["ending"]["code"]) == (
        "failed",
        "infra",
        "infra.stored-file",
    )
    assert [shown_device(farm, board)["strikes"] for board in boards] == [0, 0]


def test_a_board_that_overruns_its_clock_in_silence_does_not_end_the_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    for name, state in (("hung", "queued"), ("other", "failed")):
        board = farm.board(name=name)
        board.heartbeat(leased(board))
        with farm.farm.database.transaction() as session:
            session.execute(update(Attempt).values(deadline_at=time.time() - 100))
        farm.sweep()
        assert farm.show(run["id"])["state"] == state
    assert farm.show(run["id"])["ending"]["code"] == "limits.run-time"


def test_a_clock_that_is_off_gets_no_work_says_so_and_works_again_once_it_is_right(farm: TestFarm) -> None:
    digest = farm.bundle()
    for _ in range(10):
        farm.run(bundle=digest)
    off, good = farm.board(name="off"), farm.board(name="good")
    off.clock_off_s = -3600.0
    assert off.lease() is None
    device = shown_device(farm, off)
    assert device["state"] == "quarantined"
    assert "clock is 3,600 s behind" in str(device["state_reason"])
    assert work_off(farm, off, good, CLOCK) == 0
    assert states(farm) == ["succeeded"] * 10
    off.clock_off_s = 0.0
    run = farm.run(bundle=digest)
    assert leased(off).run_id == run["id"]
    assert shown_device(farm, off)["state"] == "active"


def test_a_right_clock_does_not_end_another_quarantine(farm: TestFarm) -> None:
    board = farm.board()
    farm.http.post(f"/devices/{board.device_id}/quarantine", json={"reason": "smoke"})
    board.clock_off_s = 3600.0
    assert board.lease() is None
    board.clock_off_s = 0.0
    assert board.lease() is None
    assert shown_device(farm, board)["state_reason"] == "smoke"


@pytest.mark.parametrize("off_s", [float("nan"), float("inf"), float("-inf")])
def test_a_clock_that_tells_no_time_is_a_wrong_one(farm: TestFarm, off_s: float) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle())
    board.clock_off_s = off_s
    assert board.lease() is None
    shown = farm.http.get(f"/devices/{board.device_id}").json()
    assert shown["state"] == "quarantined"
    assert shown["state_reason"].startswith("its clock says ")
    board.clock_off_s = 0.0
    assert board.lease() is not None
