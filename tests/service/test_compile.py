"""POST /compile and /jobs: accepted, coalesced, refused with reasons, watched, cancelled."""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from compiler.spec.documents import SparsePlan, TrainingSpec
from service.artefacts.jobs import service as jobs
from service.artefacts.jobs.request import CompileRequest
from service.store.watching import Watchers
from tests.service.farms import TestFarm
from tests.waiting import HANG_S, until

PLAN_YAML = "name: mine\nupdate:\n  - parameters: ['*.weight']\n    ratio: 0.5\n"


def test_accepted_request_gives_a_job_a_location_and_one_doorbell(farm: TestFarm) -> None:
    answer = farm.compile(b"model bytes", plan=PLAN_YAML, spec="batch: 4", target="raspberry-pi-4")
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert job["state"] == "queued"
    assert job["model"] == {
        "name": "net",
        "size_bytes": 11,
        "digest": "sha256:" + hashlib.sha256(b"model bytes").hexdigest(),
    }
    assert job["plan"] == {"name": "mine", "digest": SparsePlan.parse(PLAN_YAML).digest}
    assert job["spec_digest"] == TrainingSpec.parse("batch: 4").digest
    assert farm.queue.rung == [("pockfarm.compile", job["id"])]
    assert farm.http.get(answer.headers["location"]).json() == job


def test_identical_request_finds_the_open_job_then_the_bundle(farm: TestFarm) -> None:
    first = farm.compile().json()
    again = farm.compile(spec="{}")  # the defaults, written in another way
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    digest = farm.work_off(first["id"])
    done = farm.compile()
    assert (done.status_code, done.json()["bundle_digest"]) == (200, digest)
    assert len(farm.queue.rung) == 1
    bundle = farm.http.get(f"/bundles/{digest}")
    assert "sha256:" + hashlib.sha256(bundle.content).hexdigest() == digest


def test_a_bundles_warnings_are_told_with_every_view_of_its_job(farm: TestFarm) -> None:
    said = [{"code": "model.example", "where": "fc", "message": "is odd", "hint": ""}]
    warned, silent, older = (farm.compile(model).json() for model in (b"1", b"2", b"3"))
    assert warned["warnings"] == []
    farm.work_off(warned["id"], warnings=said)
    farm.work_off(silent["id"], model="2")
    farm.work_off(older["id"], warnings=None, model="3")
    assert farm.http.get(f"/jobs/{warned['id']}").json()["warnings"] == said
    assert farm.compile(b"1").json()["warnings"] == said
    assert [one["warnings"] for one in farm.http.get("/jobs").json()["items"]] == [[], [], said]


@pytest.mark.parametrize(
    "change", [{"model": b"other"}, {"plan": "bias-only"}, {"spec": "batch: 2"}, {"target": "raspberry-pi-4"}]
)
def test_any_difference_is_another_job(small_farm: TestFarm, change: dict[str, object]) -> None:
    first = small_farm.compile()
    other = small_farm.compile(**change)  # type: ignore[arg-type]
    assert first.json()["id"] != other.json()["id"]


def test_failed_job_does_not_answer_for_the_next_request(farm: TestFarm) -> None:
    first = farm.compile().json()
    assert farm.http.post(f"/jobs/{first['id']}/cancel").json()["state"] == "cancelled"
    assert farm.compile().json()["id"] != first["id"]


def test_concurrent_identical_requests_make_one_job(farm: TestFarm) -> None:
    request = CompileRequest(
        model_digest="sha256:" + "0" * 64,
        model_bytes=1,
        model_name="m",
        target="t",
        plan=SparsePlan.of_preset("full"),
        spec=TrainingSpec(),
        compiler_version="1",
    )
    key_id = farm.http.get("/keys").json()[0]["id"]
    start = threading.Barrier(8)

    def submit(_: int) -> str:
        start.wait()
        with farm.farm.database.transaction() as session:
            return jobs.submit(session, request, api_key_id=key_id, settings=farm.farm.settings).id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(submit, range(8)))) == 1
    assert len(farm.queue.rung) == 1


def test_model_may_be_named_by_digest(small_farm: TestFarm) -> None:
    digest = small_farm.compile(b"sent before").json()["model"]["digest"]
    form = {"plan": "bias-only", "target": "x86-64-v3", "name": "net 2"}
    named = small_farm.http.post("/compile", data=form | {"model": digest}, files={"spec": b"batch: 2"})
    assert named.status_code == 202
    assert (named.json()["model"]["digest"], named.json()["model"]["name"]) == (digest, "net 2")
    unknown = small_farm.http.post("/compile", data=form | {"model": "sha256:" + "1" * 64}, files={"spec": b""})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "model.unknown")


