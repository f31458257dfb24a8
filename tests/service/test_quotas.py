"""Quotas hold to the unit and say limit, use and what to do; requests are limited by cost, over all processes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from sqlalchemy import select, update

from service.base.identifiers import digest_of
from service.base.problems import TooMany
from service.base.settings import Settings
from service.feature_list import PERMISSIONS
from service.people.quotas.limits import EXPECTED_CPU_S, QUOTAS, QuotaName
from service.people.quotas.rates import BLOCKS, COSTS, EXPORT, EXPORT_COST, Rates, cost_of
from service.store.database.models import HOME, Allowance, Job, Upload
from tests.service.board import Board
from tests.service.farms import TestFarm, open_test_farm


def limit(farm: TestFarm, tenant: TestFarm, **quotas: Any) -> dict[str, Any]:
    answer = farm.http.patch(f"/organisations/{tenant.organisation_id}", json={"quotas": quotas})
    assert answer.status_code == 200, answer.text
    return {quota["name"]: quota for quota in answer.json()["quotas"]}


def refused(answer: httpx.Response, name: str, status: int, *, at: float, use: float) -> None:
    body = answer.json()
    assert (answer.status_code, body["code"], body["cause"]) == (status, f"quota.{name}", "limits"), answer.text
    assert (body["quota"], body["limit"], body["use"]) == (name, at, use)
    assert "PATCH /organisations" in body["hint"]
    assert ("retry-after" in answer.headers) == (status == 429)


def test_every_quota_is_in_the_table_and_the_settings(small_farm: TestFarm) -> None:
    names = [quota.name for quota in QUOTAS]
    assert sorted(names) == sorted(get_args(QuotaName))
    limits = {name: getattr(Settings(), f"quota_{name}") for name in names}
    assert {name: limit for name, limit in limits.items() if limit is not None} == {"event_bytes_per_day": 2 << 30}
    assert [quota["name"] for quota in small_farm.http.get("/organisation").json()["quotas"]] == names
    assert set(COSTS) <= set(PERMISSIONS)


def test_open_jobs_and_runs(farm: TestFarm) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    bundle = acme.bundle()
    limit(farm, acme, open_jobs=1, open_runs=2)
    assert acme.compile(b"first").status_code == 202
    refused(acme.compile(b"second"), "open_jobs", 429, at=1, use=1)
    assert acme.compile(b"first").status_code == 202  # the same request: no new job
    assert other.compile(b"second").status_code == 202
    for _ in range(2):
        acme.run(bundle=bundle)
    refused(acme.http.post("/runs", json={"bundle": bundle}), "open_runs", 429, at=2, use=2)
    raised = limit(farm, acme, open_runs="unlimited")
    assert (raised["open_runs"]["limit"], raised["open_runs"]["use"], raised["open_jobs"]["limit"]) == (None, 2, 1)
    acme.run(bundle=bundle)


def test_how_long_a_run_may_ask_for(farm: TestFarm) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    bundle = acme.bundle()
    shown = limit(farm, acme, run_s=2 * 3600)["run_s"]
    assert (shown["limit"], shown["use"]) == (2 * 3600, None)
    asked = {"bundle": bundle, "time_limit_s": 3 * 3600.0}
    refused(acme.http.post("/runs", json=asked), "run_s", 403, at=2 * 3600, use=3 * 3600)
    acme.run(bundle=bundle, time_limit_s=2 * 3600.0)
    theirs = other.bundle()
    other.run(bundle=theirs, time_limit_s=3 * 3600.0)
    answer = other.http.post("/runs", json={"bundle": theirs, "time_limit_s": 25 * 3600.0})
    assert (answer.status_code, answer.json()["code"]) == (422, "limits.run-time")
    assert "POCKFARM_RUN_MOST_S" in answer.json()["hint"]


def test_room_for_files(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    model = acme.compile(b"x" * 600).json()["model"]
    shown = limit(farm, acme, storage_bytes=1000)["storage_bytes"]
    assert (shown["limit"], shown["use"]) == (1000, 600)
    refused(acme.compile(b"y" * 600), "storage_bytes", 403, at=1000, use=600)
    assert acme.compile(b"x" * 600).status_code == 202
    assert (
        acme.http.post("/compile", data={"model": model["digest"], "plan": "full", "target": "x86-64-v3"}).status_code
        == 202
    )
    refused(acme.send_dataset(x=[[1.0] * 200], y=[1]), "storage_bytes", 403, at=1000, use=600)


def test_devices_keys_and_processor_time(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    tokens = [acme.http.post("/devices/enrolment-tokens", json={}).json()["token"] for _ in range(2)]
    limit(farm, acme, devices=1, keys=2, compile_cpu_s_per_day=10)
    board = Board(farm.anonymous).enrol(tokens[0])
    assert Board(farm.anonymous).try_enrol(tokens[1]).json()["code"] == "quota.devices"
    refused(acme.http.post("/devices/enrolment-tokens", json={}), "devices", 403, at=1, use=1)
    assert acme.http.delete(f"/devices/{board.device_id}").status_code == 200
    assert Board(farm.anonymous).try_enrol(tokens[1]).status_code == 201
    made = acme.http.post("/keys", json={"name": "second"}).json()
    refused(acme.http.post("/keys", json={"name": "third"}), "keys", 403, at=2, use=2)
    acme.http.delete(f"/keys/{made['id']}")
    assert acme.http.post("/keys", json={"name": "third"}).status_code == 201
    job = acme.compile(b"slow").json()["id"]
    with farm.farm.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job).values(cpu_s=11.0))
    refused(acme.compile(b"another"), "compile_cpu_s_per_day", 429, at=10, use=11)


def test_a_queue_of_compiles_does_not_overrun_a_day(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    limit(farm, acme, compile_cpu_s_per_day=4 * EXPECTED_CPU_S)
    jobs = [acme.compile(bytes([number])) for number in range(5)]
    assert [one.status_code for one in jobs] == [202] * 5
    refused(acme.compile(b"one more"), "compile_cpu_s_per_day", 429, at=4 * EXPECTED_CPU_S, use=5 * EXPECTED_CPU_S)
    with farm.farm.database.transaction() as session:
        ended = update(Job).where(Job.id == jobs[0].json()["id"])
        session.execute(ended.values(state="failed", cpu_s=2.0, finished_at=time.time()))
    assert used(acme, "compile_cpu_s_per_day") == 5 * 2.0, "the others as long as the one that has ended"


def test_uploads_in_pieces(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    limit(farm, acme, open_uploads=1, storage_bytes=1000)
    asked = {"kind": "model", "size_bytes": 600}
    first = acme.http.post("/uploads", json=asked)
    assert first.status_code == 202, first.text
    refused(acme.http.post("/uploads", json=asked), "open_uploads", 429, at=1, use=1)
    assert acme.http.delete(first.headers["Location"]).status_code < 300
    refused(acme.http.post("/uploads", json=asked | {"size_bytes": 1001}), "storage_bytes", 403, at=1000, use=0)


def begun(farm: TestFarm, data: bytes) -> str:
    """An upload all of whose bytes have come; empty if it was refused."""
    answer = farm.http.post("/uploads", json={"kind": "model", "size_bytes": len(data)})
    if answer.status_code != 202:
        refused(answer, "storage_bytes", 403, at=1000, use=answer.json()["use"])
        return ""
    path = str(answer.headers["Location"])
    sent = farm.http.patch(path, content=data, headers={"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"})
    if sent.status_code != 202:
        refused(sent, "storage_bytes", 403, at=1000, use=900)
        return ""
    return path


def finished(farm: TestFarm, path: str, data: bytes) -> httpx.Response:
    return farm.http.put(path, params={"digest": digest_of(data)})


def used(farm: TestFarm, name: str) -> float:
    quotas = {quota["name"]: quota for quota in farm.http.get("/organisation").json()["quotas"]}
    return float(quotas[name]["use"])


def kept(farm: TestFarm) -> set[str]:
    return {digest for digest, _, _ in farm.farm.storage.stored()}


@pytest.mark.parametrize("is_threaded", [False, True])
def test_uploads_side_by_side_keep_to_the_room_for_files(farm: TestFarm, is_threaded: bool) -> None:
    acme = farm.tenant("acme")
    limit(farm, acme, storage_bytes=1000)
    files, paths = [bytes([number]) * 900 for number in range(5)], dict[int, str]()

    def ask(number: int) -> None:
        paths[number] = begun(acme, files[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
        if not is_threaded:
            thread.join()
    for thread in threads:
        thread.join()
    ((number, path),) = ((number, path) for number, path in paths.items() if path)
    assert used(acme, "storage_bytes") == 900
    assert finished(acme, path, files[number]).status_code == 201
    assert (used(acme, "storage_bytes"), kept(farm)) == (900, {digest_of(files[number])})


def test_the_room_is_asked_for_again_when_uploads_are_finished(farm: TestFarm) -> None:
    """A limit that was lowered meanwhile: each is refused, stays, and may be finished later."""
    acme = farm.tenant("acme")
    files = [bytes([number]) * 900 for number in range(5)]
    paths = [begun(acme, data) for data in files]
    limit(farm, acme, storage_bytes=1000)
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda pair: answers.append(finished(acme, *pair)), args=(pair,))
        for pair in zip(paths, files, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.json()["code"] for one in answers] == ["quota.storage_bytes"] * 5
    assert kept(farm) == set()
    for path in paths[1:]:
        assert acme.http.delete(path).status_code == 204
    assert finished(acme, paths[0], files[0]).status_code == 201
    assert used(acme, "storage_bytes") == 900


def test_an_upload_that_finds_no_room_at_the_last_moment_leaves_nothing(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    for data, others in ((b"x" * 900, None), (b"y" * 900, other)):
        path = begun(acme, data)
        if others is not None:
            others.compile(data)
        adopt = farm.farm.storage.adopt

        def overtaken(name: str, *, size_bytes: int, digest: str, adopt: Any = adopt) -> Any:
            limit(farm, acme, storage_bytes=10)
            return adopt(name, size_bytes=size_bytes, digest=digest)

        monkeypatch.setattr(farm.farm.storage, "adopt", overtaken)
        refused(finished(acme, path, data), "storage_bytes", 403, at=10, use=0)
        monkeypatch.setattr(farm.farm.storage, "adopt", adopt)
        limit(farm, acme, storage_bytes="unlimited")
        assert acme.http.get(path).status_code == 404
        assert kept(farm) == ({digest_of(data)} if others else set()), "what another has stays with it"


def test_uploads_that_got_nothing_for_long_take_no_room_and_a_file_counts_once(farm: TestFarm) -> None:
    acme, data = farm.tenant("acme"), b"x" * 900
    limit(farm, acme, storage_bytes=1000)
    begun(acme, b"y" * 900)
    with farm.farm.database.transaction() as session:
        session.execute(update(Upload).values(expires_at=time.time() - 1))
    assert used(acme, "storage_bytes") == 0
    assert finished(acme, begun(acme, data), data).status_code == 201
    form = {"plan": "full", "target": "x86-64-v3", "external": json.dumps({"w.data": digest_of(data)})}
    limit(farm, acme, storage_bytes=1200)
    assert acme.http.post("/compile", data=form, files={"model": ("n.onnx", data)}).status_code == 202
    assert 900 < used(acme, "storage_bytes") < 1200, "the file, which is a model and could be data, and a listing"


def test_an_upload_is_of_one_digest(farm: TestFarm) -> None:
    """Bytes that were adopted are gone from the upload: nobody gets another file of that size in their place."""
    acme, other = farm.tenant("acme"), farm.tenant("other")
    theirs, mine = b"theirs", b"mine 1"
    assert other.compile(theirs).status_code == 202
    path = begun(acme, mine)
    assert finished(acme, path, theirs).json()["code"] == "upload.digest"
    path = begun(acme, mine)
    adopted = digest_of(mine)
    with farm.farm.database.transaction() as session:  # a request that has adopted the bytes, and not yet said so
        session.execute(update(Upload).values(declared_digest=adopted))
    farm.farm.storage.adopt(path.rpartition("/")[2], size_bytes=len(mine), digest=adopted)
    assert finished(acme, path, theirs).json()["code"] == "upload.digest"
    assert acme.http.get(f"/files/{digest_of(theirs)}").status_code == 404
    assert finished(acme, path, mine).status_code == 201


def test_what_is_refused_for_want_of_room_is_not_kept(farm: TestFarm) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    limit(farm, acme, storage_bytes=10)
    for number in range(5):
        refused(acme.compile(bytes([number]) * 5000), "storage_bytes", 403, at=10, use=0)
    refused(acme.send_dataset(x=[[1.0] * 200], y=[1]), "storage_bytes", 403, at=10, use=0)
    assert kept(farm) == set()
    data = b"w" * 50
    form = {"plan": "full", "target": "x86-64-v3", "external": json.dumps({"w.data": digest_of(data)})}
    files = [("model", ("n.onnx", b"small")), ("data", ("w.data", data))]
    refused(acme.http.post("/compile", data=form, files=files), "storage_bytes", 403, at=10, use=5)
    assert kept(farm) == {digest_of(b"small")}
    assert other.compile(b"x" * 5000).status_code == 202
    refused(acme.compile(b"x" * 5000), "storage_bytes", 403, at=10, use=5)
    assert digest_of(b"x" * 5000) in kept(farm)


def test_what_was_stored_before_the_room_was_gone_is_not_kept(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of the organisation took the room between the first look and the last one."""
    acme, other = farm.tenant("acme"), farm.tenant("other")
    put = farm.farm.storage.put

    def overtaken(stream: Any, **limits: Any) -> Any:
        limit(farm, acme, storage_bytes=10)
        return put(stream, **limits)

    assert other.compile(b"y" * 600).status_code == 202
    before = kept(farm)
    monkeypatch.setattr(farm.farm.storage, "put", overtaken)
    for data in (b"x" * 600, b"y" * 600):
        limit(farm, acme, storage_bytes="unlimited")
        refused(acme.compile(data), "storage_bytes", 403, at=10, use=0)
    limit(farm, acme, storage_bytes="unlimited")
    refused(acme.send_dataset(x=[[1.0] * 200], y=[1]), "storage_bytes", 403, at=10, use=0)
    assert kept(farm) == before


