"""Checkpoints of runs on data of the device's own: with which data set they go, and what the farm knows of those that
stay on the board."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import update

from device_agents import wire as p
from service.store.database.models import Attempt
from tests.service.board import Board, leased
from tests.service.farms import TestFarm, expire_lease
from tests.service.test_own_data import DIGEST, OTHER, own
from tests.service.test_run_checkpoints import STEPS, messages, put, rows, send, whole

DATA = p.OwnData("digits", DIGEST)


def begun(farm: TestFarm, model: bytes = b"goes on", dataset: str = "device:digits") -> str:
    bundle = farm.bundle(model, fields={"checkpoints": 1})
    return str(farm.run(bundle=bundle, mode="train", steps=STEPS, dataset=dataset)["id"])


def has(farm: TestFarm, name: str, digest: str = DIGEST) -> Board:
    return farm.board(name=name, own_datasets=(own(digest=digest),))


def keep(board: Board, work: p.Assignment, step: int, sequence: int = 1) -> None:
    """Tell the farm that a checkpoint lies on the board."""
    event = p.Event(sequence, time.time(), "checkpoint", message=f"checkpoint after step {step}", step=step)
    assert board.send_events(work, event).status_code == 200


def still_open(board: Board, *runs: str) -> tuple[str, ...]:
    answer = board.post(p.KEPT_PATH, p.KeptRuns(runs))
    assert answer.status_code == 200, answer.text
    return p.loads(p.KeptRuns, answer.content).runs


def test_a_device_with_the_same_data_goes_on_and_one_with_others_starts_anew(farm: TestFarm) -> None:
    first, other, same = has(farm, "first"), has(farm, "other", OTHER), has(farm, "same")
    run_id = begun(farm)
    send(first, leased(first), 5)
    expire_lease(farm, run_id)
    work = leased(other)
    assert (work.own_data, work.checkpoint) == (p.OwnData("digits", OTHER), None)
    told = "starts from the first step instead of step 5 (checkpoint of attempt 1, on first): "
    assert f"{told}this device's data set digits is another" in messages(farm, run_id)
    expire_lease(farm, run_id)
    again = leased(same)
    assert again.checkpoint is not None
    assert farm.show(run_id)["steps_done"] == 5


def test_a_checkpoint_goes_with_the_data_that_the_assignment_names(farm: TestFarm) -> None:
    """Also when the device says meanwhile that it has others."""
    board = has(farm, "board")
    begun(farm)
    work = leased(board)
    board.description = p.DeviceDescription(**{**vars(board.description), "own_datasets": (own(digest=OTHER),)})
    assert board.try_renew().status_code == 200
    key = p.checkpoint_key(
        work.settings, bundle=work.bundle.digest, dataset=None, validation_dataset=None, weights=None
    )
    past = p.Past(key, work.run_id, 1, board.device_id, 3, (1.0,) * 3)
    assert put(board, work, whole(past)).json()["code"] == "checkpoint.invalid", "of no data set"
    send(board, work, 3)
    training = p.Training("completed", STEPS, weights_step=STEPS)
    told: dict[str, Any] = {"losses": (1.0,) * STEPS, "training": training}
    assert board.report(work, own_data=p.OwnData("digits", OTHER), **told).json()["code"] == "report.own-data"
    assert board.report(work, own_data=DATA, **told).status_code == 200


def test_the_newest_attempts_data_count(farm: TestFarm) -> None:
    """Else a board whose data are others would leave nothing until it has overtaken one that may never come back."""
    first, other = has(farm, "first"), has(farm, "other", OTHER)
    run_id = begun(farm)
    send(first, leased(first), 5)
    expire_lease(farm, run_id)
    send(other, leased(other), 2)
    (row,) = rows(farm)
    assert row.step == 2


def test_a_board_that_keeps_its_checkpoint_may_have_the_run_again_before_others(farm: TestFarm) -> None:
    keeps, other = has(farm, "keeps"), has(farm, "other")
    run_id = begun(farm)
    keep(keeps, leased(keeps), 4)
    expire_lease(farm, run_id)
    assert rows(farm) == [], "none has left it"
    told = farm.http.get(f"/runs/{run_id}/events", headers={"Accept": "application/json"}).text
    assert "keeps keeps the checkpoint of step 4" in told
    assert other.lease() is None
    next_run = begun(farm, b"another")
    work = leased(other)
    assert work.run_id == next_run, "a run that waits for its board hides no other"
    assert (leased(keeps).run_id, keeps.description.own_datasets) == (run_id, (own(),))


def test_others_may_have_it_when_its_board_does_not_come_back(farm: TestFarm) -> None:
    keeps, other = has(farm, "keeps"), has(farm, "other")
    run_id = begun(farm)
    keep(keeps, leased(keeps), 4)
    expire_lease(farm, run_id)
    assert other.lease() is None
    with farm.farm.database.transaction() as session:
        long_ago = time.time() - farm.farm.settings.device_retry_s - 1
        session.execute(update(Attempt).where(Attempt.run_id == run_id).values(finished_at=long_ago))
    assert leased(other).run_id == run_id


def test_a_board_that_comes_no_further_is_out_like_any(farm: TestFarm) -> None:
    """Its word that it keeps the same step again is no progress."""
    keeps, other = has(farm, "keeps"), has(farm, "other")
    run_id = begun(farm)
    for step in (4, 4):
        keep(keeps, leased(keeps), step)
        expire_lease(farm, run_id)
    assert keeps.lease() is None
    assert leased(other).run_id == run_id


def test_other_runs_keep_nothing_on_the_board_by_saying_so(farm: TestFarm) -> None:
    run_id = begun(farm, dataset=farm.dataset())
    board = has(farm, "board")
    keep(board, leased(board), 4)
    expire_lease(farm, run_id)
    assert board.lease() is None, "it has died of it, and left nothing"


def test_a_device_hears_of_its_own_open_runs_only(farm: TestFarm) -> None:
    keeps, other = has(farm, "keeps"), has(farm, "other")
    run_id, ended = begun(farm), begun(farm, b"another")
    work = leased(keeps)
    assert work.run_id == run_id
    assert still_open(keeps, run_id, ended, "run_unknown", "") == (run_id,), "it never had the other"
    assert still_open(other, run_id) == ()
    expire_lease(farm, run_id)
    assert still_open(keeps, run_id) == (run_id,)
    assert farm.http.post(f"/runs/{run_id}/cancel").status_code == 202
    assert still_open(keeps, run_id) == ()
    too_many = b'{"runs":[' + b'"x",' * p.MAX_KEPT_RUNS + b'"x"]}'
    assert keeps.post(p.KEPT_PATH, None, content=too_many).status_code == 422