@pytest.mark.parametrize(
    ("fields", "status", "code", "where"),
    [
        ({"plan": "update: 3"}, 422, "plan.invalid", "plan.update"),
        ({"plan": "{not: [yaml"}, 422, "plan.invalid", "plan"),
        ({"plan": "frozen"}, 422, "plan.invalid", "plan.update"),
        ({"spec": "batch: -1"}, 422, "spec.invalid", "spec.batch"),
        ({"spec": "loss: {kind: hinge}"}, 422, "spec.invalid", "spec.loss.kind"),
        ({"spec": "a: &a [*a]"}, 422, "spec.invalid", "spec"),
        ({"target": " "}, 422, "target.invalid", "target"),
        ({"colour": "red"}, 422, "request.unknown-field", "colour"),
        ({"plan": ["full", "full"]}, 422, "request.repeated-field", "plan"),
        ({"model": b""}, 422, "upload.empty", "model"),
    ],
)
def test_bad_fields_are_named(
    small_farm: TestFarm, fields: dict[str, object], status: int, code: str, where: str
) -> None:
    answer = small_farm.compile(**fields)  # type: ignore[arg-type]
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert problem["where"].startswith(where)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:pockfarm:problem:{code}"
    assert small_farm.queue.rung == []


def test_missing_parts_are_named(small_farm: TestFarm) -> None:
    answer = small_farm.http.post("/compile", json={"plan": "full"})
    assert (answer.status_code, answer.json()["where"]) == (422, "model")


def test_quota_says_when_to_come_back(tmp_path: object, sqlite_url: str) -> None:
    from pathlib import Path

    from tests.service.farms import open_test_farm

    with open_test_farm(Path(str(tmp_path)) / "s", sqlite_url, open_jobs_per_key=1) as farm:
        assert farm.compile(b"1").status_code == 202
        refused = farm.compile(b"2")
        assert (refused.status_code, refused.json()["code"]) == (429, "limits.open-jobs")
        assert int(refused.headers["retry-after"]) > 0
        assert farm.compile(b"1").status_code == 202  # a repeat costs nothing


def test_idempotency_key_replays_and_refuses_another_payload(farm: TestFarm) -> None:
    headers = {"Idempotency-Key": "abc"}
    first = farm.compile(headers=headers)
    farm.work_off(first.json()["id"])
    replay = farm.compile(headers=headers)
    assert replay.json() == first.json()
    assert (replay.status_code, replay.headers["idempotency-replayed"]) == (202, "true")
    other = farm.compile(b"another", headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency.reused")
    assert farm.compile(b"another", headers=headers | farm.key()).status_code == 202  # keys are per API key


def test_long_poll_answers_when_the_job_changes(farm: TestFarm) -> None:
    job = farm.compile().json()
    shown = farm.http.get(f"/jobs/{job['id']}")
    tag = {"If-None-Match": shown.headers["etag"]}
    same = farm.http.get(f"/jobs/{job['id']}?wait=0.1", headers=tag)
    assert (same.status_code, same.content) == (304, b"")
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(farm.http.get, f"/jobs/{job['id']}?wait=60", headers=tag)
        until(lambda: len(farm.farm.part(Watchers)) == 1)
        farm.work_off(job["id"])
        changed = held.result(HANG_S)
    assert changed.status_code == 200
    assert changed.json()["state"] in ("compiling", "succeeded")
    assert changed.headers["etag"] != shown.headers["etag"]


def test_events_stream_from_first_to_end_and_resume(farm: TestFarm) -> None:
    job_id = farm.compile().json()["id"]
    digest = farm.work_off(job_id)
    text = farm.http.get(f"/jobs/{job_id}/events").text
    messages = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
    states = [json.loads(m["data"])["body"]["state"] for m in messages if m.get("event") == "state"]
    assert states == ["queued", "compiling", "succeeded"]
    assert messages[-1]["event"] == "end"
    last = [m for m in messages if "id" in m][-2]
    resumed = farm.http.get(f"/jobs/{job_id}/events", headers={"Last-Event-ID": last["id"]}).text
    assert resumed.count("event: state") == 1
    assert digest in resumed
    listed = farm.http.get(f"/jobs/{job_id}/events", headers={"Accept": "application/json"}).json()
    assert [event["body"]["state"] for event in listed] == states


def test_list_pages_and_filters(small_farm: TestFarm) -> None:
    ids = [small_farm.compile(bytes([n]), target=f"x86-64-v{3 + n % 2}").json()["id"] for n in range(5)]
    first = small_farm.http.get("/jobs?limit=3").json()
    second = small_farm.http.get(f"/jobs?limit=3&cursor={first['next']}").json()
    seen = [job["id"] for job in first["items"] + second["items"]]
    assert sorted(seen) == sorted(ids)
    assert seen == sorted(ids, reverse=True)
    assert second["next"] is None
    assert len(small_farm.http.get("/jobs?target=x86-64-v4").json()["items"]) == 2
    assert small_farm.http.get("/jobs?limit=0").status_code == 422


def test_unknown_job_is_a_problem(small_farm: TestFarm) -> None:
    for path in ("/jobs/job_none", "/jobs/job_none/events"):
        answer = small_farm.http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "job.unknown")


def test_hostile_model_name_is_cleaned(farm: TestFarm) -> None:
    answer = farm.compile(name="a\x00b\u2028<script>" + "x" * 400)
    name = answer.json()["model"]["name"]
    assert "\x00" not in name
    assert len(name) == 200
