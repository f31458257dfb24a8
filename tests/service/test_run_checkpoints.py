"""Checkpoints of unfinished runs at the farm: who may send one, what is refused, who gets it, and when it goes."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text

from device_agents import wire as p
from service.store.database.models import Checkpoint
from service.store.storage import StoredFile
from tests.service.board import Board, leased
from tests.service.farms import TestFarm, expire_lease

STEPS = 9


def asked(farm: TestFarm, **more: Any) -> dict[str, Any]:
    bundle = farm.bundle(b"goes on", fields={"checkpoints": 1})
    return {"bundle": bundle, "mode": "train", "steps": STEPS, "dataset": farm.dataset(), **more}


def key_of(work: p.Assignment) -> str:
    def digest(blob: p.Blob | None) -> str | None:
        return blob.digest if blob else None

    return p.checkpoint_key(
        work.settings,
        bundle=work.bundle.digest,
        dataset=digest(work.dataset),
        validation_dataset=digest(work.validation_dataset),
        weights=digest(work.weights),
        own_data=work.own_data.digest if work.own_data else None,
    )


def past_of(board: Board, work: p.Assignment, step: int) -> p.Past:
    return p.Past(key_of(work), work.run_id, work.attempt, board.device_id, step, (1.0,) * step)


def state_of(past: p.Past, **about: str) -> bytes:
    """What a binary leaves, as far as the farm looks at it."""
    told = {"key": past.key, "position": f"1 {past.step} 0 1 0 0 0 0", "step": str(past.step), **about}
    header = json.dumps({"__metadata__": told}).encode()
    return len(header).to_bytes(8, "little") + header + b"weights"


def whole(past: p.Past, state: bytes | None = None) -> bytes:
    stream = io.BytesIO()
    stream.write(state_of(past) if state is None else state)
    p.append_past(stream, past)
    return stream.getvalue()


def put(board: Board, work: p.Assignment, data: bytes, *, digest: str = "") -> httpx.Response:
    digest = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
    headers = {p.PROTOCOL_HEADER: p.PROTOCOL, "Authorization": f"Bearer {board.credential}", p.DIGEST_HEADER: digest}
    return board.http.put(p.attempt_path(p.CHECKPOINT_PATH, work.lease_token), content=data, headers=headers)


def send(board: Board, work: p.Assignment, step: int) -> bytes:
    data = whole(past_of(board, work, step))
    answer = put(board, work, data)
    assert answer.status_code == 201, answer.text
    return data


def rows(farm: TestFarm) -> list[Checkpoint]:
    with farm.farm.database.read() as session:
        return list(session.scalars(select(Checkpoint)))


def messages(farm: TestFarm, run_id: str) -> list[str]:
    found = farm.http.get(f"/runs/{run_id}/events", headers={"Accept": "application/json"}).json()
    return [str(one["body"].get("message", "")) for one in found]


def test_another_device_goes_on_where_the_first_stood(farm: TestFarm) -> None:
    run = farm.run(**asked(farm))
    first, second = farm.board(name="first"), farm.board(name="second")
    work = leased(first)
    assert work.checkpoint is None, "nobody stood anywhere yet"
    assert first.get(p.attempt_path(p.CHECKPOINT_PATH, work.lease_token)).status_code == 404
    send(first, work, 3)
    newest = send(first, work, 5)
    send(first, work, 4)
    (row,) = rows(farm)
    assert (row.step, row.size_bytes) == (5, len(newest)), "the newest counts, and there is one"
    expire_lease(farm, run["id"])
    again = leased(second)
    assert again.checkpoint is not None
    assert again.checkpoint.url is not None
    assert again.checkpoint.digest == f"sha256:{hashlib.sha256(newest).hexdigest()}"
    assert second.get(again.checkpoint.url).content == newest
    assert farm.show(run["id"])["steps_done"] == 5
    training = p.Training("completed", STEPS, weights_step=STEPS, resumed_step=5)
    assert second.report(again, losses=(1.0,) * STEPS, training=training).status_code == 200
    assert rows(farm) == [], "the run has ended"
    [message] = [message for message in messages(farm, run["id"]) if message.startswith("goes on from step 5 ")]
    assert message.endswith(" attempt 1, on first)")
    report = farm.http.get(f"/runs/{run['id']}/report").json()["report"]
    assert report["training"]["resumed_step"] == 5


def test_a_stale_attempt_sends_none(farm: TestFarm) -> None:
    run = farm.run(**asked(farm))
    first, second = farm.board(name="first"), farm.board(name="second")
    work = leased(first)
    expire_lease(farm, run["id"])
    again = leased(second)
    assert put(first, work, whole(past_of(first, work, 3))).status_code == 409
    data = whole(past_of(second, again, 3))
    assert put(first, again, data).status_code == 409, "another device's token"
    assert put(second, again, data).status_code == 201


def test_what_is_no_checkpoint_of_the_attempt_is_refused(farm: TestFarm) -> None:
    farm.run(**asked(farm))
    board = farm.board()
    work = leased(board)
    good = past_of(board, work, 3)
    bad = {
        "nothing of it": b"hello",
        "no past": state_of(good),
        "past alone": whole(good, b""),
        "another key": whole(replace(good, key="sha256:" + "1" * 64)),
        "another run": whole(replace(good, run_id="run_x")),
        "another attempt": whole(replace(good, attempt=2)),
        "another device": whole(replace(good, device_id="dev_x")),
        "nothing left to do": whole(past_of(board, work, STEPS)),
        "a state of another step": whole(good, state_of(past_of(board, work, 4))),
        "a state of another run": whole(good, state_of(good, key="sha256:" + "1" * 64)),
        "a state without words": whole(good, b"\x02" + b"\0" * 7 + b"{}"),
        "a state that lies of its length": whole(good, b"\xff" * 7 + b"\x7f" + b"{}"),
        "a deep state": whole(good, (50_000).to_bytes(8, "little") + b"[" * 50_000),
        "a loss that is no number": whole(good).replace(b'"losses":[1.0,1.0,1.0]', b'"losses":[1.0,1.0,1e9999]'),
    }
    for name, data in bad.items():
        answer = put(board, work, data)
        assert answer.status_code == 422, name
        assert answer.json()["code"] == "checkpoint.invalid", name
    assert put(board, work, whole(good), digest="sha256:" + "0" * 64).json()["code"] == "upload.digest"
    assert rows(farm) == []
    assert put(board, work, whole(good)).status_code == 201, "else the refusals prove nothing"


def test_one_that_is_removed_as_it_comes_is_sent_again(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes lay there for long, and nothing referred to them: the collection may take them once more."""
    farm.run(**asked(farm))
    board = farm.board()
    work = leased(board)
    data = whole(past_of(board, work, 3))
    storage = farm.farm.storage
    keep = storage.put

    def lose(*given: Any, **named: Any) -> StoredFile:
        stored = keep(*given, **named)
        storage.delete(stored.digest)
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(storage, "put", lose)
        answer = put(board, work, data)
    assert (answer.status_code, answer.json()["code"]) == (503, "infra.file-removed")
    assert put(board, work, data).status_code == 201