def test_limits_hold_when_many_ask_at_once(farm: TestFarm) -> None:
    acme = farm.tenant("acme")
    bundle = acme.bundle()
    limit(farm, acme, open_runs=3)
    codes: list[int] = []

    def ask() -> None:
        codes.append(acme.http.post("/runs", json={"bundle": bundle}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [202] * 3 + [429] * 5


def test_limits_of_the_farm_for_all(sqlite_url: str, tmp_path: Path) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, quota_open_runs=1.0) as farm:
        bundle = farm.bundle()
        farm.run(bundle=bundle)
        refused(farm.http.post("/runs", json={"bundle": bundle}), "open_runs", 429, at=1, use=1)
        limit(farm, farm, open_runs=2)
        farm.run(bundle=bundle)
        limit(farm, farm, open_runs="default")
        refused(farm.http.post("/runs", json={"bundle": bundle}), "open_runs", 429, at=1, use=2)


@pytest.mark.parametrize("quotas", [{"open_runs": -1}, {"nothing": 1}, {"keys": "many"}, {"keys": None}])
def test_limits_that_cannot_be(small_farm: TestFarm, quotas: dict[str, Any]) -> None:
    assert small_farm.http.patch(f"/organisations/{HOME}", json={"quotas": quotas}).status_code == 422


def test_requests_cost(farm: TestFarm) -> None:
    acme, other = farm.tenant("acme"), farm.tenant("other")
    limit(farm, acme, cost_per_minute=60)
    assert [acme.compile(b"model").status_code for _ in range(3)] == [202] * 3
    late = acme.compile(b"model")
    body = late.json()
    assert (late.status_code, body["code"], body["limit"]) == (429, "quota.cost_per_minute", 60)
    assert 1 <= int(late.headers["retry-after"]) <= 20
    with farm.farm.database.transaction() as session:  # nothing comes in while the test goes on
        session.execute(update(Allowance).values(tokens=0.0, filled_at=time.time() + 3600))
    assert acme.http.get("/organisation").status_code == 429
    assert other.http.get("/organisation").status_code == 200
    assert farm.anonymous.get("/healthz", headers=acme.http.headers).status_code == 200
    with farm.farm.database.transaction() as session:
        session.execute(update(Allowance).values(filled_at=time.time() - 30))
    assert acme.http.get("/organisation").status_code == 200


def test_processes_share_a_bucket(farm: TestFarm) -> None:
    """Five processes, as many threads: together they spend what is there, and no more."""
    processes = [Rates() for _ in range(5)]
    database, paid = farm.farm.database, []
    waits: list[int] = []
    began = time.monotonic()

    def spend(rates: Rates) -> None:
        for _ in range(100):
            try:
                rates.spend(database, "org_a", 1.0, per_minute=200.0)
                paid.append(1)
            except TooMany as problem:
                waits.append(int((problem.headers or {})["Retry-After"]))

    threads = [threading.Thread(target=spend, args=(rates,)) for rates in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    filled = (time.monotonic() - began) * 200.0 / 60.0
    assert 200 - 5 * 200 / BLOCKS <= len(paid) <= 200 + filled + 1
    assert waits
    assert min(waits) >= 1
    with database.read() as session:
        assert session.scalars(select(Allowance)).one().tokens >= 0


def test_what_starts_work_costs_more_than_reading() -> None:
    costs = {address: cost_of(address, rule) for address, rule in PERMISSIONS.items()}
    assert costs["POST /compile"] > costs["POST /runs"] > costs["GET /runs"] > costs["GET /healthz"] == 0
    assert all(cost > 0 for address, cost in costs.items() if PERMISSIONS[address].scope is not None)
    assert {costs[address] for address in costs if address.endswith(EXPORT)} == {EXPORT_COST}
