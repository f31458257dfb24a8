"""What agents record over HTTP: a run's whole life, events without gaps, reports exactly once, nothing forged."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from device_agents import wire as p
from service.base.identifiers import digest_of
from service.boards.agents.trained import MOST_OTHERS
from service.store.database.models import Attempt, Device, Holding, Result
from tests.sample import sample
from tests.service.board import Board, leased
from tests.service.farms import TestFarm


def test_whole_life_of_a_training_run(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle(), mode="train", steps=2, dataset=farm.dataset())
    board = farm.board()
    work = leased(board)
    assert farm.show(run["id"])["state"] == "leased"
    beat = p.loads(p.HeartbeatResponse, board.heartbeat(work, "download").content)
    assert not beat.cancel
    assert beat.lease_expires_at > time.time() + 50
    shown = farm.show(run["id"])
    assert (shown["state"], shown["phase"]) == ("running", "download")
    steps = [p.Event(n, 1.0, "step", step=n, loss=1.0 / n, step_us=5.0) for n in (1, 2)]
    assert p.loads(p.EventsResponse, board.send_events(work, *steps).content).next_sequence == 3
    weights = b"trained weights"
    digest = digest_of(weights)
    assert board.put_weights(work, weights, digest_of(b"other")).json()["code"] == "upload.digest"
    assert board.put_weights(work, weights, digest).status_code == 201
    answer = board.report(
        work,
        weights=p.Blob(digest, len(weights)),
        evaluation_before=p.Evaluation(8, 2.0, 0.1),
        evaluation_after=p.Evaluation(8, 0.5, 0.9),
    )
    assert p.loads(p.ReportResponse, answer.content).state == "recorded"
    shown = farm.show(run["id"])
    assert (shown["state"], shown["ending"], shown["steps_done"]) == ("succeeded", None, 2)
    assert shown["trained_weights_digest"] == digest
    summary = shown["summary"]
    assert (summary["loss_first"], summary["loss_last"]) == (2.5, 1.25)
    assert (summary["accuracy_before"], summary["accuracy_after"], summary["energy_per_step_mj"]) == (0.1, 0.9, None)
    assert farm.http.get(f"/runs/{run['id']}/weights").content == weights
    report = farm.http.get(f"/runs/{run['id']}/report").json()
    assert report["report"]["losses"] == [2.5, 1.25]
    text = farm.http.get(f"/runs/{run['id']}/events").text
    assert text.count("event: step") == 2
    assert text.endswith("event: end\ndata: {}\n\n")


def test_earlier_weights_start_a_later_run(farm: TestFarm) -> None:
    digest, dataset = farm.bundle(), farm.dataset()
    farm.run(bundle=digest, mode="train", dataset=dataset)
    board = farm.board()
    work = leased(board)
    weights = b"w" * 100
    board.put_weights(work, weights, digest_of(weights))
    assert board.report(work, weights=p.Blob(digest_of(weights), 100)).status_code == 200
    second = farm.run(bundle=digest, mode="train", dataset=dataset, weights=digest_of(weights))
    work = leased(board)
    assert (work.run_id, work.weights and work.weights.digest) == (second["id"], digest_of(weights))
    assert work.weights is not None
    assert work.weights.url is not None
    assert board.get(work.weights.url).content == weights


def test_other_weights_of_an_attempt_take_the_place_of_those_before(farm: TestFarm) -> None:
    digest, dataset = farm.bundle(), farm.dataset()
    farm.run(bundle=digest, mode="train", dataset=dataset)
    board = farm.board()
    work = leased(board)
    first = b"w" * 100
    board.put_weights(work, first, digest_of(first))
    assert board.report(work, weights=p.Blob(digest_of(first), 100)).status_code == 200
    before = {one for one, _, _ in farm.farm.storage.stored()}
    run = farm.run(bundle=digest, mode="train", dataset=dataset)
    work = leased(board)
    sent = [first] + [bytes([number]) * 1000 for number in range(MOST_OTHERS)]
    for data in sent:
        assert [board.put_weights(work, data, digest_of(data)).status_code for _ in range(2)] == [201, 201]
    refused = board.put_weights(work, b"once more", digest_of(b"once more"))
    assert (refused.status_code, refused.json()["code"]) == (422, "limits.weights")
    assert {one for one, _, _ in farm.farm.storage.stored()} == before | {digest_of(sent[-1])}
    told = farm.http.get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"}).text
    assert told.count("other weights than before") == MOST_OTHERS
    assert board.report(work, weights=p.Blob(digest_of(sent[-1]), 1000)).status_code == 200
    assert farm.http.get(f"/runs/{run['id']}/weights").content == sent[-1]
    with farm.farm.database.read() as session:
        held = session.scalars(select(Holding.digest).where(Holding.kind == "weights")).all()
    assert sorted(held) == sorted({digest_of(first), digest_of(sent[-1])}), "what another run trained stays"


def test_weights_are_no_larger_than_the_bundle_can_train(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.work.runs.checkpoints.most_checkpoint_bytes", lambda weights_bytes: 8 * weights_bytes)
    farm.run(bundle=farm.bundle(), mode="train", dataset=farm.dataset())
    board = farm.board()
    work = leased(board)
    for count, status in ((57, 413), (56, 201)):  # its own have 7
        data = b"w" * count
        assert board.put_weights(work, data, digest_of(data)).status_code == status


def test_events_are_recorded_once_and_without_gaps(farm: TestFarm) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    one, two, four = (p.Event(n, 1.0, "log", message=f"line {n}\x00") for n in (1, 2, 4))
    replies = [board.send_events(work, *batch) for batch in ((one, two), (one, two), (two, four), ())]
    assert [p.loads(p.EventsResponse, reply.content).next_sequence for reply in replies] == [3, 3, 3, 3]
    listed = farm.http.get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"}).json()
    assert [event["body"]["message"] for event in listed if event["kind"] == "log"] == ["line 1 ", "line 2 "]


def test_same_report_twice_is_recorded_once_and_another_is_refused(farm: TestFarm) -> None:
    farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    states = [p.loads(p.ReportResponse, board.report(work).content).state for _ in range(2)]
    assert states == ["recorded", "already-recorded"]
    other = board.report(work, losses=(9.0,))
    assert (other.status_code, other.json()["code"]) == (409, "report.other")


def test_forged_or_foreign_reports_are_refused(small_farm: TestFarm) -> None:
    run = small_farm.run(bundle=small_farm.bundle())
    board, stranger = small_farm.board(name="one"), small_farm.board(name="two")
    work = leased(board)
    path = p.attempt_path(p.REPORT_PATH, work.lease_token)
    forged = board.envelope(board.make_report(work), key=Ed25519PrivateKey.generate())
    assert board.post(path, forged).json()["code"] == "report.signature"
    other = "sha256:" + "0" * 64
    for changes in (
        {"run_id": "run_other"},
        {"attempt": 2},
        {"measurement_class": "hardware"},
        {"bundle_digest": other},
    ):
        assert board.report(work, **changes).json()["code"] == "report.mismatch"
    unsent = p.Blob("sha256:" + "0" * 64, 1)
    assert board.report(work, weights=unsent).json()["code"] == "report.weights"
    assert stranger.report(work).status_code == 409
    assert stranger.heartbeat(work).status_code == 409
    assert small_farm.show(run["id"])["state"] == "leased"


MEASURED = p.to_json(p.Measurement(8, (9e5,), (p.Block((9e5,)),), 9e5, 9e5, 9e5, 9e5, 9e5, 9e5, 8.9, 0.0, 0.0, 3, 2))
KERNEL = p.to_json(p.KernelTime(0, "k", "forward", 10.0, 100, 8, 4))
TUNED = p.KernelTuning("a", "n", 1, (p.VariantTime("", 9, 1.0, 1.0, 1.0, 1.0, 0.0),), "")
NO_TIME = {**p.to_json(TUNED.variants[0]), "median_us": 0.0}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "no time": {"measurement": {**MEASURED, "median_us": 0.0}},
    "a step of no time": {"measurement": {**MEASURED, "step_us": [9e5, 0]}},
    "a negative time": {"kernels": [{**KERNEL, "us": -1.0}]},
    "more operations than the device's peak": {"kernels": [{**KERNEL, "flops": 10**12}]},
    "a step above the peak": {"measurement": MEASURED, "kernels": [{**KERNEL, "us": 1e6, "flops": 10**13}] * 8},
    "kernels longer than the step": {"measurement": {**MEASURED, "step_us": [1.0]}, "kernels": [KERNEL] * 99},
    "more memory than the device has": {"memory": {"peak_rss_bytes": (1 << 33) + 1}},
    "an arena beyond any memory": {"memory": {"arena_bytes": 1 << 62}},
    "bytes beyond a database's integer": {"memory": {"arena_bytes": 1 << 64}},
    "negative bytes": {"memory": {"arena_bytes": -1}},
    "an accuracy above one": {"evaluation_before": {"samples": 4, "loss": 1.0, "accuracy": 1.5}},
    "an evaluation of nothing": {"evaluation_before": {"samples": 0, "loss": 1.0}},
    "negative energy": {"energy": {"total_mj": -1.0, "per_step_mj": 1.0, "sensor": "x"}},
    "a schedule of no time": {"tuning": {"threads": 2, "kernels": [{**p.to_json(TUNED), "variants": [NO_TIME]}]}},
    "half a surrogate": {"environment": {"kernel": "\ud800"}},
    "a wrong type": {"run_s": "long"},
    "an unknown field": {"surprise": 1},
    "a time beyond all clocks": {"started_at": 1e300},
}


def raw_report(board: Board, work: p.Assignment, **changes: object) -> httpx.Response:
    """A report as no agent of ours could write it, signed all the same."""
    payload = json.dumps({**p.to_json(board.make_report(work)), **changes}).encode()
    signature = p.Signature(board.device_id, board.sign(p.REPORT_TYPE, payload))
    envelope = p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (signature,))
    return board.post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope)


@pytest.mark.parametrize(
    "kind",
    sample(
        sorted(IMPOSSIBLE),
        {
            "no time",
            "more operations than the device's peak",
            "bytes beyond a database's integer",
            "half a surrogate",
            "an unknown field",
        },
    ),
)
def test_a_report_that_cannot_be_strikes_the_device_until_another_sends_one(farm: TestFarm, kind: str) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board()
    work = leased(board)
    answer = raw_report(board, work, **IMPOSSIBLE[kind])
    assert (answer.status_code, answer.json()["code"]) == (422, "report.impossible"), answer.text
    assert answer.json()["where"]
    with farm.farm.database.read() as session:
        attempt = session.scalars(select(Attempt).where(Attempt.run_id == run["id"])).one()
        device = session.get_one(Device, board.device_id)
        assert (attempt.state, attempt.cause, attempt.code) == ("failed", "infra", "report.impossible")
        assert answer.json()["where"] in (attempt.message or "")
        assert (device.strikes, device.state) == (1, "active")
        assert session.scalar(select(Result).where(Result.attempt_id == attempt.id)) is None
    assert farm.show(run["id"])["state"] == "queued", "another device may try"
    bare = board.report(work, p.Outcome("failed", "infra", "report.refused", "refused"), losses=(), verdict=None)
    assert p.loads(p.ReportResponse, bare.content).state == "superseded", "the agent is done with it, too"
    second = farm.board()
    assert raw_report(second, leased(second), **IMPOSSIBLE[kind]).status_code == 422
    assert farm.show(run["id"])["state"] == "inconclusive"
    with farm.farm.database.read() as session:
        assert [session.get_one(Device, one.device_id).strikes for one in (board, second)] == [0, 0]


def test_the_same_figures_of_an_emulated_board_are_taken(small_farm: TestFarm) -> None:
    """Its times and its memory mean nothing, and say so."""
    run = small_farm.run(bundle=small_farm.bundle())
    board = small_farm.board(measurement_class="emulated")
    changes = {"kernels": [{**KERNEL, "flops": 10**12}], "memory": {"peak_rss_bytes": 1 << 40}}
    assert raw_report(board, leased(board), **changes).status_code == 200
    assert small_farm.show(run["id"])["state"] == "succeeded"


@pytest.mark.parametrize(
    "fields", [{"step": 1 << 70}, {"step": -1}, {"step_us": 0.0}, {"fraction": 2.0}, {"at": 1e300}]
)
def test_events_that_cannot_be_are_refused(small_farm: TestFarm, fields: dict[str, object]) -> None:
    small_farm.run(bundle=small_farm.bundle())
    board = small_farm.board()
    work = leased(board)
    event = {**p.to_json(p.Event(1, 1.0, "step", step=1, loss=0.5)), **fields}
    path = p.attempt_path(p.EVENTS_PATH, work.lease_token)
    answer = board.post(path, None, content=json.dumps({"events": [event]}).encode())
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol.invalid")


def test_texts_of_a_report_steer_no_terminal(farm: TestFarm) -> None:
    board = farm.board()
    farm.run(bundle=farm.bundle())
    work = leased(board)
    message = "\x1b[2J\x9b31m\x07\x7f\u202egnp.exe\r\b done\\u001b \\\u001b\nnext\tline"
    outcome = p.Outcome("failed", "device", "device.x", message)
    assert board.report(work, outcome, environment={"kernel": "6.1\x1b]0;owned\x07"}).status_code == 200
    with farm.farm.database.read() as session:
        report = session.scalars(select(Result.report)).one()
    assert report["outcome"]["message"] == " [2J 31m   gnp.exe   done\\u001b \\ \nnext\tline"
    assert report["environment"]["kernel"] == "6.1 ]0;owned "
