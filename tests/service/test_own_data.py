"""Data sets that stay on devices: who is asked, what is checked before, what a board of the real agent lets out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_agents import wire as p
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import LiveFarm, live_farm
from tests.service.board import leased
from tests.service.farms import TestFarm
from tests.waiting import until

DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def own(name: str = "digits", digest: str = DIGEST, *, shape: tuple[int, ...] = (1, 8, 8), samples: int = 16) -> Any:
    arrays = (p.OwnArray("x", "float32", (samples, *shape)), p.OwnArray("y", "int64", (samples,)))
    return p.OwnDataset(name, digest, 1000, samples, arrays, (samples,))


def train(bundle: str, dataset: str = "device:digits", **body: Any) -> dict[str, Any]:
    return {"bundle": bundle, "mode": "train", "steps": 2, "dataset": dataset, **body}


def test_a_run_goes_to_a_device_that_has_the_data_and_is_told_which(farm: TestFarm) -> None:
    without, has = farm.board(name="without"), farm.board(name="has", own_datasets=(own(),))
    run = farm.run(**train(farm.bundle()))
    assert (run["own_data"], run["dataset_digest"]) == ("digits", None)
    assert without.lease() is None
    work = leased(has)
    assert work.own_data == p.OwnData("digits", DIGEST)
    assert work.dataset is None
    has.report(work, mode="train", own_data=p.OwnData("digits", DIGEST, weights_stay=True))
    report = farm.http.get(f"/runs/{run['id']}/report").json()["report"]
    assert report["own_data"] == {"name": "digits", "digest": DIGEST, "weights_stay": True}
    seen = farm.http.get(f"/devices/{has.device_id}").json()["own_datasets"]
    assert (seen[0]["samples"], seen[0]["label_counts"]) == (16, [16])


def test_a_digest_that_is_asked_for_is_the_devices(farm: TestFarm) -> None:
    old, new = farm.board(name="old", own_datasets=(own(),)), farm.board(name="new", own_datasets=(own(digest=OTHER),))
    run = farm.run(**train(farm.bundle(), f"device:digits@{OTHER}"))
    assert old.lease() is None
    assert leased(new).own_data == p.OwnData("digits", OTHER)
    assert farm.show(run["id"])["own_data_digest"] == OTHER


def test_data_that_no_device_has_are_refused_with_what_there_is_or_wait(farm: TestFarm) -> None:
    farm.board(name="shelf", own_datasets=(own("faces"),))
    bundle = farm.bundle()
    answer = farm.http.post("/runs", json=train(bundle))
    assert (answer.status_code, answer.json()["code"]) == (422, "run.own-data-unknown")
    assert f"shelf has faces@{DIGEST}" in answer.json()["detail"]
    waiting = farm.run(**train(bundle, allow_waiting=True))
    assert "has no data set digits" in waiting["warnings"][0]["message"]
    late = farm.board(name="late", own_datasets=(own(),))
    assert leased(late).run_id == waiting["id"]


def test_data_that_do_not_fit_are_refused_before_by_the_devices_name(farm: TestFarm) -> None:
    farm.board(name="shelf", own_datasets=(own(shape=(3, 8, 8)),))
    answer = farm.http.post("/runs", json=train(farm.bundle()))
    assert (answer.status_code, answer.json()["code"]) == (422, "data.shape")
    assert "on shelf" in answer.json()["detail"]


def test_a_device_that_tells_of_other_data_gets_other_work(farm: TestFarm) -> None:
    board = farm.board(own_datasets=(own(),))
    run = farm.run(**train(farm.bundle(), f"device:digits@{DIGEST}"))
    board.description = p.DeviceDescription(**{**vars(board.description), "own_datasets": (own(digest=OTHER),)})
    board.restart()
    assert board.lease() is None
    told = farm.http.get(f"/runs/{run['id']}/why").json()["waiting"]["devices"][0]
    assert told["code"] == "wants"


def test_a_report_about_other_data_is_refused(farm: TestFarm) -> None:
    board = farm.board(own_datasets=(own(),))
    farm.run(**train(farm.bundle()))
    work = leased(board)
    answer = board.report(work, mode="train")
    assert (answer.status_code, answer.json()["code"]) == (422, "report.own-data")


@pytest.mark.parametrize("dataset", ["device:", "device:../x", "device:Digits", "device:a@sha256:12", "digits"])
def test_a_name_that_is_none_is_refused(small_farm: TestFarm, dataset: str) -> None:
    answer = small_farm.http.post("/runs", json=train(small_farm.bundle(), dataset))
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")


def wait_for(farm: LiveFarm, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}

    def has_ended() -> bool:
        run.update(farm.http.get(f"/runs/{run_id}").json())
        return run["ending"] is not None or run["state"] == "succeeded"

    until(has_ended, lambda: str(run))
    return run


@pytest.mark.parametrize("stay", [False, True])
def test_a_real_agent_trains_on_its_own_data_and_lets_out_what_was_said(
    stay: bool, loopback: None, scripts_for_binaries: None, tmp_path: Path
) -> None:
    """A server and an agent process; the data set lies beside the agent, and nothing of it is ever sent."""
    data = tmp_path / "digits.npz"
    np.savez(data, x=np.full((8, 2), 0.25, np.float32), y=np.full(8, 3, np.int64))
    before = data.stat()
    with live_farm(tmp_path) as farm:
        bundle = farm.keep_bundle()
        given = ("--name", "own", "--data", f"digits={data}{',weights-stay' if stay else ''}")
        agent = AgentProcess(farm.url, farm.token(), tmp_path / "board", *given)
        try:
            until(lambda: farm.device("own").get("own_datasets"))
            body = {"bundle": bundle, "mode": "train", "steps": 3, "dataset": "device:digits"}
            answer = farm.http.post("/runs", json=body)
            assert answer.status_code == 202, answer.text
            run = wait_for(farm, answer.json()["id"])
        finally:
            agent.end()
        assert run["state"] == "succeeded", run
        report = farm.http.get(f"/runs/{run['id']}/report").json()["report"]
        assert report["own_data"]["name"] == "digits"
        assert report["own_data"]["weights_stay"] is stay
        assert (report["weights"] is None) is stay
        assert farm.http.get(f"/runs/{run['id']}/weights").status_code == (404 if stay else 200)
        assert farm.http.get("/datasets").json()["items"] == []
        kept = farm.http.get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"}).text
        assert '"log"' not in kept
    after = data.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