def test_one_that_is_too_large_is_not_taken(farm: TestFarm) -> None:
    farm.run(**asked(farm))
    board = farm.board()
    work = leased(board)
    past = past_of(board, work, 3)
    data = whole(past, state_of(past) + bytes(64 << 20))
    assert put(board, work, data).json()["code"] == "limits.upload"


@pytest.mark.parametrize(
    ("fields", "body"),
    [({}, {"mode": "train", "steps": 3}), ({"checkpoints": 1}, {"mode": "eval"})],
    ids=["older bundle", "no training"],
)
def test_other_runs_have_no_checkpoints(farm: TestFarm, fields: dict[str, Any], body: dict[str, Any]) -> None:
    farm.run(bundle=farm.bundle(fields=fields), dataset=farm.dataset(), **body)
    board = farm.board()
    work = leased(board)
    assert put(board, work, whole(past_of(board, work, 2))).json()["code"] == "checkpoint.none"


def test_an_older_bundle_is_refused_what_it_cannot_do(farm: TestFarm) -> None:
    body = {"bundle": farm.bundle(), "mode": "train", "dataset": farm.dataset(), "checkpoint_s": 60.0}
    answer = farm.http.post("/runs", json=body)
    told = answer.json()
    assert (answer.status_code, told["code"], told["where"]) == (422, "run.checkpoints", "checkpoint_s")
    assert "compile the model again" in told["hint"]
    assert farm.http.post("/runs", json={**body, "checkpoint_s": None}).status_code == 202
    farm.run(**asked(farm, checkpoint_s=60.0))


