"""The client against a fake farm on a socket: what it sends, how it waits, what it makes of refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pockfarm.client import Client, RunSettings, answers
from pockfarm.client.synchronous import looks
from pockfarm.errors import Failed, NotFound, PockfarmError, Refused, Unauthorized, Unreachable, UsageError
from pockfarm.own_farm.state import FarmStatus, StateFolder
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

DIGEST = "sha256:" + "a" * 64
JOB = {"id": "job_1", "state": "queued", "model": {"name": "m"}, "plan": {"name": "full"}, "target": "x86-64-v3"}
ENDING = {"cause": "model", "code": "model.invalid", "message": "truncated", "where": "byte 7", "hint": "send it all"}


@pytest.fixture
def server(loopback: None) -> Iterator[FakeFarm]:
    with fake_farm() as farm:
        yield farm


@pytest.fixture
def farm(server: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(answers, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(looks, "POLL_INTERVAL_S", 0.01)
    with Client(server.url, "key-1") as farm:
        yield farm


def test_compile_sends_model_plan_spec_and_target(server: FakeFarm, farm: Client, tmp_path: Path) -> None:
    server.on("POST", "/compile", Answer(202, JOB))
    model = tmp_path / "net.onnx"
    model.write_bytes(b"\x08\x07onnx")
    job = farm.compile(model, plan="full", spec="batch: 4", target="x86-64-v3")
    assert (job.id, job.model_name, job.plan_name, job.is_open) == ("job_1", "m", "full", True)
    request = server.seen[0]
    assert request.headers["Authorization"] == "Bearer key-1"
    assert request.headers["Idempotency-Key"]
    for part in (b'filename="net.onnx"', b"\x08\x07onnx", b"batch: 4", b"x86-64-v3"):
        assert part in request.body


def test_waiting_follows_a_job_by_long_polls_until_it_ends(server: FakeFarm, farm: Client) -> None:
    compiling = {**JOB, "state": "compiling", "stage": "kernels", "fraction": 0.5}
    done = {**JOB, "state": "succeeded", "fraction": 1.0, "bundle_digest": DIGEST}
    tags = [{"ETag": f'"{number}"'} for number in range(3)]
    server.on(
        "GET",
        "/jobs/job_1",
        Answer(200, JOB, tags[0]),
        Answer(200, compiling, tags[1]),
        Answer(304),
        Answer(200, done, tags[2]),
    )
    seen: list[str] = []
    job = farm.wait_for_job("job_1", on_look=lambda one: seen.append(f"{one.state} {one.stage} {one.fraction}"))
    assert job.bundle_digest == DIGEST
    assert seen == ["queued  0.0", "compiling kernels 0.5", "compiling kernels 0.5", "succeeded  1.0"]
    assert [request.headers.get("If-None-Match") for request in server.seen] == [None, '"0"', '"1"', '"1"']
    assert "wait=" in server.seen[1].path


def test_a_job_has_the_compilers_warnings(server: FakeFarm, farm: Client) -> None:
    said = {"code": "model.example", "where": "fc", "message": "is odd", "hint": "do this instead"}
    server.on("GET", "/jobs/job_1", Answer(200, {**JOB, "warnings": [said]}), Answer(200, JOB))
    (warning,) = farm.job("job_1").warnings
    assert (warning.code, str(warning)) == ("model.example", "fc: is odd [model.example]\n  do this instead")
    assert farm.job("job_1").warnings == ()


def test_a_failed_job_raises_its_typed_cause(server: FakeFarm, farm: Client) -> None:
    server.on("GET", "/jobs/job_1", Answer(200, {**JOB, "state": "failed", "ending": ENDING}))
    with pytest.raises(Failed, match=r"truncated \[model: model\.invalid\]\n  send it all") as caught:
        farm.wait_for_job("job_1")
    assert (caught.value.cause, caught.value.code, caught.value.state) == ("model", "model.invalid", "failed")


def test_waiting_gives_up_when_the_time_is_over(server: FakeFarm, farm: Client) -> None:
    server.on("GET", "/runs/run_1", Answer(200, {"id": "run_1", "state": "queued"}))
    with pytest.raises(Failed, match="has not ended after 0 s"):
        farm.wait_for_run("run_1", timeout_s=0)


OPEN, ENDED = {"id": "run_1", "state": "running"}, {"id": "run_1", "state": "succeeded"}


def test_a_run_is_waited_for_while_its_farm_is_away(
    server: FakeFarm, farm: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [Answer(503)] * 7
    server.on("GET", "/runs/run_1", Answer(200, OPEN, {"ETag": '"1"'}), *away, Answer(200, ENDED))
    assert farm.wait_for_run("run_1").state == "succeeded"
    monkeypatch.setattr(looks, "PATIENCE_S", 0.0)
    server.on("GET", "/runs/run_1", Answer(200, OPEN, {"ETag": '"1"'}), *away, Answer(200, ENDED))
    with pytest.raises(Refused):
        farm.wait_for_run("run_1")
    server.on("GET", "/runs/run_1", *away, Answer(200, ENDED))
    with pytest.raises(Refused):
        farm.wait_for_run("run_1")


def test_all_events_of_a_run_are_followed_however_many_an_answer_holds(server: FakeFarm, farm: Client) -> None:
    pages = [[1, 2], [3], [], [4, 5], [6], []]
    server.on("GET", "/runs/run_1", Answer(200, OPEN), Answer(200, ENDED))
    server.on("GET", "/runs/run_1/events", *(Answer(200, [{"id": number} for number in page]) for page in pages))
    assert [event["id"] for event in farm.follow("run_1")] == [1, 2, 3, 4, 5, 6]
    asked = [request.path.split("after=")[1] for request in server.seen if "events" in request.path]
    assert asked == ["0", "2", "3", "3", "5", "6"]


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (404, NotFound), (422, Refused), (500, Refused)])
def test_a_problem_becomes_a_typed_error(server: FakeFarm, farm: Client, status: int, kind: type[Refused]) -> None:
    problem = {"detail": "no such plan", "code": "plan.invalid", "where": "plan.update[0]", "hint": "see the guide"}
    server.on("POST", "/compile", Answer(status, problem))
    with pytest.raises(kind, match="no such plan") as caught:
        farm.compile(b"x", plan="full", spec="", target="t")
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.where, refusal.hint) == (
        status,
        "plan.invalid",
        "plan.update[0]",
        "see the guide",
    )


def test_a_busy_farm_is_asked_again_under_the_same_idempotency_key(server: FakeFarm, farm: Client) -> None:
    server.on("POST", "/runs", Answer(503, {}), Answer(429, {}), Answer(202, {"id": "run_1", "state": "queued"}))
    assert farm.start_run(DIGEST, mode="train", steps=5).id == "run_1"
    assert len({request.headers["Idempotency-Key"] for request in server.seen}) == 1
    assert len(server.seen) == 3


def test_what_is_left_out_of_a_run_is_not_sent(server: FakeFarm, farm: Client) -> None:
    server.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    farm.start_run(DIGEST, warmup=0)
    assert server.seen[0].body.replace(b" ", b"") == f'{{"bundle":"{DIGEST}","mode":"profile","warmup":0}}'.encode()


def test_what_to_validate_on_goes_with_the_settings(server: FakeFarm, farm: Client) -> None:
    server.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    settings = RunSettings("train", steps=3, patience=2)
    farm.start_run(DIGEST, settings, dataset=DIGEST, validation_dataset=DIGEST)
    assert b'"validation_dataset":' in server.seen[0].body
    for wrong in ({"validation": 0.5}, {"mode": "profile"}):
        with pytest.raises(UsageError, match=r"^validation_dataset: must be left out"):
            farm.start_run(DIGEST, settings, dataset=DIGEST, validation_dataset=DIGEST, **wrong)
    with pytest.raises(UsageError, match="nothing to validate on"):
        farm.start_run(DIGEST, settings, dataset=DIGEST)
    assert len(server.seen) == 1


def test_no_farm_at_the_address(loopback: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RETRY_PAUSE_S", 0.01)
    with Client("http://127.0.0.1:9", "k") as farm, pytest.raises(Unreachable, match="no answer from the farm at"):
        farm.devices()


def test_something_else_at_the_address(server: FakeFarm, farm: Client) -> None:
    server.on("GET", "/devices", Answer(200, b"<html>hello</html>"))
    with pytest.raises(PockfarmError, match="is this the address of a farm"):
        farm.devices()


def test_unknown_fields_of_a_newer_farm_do_no_harm(server: FakeFarm, farm: Client) -> None:
    device = {
        "id": "dev_1",
        "name": "pi",
        "state": "active",
        "device_class": "raspberry-pi-4",
        "targets": ["a"],
        "new": 1,
    }
    server.on("GET", "/devices", Answer(200, {"items": [device], "next": None}))
    (found,) = farm.devices()
    assert (found.name, found.targets, found.raw["new"]) == ("pi", ("a",), 1)


def test_connect_needs_an_address_and_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POCKFARM_URL", raising=False)
    monkeypatch.delenv("POCKFARM_API_KEY", raising=False)
    state = StateFolder(tmp_path / "state")
    with pytest.raises(UsageError, match="pockfarm up"):
        Client(state=state)
    state.make()
    state.save(FarmStatus(1, "http://127.0.0.1:8123", True, {}))
    state.api_key_file.write_text("secret\n")
    with Client(state=state) as farm:
        assert farm.url == "http://127.0.0.1:8123"


def test_the_environment_names_the_farm(server: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKFARM_URL", server.url + "/")
    monkeypatch.setenv("POCKFARM_API_KEY", "from-environment")
    server.on("GET", "/devices", Answer(200, {"items": []}))
    with Client() as farm:
        assert farm.devices() == []
    assert server.seen[0].headers["Authorization"] == "Bearer from-environment"


def test_a_setting_out_of_bounds_is_refused_before_it_is_sent(farm: Client, server: FakeFarm) -> None:
    with pytest.raises(UsageError, match="warmup: must be 0 to 10,000"):
        farm.start_run(DIGEST, warmup=-1)
    with pytest.raises(UsageError, match="step: no such setting; did you mean 'steps'"):
        farm.start_run(DIGEST, step=20)
    assert server.seen == []


def test_settings_go_as_one_value_or_by_name(farm: Client, server: FakeFarm) -> None:
    server.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    farm.start_run(DIGEST, RunSettings("train", steps=5), seed=7, dataset="sha256:d")
    farm.start_run(DIGEST, mode="train", steps=5)
    whole, named = (json.loads(request.body) for request in server.seen)
    assert (whole["mode"], whole["steps"], whole["seed"], whole["dataset"]) == ("train", 5, 7, "sha256:d")
    assert named == {"bundle": DIGEST, "mode": "train", "steps": 5}


def external_model(folder: Path) -> Path:
    """A model whose only tensor lies in `w.bin` beside it."""
    import onnx
    from onnx import TensorProto, helper

    tensor = TensorProto(name="w", dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "w.bin"
    (folder / "w.bin").write_bytes(b"8 bytes!")
    value = helper.make_tensor_value_info
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", 1, [2])], [value("y", 1, [2])], [tensor])
    onnx.save(helper.make_model(graph), folder / "net.onnx")
    return folder / "net.onnx"


def test_a_models_data_files_are_sent_where_the_farm_lacks_them(server: FakeFarm, farm: Client, tmp_path: Path) -> None:
    path = external_model(tmp_path)
    missing = {"code": "model.external-missing", "detail": "not sent", "where": "data", "hint": "send it"}
    server.on("POST", "/compile", Answer(404, missing), Answer(202, JOB), Answer(202, JOB))
    assert farm.compile(path, plan="full", spec="batch: 4", target="x86-64-v3").id == "job_1"
    assert farm.compile(path, plan="full", spec="batch: 4", target="x86-64-v3").id == "job_1"
    first, second, third = server.seen
    for request in (first, second, third):
        assert b'{"w.bin": "sha256:' in request.body
    assert [b"8 bytes!" in request.body for request in (first, second, third)] == [False, True, False]
    (tmp_path / "w.bin").unlink()
    with pytest.raises(UsageError, match=r"w\.bin"):
        farm.compile(path, plan="full", spec="batch: 4", target="x86-64-v3")
