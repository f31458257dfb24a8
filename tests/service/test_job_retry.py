"""`POST /jobs/{id}/retry`: a compile once more, of what the farm keeps of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.artefacts.jobs import request
from tests.service.farms import TestFarm
from tests.service.test_retention import age, retain, rule

PLAN = "name: mine\nupdate:\n  - parameters: ['*.weight']\n    ratio: 0.5\n"
SAME = ("model", "plan", "spec_digest", "target", "compiler_version")


def cancelled(farm: TestFarm, **asked: Any) -> dict[str, Any]:
    job = farm.compile(plan=PLAN, spec="batch: 4", target="raspberry-pi-4", **asked).json()
    return dict(farm.http.post(f"/jobs/{job['id']}/cancel").json())


def again(farm: TestFarm, job_id: str) -> httpx.Response:
    return farm.http.post(f"/jobs/{job_id}/retry")


def test_what_ended_without_a_bundle_is_compiled_once_more(farm: TestFarm) -> None:
    first = cancelled(farm)
    answer = again(farm, first["id"])
    assert answer.status_code == 202, answer.text
    second = answer.json()
    assert second["id"] != first["id"]
    assert answer.headers["location"] == f"/jobs/{second['id']}"
    assert second["state"] == "queued"
    assert {name: second[name] for name in SAME} == {name: first[name] for name in SAME}
    assert ("pockfarm.compile", second["id"]) in farm.queue.rung
    digest = farm.work_off(second["id"])
    assert farm.http.get(f"/jobs/{second['id']}").json()["bundle_digest"] == digest


def test_it_is_the_request_that_was_made_and_not_another(farm: TestFarm) -> None:
    first = cancelled(farm)
    second = again(farm, first["id"]).json()
    sent = farm.compile(plan=PLAN, spec="batch: 4", target="raspberry-pi-4").json()
    assert sent["id"] == second["id"], "who sends the same finds the open job"
    assert again(farm, second["id"]).json()["id"] == second["id"], "and who asks for an open one too"


def test_what_succeeded_answers_until_the_compiler_is_another(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    job = farm.compile().json()
    digest = farm.work_off(job["id"])
    same = again(farm, job["id"])
    assert (same.status_code, same.json()["id"], same.json()["bundle_digest"]) == (200, job["id"], digest)
    monkeypatch.setattr("service.artefacts.jobs.endpoints.compiler_version", lambda settings: "sha256:" + "9" * 64)
    other = again(farm, job["id"])
    assert other.status_code == 202
    assert other.json()["compiler_version"] == "sha256:" + "9" * 64
    assert other.json()["id"] != job["id"]
    assert request.compiler_version(farm.farm.settings) != "sha256:" + "9" * 64


def test_a_compile_that_measures_schedules_is_made_of_its_bundle_again(farm: TestFarm) -> None:
    bundle = farm.bundle()
    tuning = farm.http.post("/tune", json={"bundle": bundle}).json()
    farm.http.post(f"/jobs/{tuning['id']}/cancel")
    second = again(farm, tuning["id"]).json()
    assert (second["source_digest"], second["state"]) == (bundle, "queued")
    assert second["id"] != tuning["id"]


def test_without_its_model_it_is_refused_with_what_to_do(farm: TestFarm) -> None:
    job = cancelled(farm)
    age(farm)
    rule(farm, "models", days=1)
    assert retain(farm)
    answer = again(farm, job["id"])
    assert (answer.status_code, answer.json()["code"]) == (410, "retention.removed")
    assert job["model"]["digest"] in answer.json()["detail"]
    assert "send it again" in answer.json()["hint"]


def test_a_plan_that_is_taken_no_more_is_refused(farm: TestFarm) -> None:
    from service.store.database.models import Job

    job = cancelled(farm)
    with farm.farm.database.transaction() as session:
        session.get_one(Job, job["id"]).plan_json = '{"updat": []}'
    answer = again(farm, job["id"])
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["where"]) == (422, "plan.invalid", "plan")
    assert problem["detail"].startswith("kept by an earlier release")
    assert "POST /compile" in problem["hint"]


def test_another_organisations_job_is_not_there(farm: TestFarm) -> None:
    job = cancelled(farm)
    assert again(farm.tenant("acme"), job["id"]).status_code == 404
    assert again(farm, "job_none").status_code == 404


def test_one_key_makes_one_job(farm: TestFarm) -> None:
    job = cancelled(farm)
    headers = {"Idempotency-Key": "once"}
    first, two = (farm.http.post(f"/jobs/{job['id']}/retry", headers=headers).json()["id"] for _ in range(2))
    assert first == two
    farm.http.post(f"/jobs/{first}/cancel")
    assert farm.http.post(f"/jobs/{job['id']}/retry", headers=headers).json()["id"] == first, (
        "the answer that was given"
    )