def test_one_that_nobody_comes_further_from_is_left(farm: TestFarm) -> None:
    """Two devices begin from it and send no newer one: the third starts from the first step."""
    run = farm.run(**asked(farm))
    boards = [farm.board(name=f"board {n}") for n in range(4)]
    send(boards[0], leased(boards[0]), 3)
    seen = []
    for board in boards[1:]:
        with farm.farm.database.transaction() as session:
            session.execute(text("UPDATE attempts SET code = 'x' WHERE state = 'lost'"))
        expire_lease(farm, run["id"])
        if farm.show(run["id"])["state"] != "queued":
            break
        seen.append(leased(board).checkpoint is not None)
    assert seen == [True, True, False]
    assert rows(farm) == []
    assert any("starts from the first step instead of step 3" in one for one in messages(farm, run["id"]))


def test_a_device_whose_report_cannot_be_true_leaves_nothing_to_go_on_from(farm: TestFarm) -> None:
    farm.run(**asked(farm))
    board = farm.board()
    work = leased(board)
    send(board, work, 3)
    assert board.report(work, memory=p.Memory(peak_rss_bytes=1 << 60)).status_code == 422
    assert rows(farm) == []
    assert leased(farm.board(name="other")).checkpoint is None


def test_a_cancelled_run_keeps_none(farm: TestFarm) -> None:
    run = farm.run(**asked(farm))
    board = farm.board()
    send(board, leased(board), 3)
    expire_lease(farm, run["id"])
    assert len(rows(farm)) == 1
    assert farm.http.post(f"/runs/{run['id']}/cancel").status_code == 202
    assert rows(farm) == []


def stored(farm: TestFarm) -> set[str]:
    return {digest for digest, _, _ in farm.farm.storage.stored()}


def test_what_is_refused_or_replaced_takes_no_room(farm: TestFarm) -> None:
    run = farm.run(**asked(farm))
    board = farm.board()
    work = leased(board)
    before = stored(farm)
    assert put(board, work, b"no checkpoint").status_code == 422
    assert put(board, work, whole(past_of(board, work, STEPS))).status_code == 422
    assert stored(farm) == before, "what was refused is gone"
    send(board, work, 3)
    newest = send(board, work, 5)
    send(board, work, 4)
    assert stored(farm) - before == {f"sha256:{hashlib.sha256(newest).hexdigest()}"}, "the run's own is there, alone"
    expire_lease(farm, run["id"])
    again = leased(farm.board(name="second"))
    assert put(board, work, whole(past_of(board, work, 6))).status_code == 409
    weights = board.put_weights(work, b"late", f"sha256:{hashlib.sha256(b'late').hexdigest()}")
    assert (weights.status_code, again.attempt) == (409, 2)
    assert stored(farm) - before == {f"sha256:{hashlib.sha256(newest).hexdigest()}"}


def test_what_cannot_count_is_refused_before_it_is_received(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    board = farm.board()
    run = farm.run(**asked(farm))
    work = leased(board)
    limit = {"quotas": {"storage_bytes": 1}}
    received: list[str] = []
    monkeypatch.setattr(farm.farm.storage, "put", lambda *_, **__: received.append("a file"))
    assert farm.http.patch(f"/organisations/{farm.organisation_id}", json=limit).status_code == 200
    assert put(board, work, whole(past_of(board, work, 10))).json()["code"] == "quota.storage_bytes"
    assert farm.http.post(f"/runs/{run['id']}/cancel").status_code < 300
    assert board.report(work, p.Outcome("cancelled")).status_code == 200
    weights = b"too late"
    answer = board.put_weights(work, weights, f"sha256:{hashlib.sha256(weights).hexdigest()}")
    assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale")
    assert received == []
