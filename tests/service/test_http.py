"""What holds for every request: bounded bodies, problems without tracebacks, the kept description."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as NoConnection

from compiler.spec.schema import DOCUMENTS, published_schema
from device_agents import wire as p
from tests.service.board import leased
from tests.service.farms import TestFarm, open_test_farm

OPENAPI = Path(__file__).parents[2] / "openapi.json"


@pytest.fixture
def tight_farm(tmp_path: Path, sqlite_url: str) -> Iterator[TestFarm]:
    with open_test_farm(
        tmp_path / "s",
        sqlite_url,
        model_limit_bytes=100_000,
        text_limit_bytes=1000,
        dataset_limit_bytes=50_000,
        external_limit_bytes=1000,
    ) as farm:
        yield farm


def stream(size_bytes: int) -> Iterator[bytes]:
    """A body without a declared length."""
    for _ in range(size_bytes // 1000):
        yield b"x" * 1000


def test_declared_length_above_the_limit_is_refused_at_once(tight_farm: TestFarm) -> None:
    answer = tight_farm.compile(b"x" * 300_000)
    assert (answer.status_code, answer.json()["code"], answer.json()["cause"]) == (413, "limits.body", "limits")


def test_undeclared_length_is_cut_off(tight_farm: TestFarm) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = tight_farm.http.post("/compile", content=stream(400_000), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "limits.body")
    answer = tight_farm.http.post("/keys", content=stream(2_000_000), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "limits.body")


def test_model_above_its_own_limit_is_refused_by_name(tight_farm: TestFarm) -> None:
    answer = tight_farm.compile(b"x" * 120_000)
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (413, "limits.upload", "model")
    assert tight_farm.compile(b"x" * 100_000).status_code == 202


@pytest.mark.parametrize("field", ["plan", "spec"])
def test_long_plan_or_spec_is_refused_by_name(tight_farm: TestFarm, field: str) -> None:
    files = {"model": b"m", field: b"a" * 2000}
    form = {"plan": "full", "target": "x86-64-v3"}
    form.pop(field, None)
    answer = tight_farm.http.post("/compile", files=files, data=form)
    assert (answer.status_code, answer.json()["where"]) == (413, field)


def test_large_model_arrives_whole(small_farm: TestFarm) -> None:
    model = bytes(range(256)) * 40_000
    assert small_farm.compile(model).json()["model"]["size_bytes"] == len(model)


def test_failure_is_a_problem_without_a_traceback(small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret detail")

    monkeypatch.setattr("service.work.runs.service.newest_runs", broken)
    answer = small_farm.http.get("/runs")
    assert (answer.status_code, answer.json()["code"], answer.json()["cause"]) == (500, "service.internal", "service")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_unknown_paths_and_methods_are_problems(small_farm: TestFarm) -> None:
    assert small_farm.http.get("/nothing").json()["code"] == "http.no-such-path"
    answer = small_farm.http.put("/jobs")
    assert (answer.status_code, answer.json()["code"]) == (405, "http.method")


def test_description_in_the_repository_is_the_applications(small_farm: TestFarm) -> None:
    described: dict[str, Any] = small_farm.http.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert described == json.loads(OPENAPI.read_text()), (
        "the API has changed: renew the file with `python -m service.admin openapi > openapi.json`"
    )


def test_editors_get_the_schemas_without_a_key(small_farm: TestFarm) -> None:
    for name in DOCUMENTS:
        assert small_farm.anonymous.get(f"/schemas/{name}").json() == published_schema(name)
    assert small_farm.anonymous.get("/schemas/other").status_code == 422


def test_every_reference_in_the_description_exists(small_farm: TestFarm) -> None:
    described: dict[str, Any] = small_farm.http.get("/openapi.json").json()
    names = {part.split('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]}
    assert names <= set(described["components"]["schemas"])


def test_secrets_in_paths_are_neither_logged_nor_answered(
    small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from service.boards.agents import recording

    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(recording, "heartbeat", broken)
    board, secret = small_farm.board(), "5ecre7" * 8
    headers = {p.PROTOCOL_HEADER: p.PROTOCOL, "Authorization": f"Bearer {board.credential}"}
    body = p.dumps(p.HeartbeatRequest("run", 0))
    path = p.attempt_path(p.HEARTBEAT_PATH, secret)
    failed = small_farm.anonymous.post(path, content=body, headers=headers)
    assert failed.status_code == 500
    stale = small_farm.anonymous.get(p.attempt_path(p.BUNDLE_PATH, secret), headers=headers)
    assert stale.status_code == 409
    assert "broken on purpose" in caplog.text
    for text in (failed.text, stale.text, caplog.text):
        assert secret not in text


def test_a_long_text_field_is_refused_by_its_limit(tight_farm: TestFarm) -> None:
    for path in ("/compile", "/datasets"):
        answer = tight_farm.http.post(path, data={"name": "x" * 2000}, files={"file": b"x"})
        assert (answer.status_code, answer.json()["code"]) == (413, "limits.field")
        assert "1,000 bytes" in answer.json()["detail"]


def test_a_form_that_is_none_says_so(small_farm: TestFarm) -> None:
    answer = small_farm.http.post("/compile", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert (answer.status_code, answer.json()["code"]) == (422, "request.form")


@pytest.mark.parametrize(
    ("path", "where"),
    [("/jobs/a%00b", "path"), ("/jobs?state=%00", "query"), ("/jobs?cursor=a%00", "query"), ("/open/%00", "path")],
)
def test_nul_is_refused_by_its_place(farm: TestFarm, path: str, where: str) -> None:
    answer = farm.http.get(path)
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "request.text", where)


def test_texts_that_no_database_keeps_are_refused_by_their_field(farm: TestFarm) -> None:
    answer = farm.http.post("/keys", json={"name": "a\0b"})
    assert (answer.status_code, answer.json()["where"]) == (422, "body.name")
    assert "U+0000" in answer.json()["detail"]
    answer = farm.http.post("/keys", content=b'{"name": "x", "\\ud800": 1}')
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")


@pytest.mark.parametrize("text", ["9223372036854775808", "²", "١", "-1", "0x1", "1 ", "9" * 400])
def test_event_ids_are_numbers_that_events_have(farm: TestFarm, text: str) -> None:
    path = f"/jobs/{farm.compile().json()['id']}/events"
    answer = farm.http.get(path, headers=[(b"Last-Event-ID", text.encode()), (b"Accept", b"application/json")])
    assert (answer.status_code, answer.json()["code"]) == (422, "request.event-id")


def test_the_largest_event_id_is_taken(farm: TestFarm) -> None:
    path = f"/jobs/{farm.compile(b'other').json()['id']}/events?after={1 << 63}"
    assert farm.http.get(path, headers={"Accept": "application/json"}).status_code == 422
    headers = {"Last-Event-ID": str((1 << 63) - 1), "Accept": "application/json"}
    events = farm.http.get(f"/jobs/{farm.compile().json()['id']}/events", headers=headers).json()
    assert [event["id"] for event in events] == [1], "a number that the job has not reached begins anew"


@pytest.mark.parametrize("path", ["weights", "checkpoint"])
def test_who_hangs_up_in_the_middle_is_no_failure_of_the_farm(farm: TestFarm, path: str) -> None:
    """A board that dies or loses its network while it sends a file."""
    bundle = farm.bundle(fields={"checkpoints": 1})
    farm.run(bundle=bundle, dataset=farm.dataset(), mode="train", steps=3)
    board = farm.board()
    token = leased(board).lease_token
    headers = {
        p.PROTOCOL_HEADER: p.PROTOCOL,
        "Authorization": f"Bearer {board.credential}",
        p.DIGEST_HEADER: "sha256:" + "0" * 64,
        "Content-Length": "1000",
    }
    scope = {
        "type": "http",
        "method": "PUT",
        "path": f"/agent/attempts/{token}/{path}",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    coming: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return coming.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    farm.http.portal.call(farm.http.app, scope, receive, send)
    assert sent[0]["status"] == 422, sent
    assert json.loads(sent[1]["body"])["code"] == "request.cut-off"


def test_a_database_that_has_no_connection_left_is_busy(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoConnection("QueuePool limit of size 10 overflow 20 reached")

    monkeypatch.setattr(farm.farm.database.engine.pool, "connect", refuse)
    for answer in (farm.http.get("/runs"), farm.http.post("/users", json={"name": "Ada"})):
        assert (answer.status_code, answer.json()["code"]) == (503, "infra.database")
        assert answer.headers["Retry-After"] == "5"


@pytest.mark.parametrize("key", ["", "  "])
def test_a_blank_idempotency_key_makes_no_two_requests_one(small_farm: TestFarm, key: str) -> None:
    body, headers = {"bundle": small_farm.bundle()}, {"Idempotency-Key": key}
    answer = small_farm.http.post("/runs", json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency.blank")
