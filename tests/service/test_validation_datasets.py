"""A run that names a second data set to validate on: stored, checked, assigned, shown; or refused by field."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from device_agents import wire as p
from tests.service.board import leased
from tests.service.farms import TestFarm

NOBODY = "sha256:" + "9" * 64


def asked(farm: TestFarm, **more: Any) -> dict[str, Any]:
    return {"bundle": farm.bundle(), "mode": "train", "steps": 9, "dataset": farm.dataset(), **more}


def test_it_goes_to_a_device_signed_and_is_shown(farm: TestFarm) -> None:
    body = asked(farm, eval_every=3, patience=2, save_best=True)
    run = farm.run(**body, validation_dataset=farm.dataset(samples=5))
    shown = farm.show(run["id"])
    assert shown["validation_dataset_digest"] == run["validation_dataset_digest"] != run["dataset_digest"]
    assert (shown["validation"], shown["patience"]) == (None, 2)
    board = farm.board()
    work = leased(board)
    assert work.validation_dataset is not None
    assert work.validation_dataset.digest == run["validation_dataset_digest"]
    assert work.validation_dataset.url is not None
    fetched = board.get(work.validation_dataset.url)
    assert len(fetched.content) == work.validation_dataset.size_bytes
    sent = farm.http.get(f"/datasets/{run['validation_dataset_digest']}/download").content
    assert fetched.content == sent
    assert "Validated on" in farm.http.get(f"/dashboard/runs/{run['id']}").text


def test_a_run_without_one_is_told_to_devices_as_ever(farm: TestFarm) -> None:
    run = farm.run(**asked(farm, validation=0.25))
    assert run["validation_dataset_digest"] is None
    board = farm.board()
    answer = json.loads(base64.b64decode(board.try_lease().json()["payload"]))
    assert "validation_dataset" not in answer
    missing = board.get(p.attempt_path(p.VALIDATION_DATASET_PATH, answer["lease_token"]))
    assert (missing.status_code, missing.json()["detail"]) == (404, "the run has no data set to validate on")
    assert "Validated on" not in farm.http.get(f"/dashboard/runs/{run['id']}").text


X = np.zeros((6, 1, 8, 8), np.float32)


MISFITS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"x": X[:, :, :4], "y": np.zeros(6, np.int64)}, "data.shape", "validation_dataset.x"),
    ({"x": X.astype(np.uint8), "y": np.zeros(6, np.int64)}, "data.dtype", "validation_dataset.x"),
    ({"x": X, "y": np.zeros((6, 10), np.float32)}, "data.shape", "validation_dataset.y"),
    ({"x": X, "y": np.zeros(6, np.float32)}, "data.dtype", "validation_dataset.y"),
    ({"x": X, "z": np.zeros(6, np.int64)}, "data.arrays", "validation_dataset.y"),
)


def test_one_that_does_not_fit_the_bundle_is_refused_by_field(small_farm: TestFarm) -> None:
    body = asked(small_farm)
    for arrays, code, where in MISFITS:
        other = small_farm.send_dataset(**arrays).json()["digest"]
        problem = small_farm.http.post("/runs", json=body | {"validation_dataset": other})
        told = problem.json()
        assert (problem.status_code, told["code"], told["where"]) == (422, code, where)
        assert told["hint"]
    assert small_farm.http.get("/runs").json()["items"] == [], "nothing is left of them"


SOLITARY: tuple[tuple[dict[str, Any], str], ...] = (
    ({"validation": 0.25}, "validation_dataset: must be left out, or `validation`"),
    ({"mode": "eval"}, "validation_dataset: must be left out: mode eval "),
    ({"validation_dataset": "dat_1"}, "validation_dataset"),
    ({"validation_dataset": None, "patience": 2}, "or `validation` or `validation_dataset` set"),
)


def test_what_goes_with_no_other_is_refused(small_farm: TestFarm) -> None:
    body = asked(small_farm, validation_dataset=small_farm.dataset(samples=5))
    for change, said in SOLITARY:
        answer = small_farm.http.post("/runs", json=body | change)
        assert answer.status_code == 422
        assert said in answer.text


def test_one_that_nobody_sent_is_told_with_the_next_step(small_farm: TestFarm) -> None:
    answer = small_farm.http.post("/runs", json=asked(small_farm, validation_dataset=NOBODY))
    told = answer.json()
    assert (answer.status_code, told["code"], told["where"]) == (404, "dataset.unknown", "validation_dataset")
    assert told["hint"] == "send it with POST /datasets"


OWN_LOSS = {"loss": "graph", "labels": [], "batch": 8, "micro_batches": 2}


def test_a_loss_of_whole_batches_needs_one(small_farm: TestFarm) -> None:
    bundle = small_farm.bundle(b"own loss", fields=OWN_LOSS)
    sent = {n: small_farm.send_dataset(x=X[:n]).json()["digest"] for n in (3, 4, 6)}
    body = {"bundle": bundle, "mode": "train", "dataset": sent[6]}
    assert small_farm.http.post("/runs", json=body | {"validation_dataset": sent[4]}).status_code == 202
    for wrong in ({"validation_dataset": sent[3]}, {"dataset": sent[3]}):
        told = small_farm.http.post("/runs", json=body | wrong).json()
        assert (told["status"], told["code"], told["where"]) == (422, "data.samples", *wrong)
        assert told["hint"].startswith("give at least 4 samples")
    assert small_farm.http.post("/runs", json=body | {"mode": "profile", "dataset": sent[3]}).status_code == 202


def test_a_request_with_another_one_is_another_request(small_farm: TestFarm) -> None:
    farm, headers = small_farm, {"Idempotency-Key": "k-1"}
    body = asked(farm, validation_dataset=farm.dataset(samples=5))
    first, again = (farm.http.post("/runs", json=body, headers=headers) for _ in range(2))
    assert first.status_code == again.status_code == 202
    assert first.json()["id"] == again.json()["id"]
    other = farm.http.post("/runs", json=body | {"validation_dataset": farm.dataset(samples=6)}, headers=headers)
    assert other.status_code in (409, 422)
