"""Files in pieces: gone on with after any cut, within limits, and known by digest to nobody but their sender."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import update
from starlette.requests import ClientDisconnect

from service.artefacts.uploads import receiving
from service.artefacts.uploads.ranges import Span
from service.base.identifiers import new_id
from service.store.database.models import Upload
from tests.service.farms import TestFarm, npz, open_test_farm
from tests.service.stores import s3_store

DATA = bytes(range(256)) * 8_000
SIZE = len(DATA)


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


DIGEST = digest_of(DATA)


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty store of each kind."""
    if request.param == "file":
        yield f"file://{tmp_path / 'files'}"
        return
    with s3_store() as url:
        yield url


@pytest.fixture
def farm(database_url: str, store: str, tmp_path: Path) -> Iterator[TestFarm]:
    """A farm on each kind of database with each kind of store."""
    with open_test_farm(tmp_path / "state", database_url, storage_url=store) as opened:
        yield opened


def begin(farm: TestFarm, data: bytes = DATA, kind: str = "model", **body: Any) -> httpx.Response:
    return farm.http.post("/uploads", json={"kind": kind, "size_bytes": len(data), **body})


def path_of(answer: httpx.Response) -> str:
    assert answer.status_code == 202, answer.text
    return str(answer.headers["location"])


def piece(farm: TestFarm, path: str, start: int, data: bytes, **headers: str) -> httpx.Response:
    span = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/*"}
    return farm.http.patch(path, content=data, headers={**span, **headers})


def finish(farm: TestFarm, path: str, digest: str = DIGEST, **headers: str) -> httpx.Response:
    return farm.http.put(path, params={"digest": digest}, headers=headers)


def send(farm: TestFarm, data: bytes, kind: str = "model") -> str:
    path = path_of(begin(farm, data, kind))
    assert piece(farm, path, 0, data).status_code == 202
    assert finish(farm, path, digest_of(data)).status_code == 201
    return digest_of(data)


def test_a_file_in_pieces_is_there_by_its_digest(farm: TestFarm) -> None:
    begun = begin(farm)
    path = path_of(begun)
    assert (begun.json()["state"], begun.headers["upload-offset"]) == ("open", "0")
    assert farm.http.head(f"/files/{DIGEST}").status_code == 404
    at = 0
    for size in (1, 700_000, 5, SIZE - 700_006):
        answer = piece(farm, path, at, DATA[at : at + size])
        at += size
        assert (answer.status_code, answer.headers["upload-offset"]) == (202, str(at)), answer.text
        assert answer.headers["range"] == f"bytes=0-{at - 1}"
        assert farm.http.head(path).headers["upload-offset"] == str(at)
        assert farm.http.get(path).json()["received_bytes"] == at
    for _ in range(2):  # the answer to the first may have been lost
        done = finish(farm, path)
        assert (done.status_code, done.json()["state"], done.json()["digest"]) == (201, "finished", DIGEST)
    assert farm.http.head(f"/files/{DIGEST}").headers["upload-length"] == str(SIZE)
    assert list(farm.farm.storage.growing()) == []
    job = farm.http.post(
        "/compile", data={"model": DIGEST, "plan": "full", "target": "x86-64-v3", "name": "net"}
    ).json()
    assert job["model"] == {"name": "net", "digest": DIGEST, "size_bytes": SIZE}


def test_a_piece_must_go_on_where_the_upload_stands(small_farm: TestFarm) -> None:
    path = path_of(begin(small_farm))
    piece(small_farm, path, 0, DATA[:1000])
    for start in (0, 999, 1001, 5000):
        answer = piece(small_farm, path, start, b"x" * 100)
        assert (answer.status_code, answer.json()["code"]) == (416, "upload.offset")
        assert answer.headers["upload-offset"] == "1000"
    assert piece(small_farm, path, 1000, DATA[1000:]).status_code == 202


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "missing"),
        ("bytes 0-", "missing"),
        ("bytes */100", "missing"),
        ("items 0-9/10", "missing"),
        ("bytes 5-4/*", "bytes 5 to 4"),
        (f"bytes 0-{SIZE}/*", f"of a file of {SIZE}"),
        (f"bytes 0-9/{SIZE - 1}", f"the upload is of {SIZE}"),
        ("bytes 0-8/*", "more bytes than it says"),
        ("bytes 0-10/*", "ends at byte 10"),
    ],
)
def test_a_wrong_range_is_refused(small_farm: TestFarm, text: str | None, message: str) -> None:
    path = path_of(begin(small_farm))
    answer = small_farm.http.patch(path, content=b"0123456789", headers={"Content-Range": text} if text else {})
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, "upload.range", "Content-Range")
    assert message in answer.json()["detail"]


def test_a_finished_upload_takes_no_more_and_an_open_one_is_not_finished(small_farm: TestFarm) -> None:
    path = path_of(begin(small_farm))
    piece(small_farm, path, 0, DATA[:1000])
    early = finish(small_farm, path)
    assert (early.status_code, early.json()["code"], early.headers["upload-offset"]) == (
        409,
        "upload.incomplete",
        "1000",
    )
    piece(small_farm, path, 1000, DATA[1000:])
    assert finish(small_farm, path).status_code == 201
    assert piece(small_farm, path, 0, DATA[:10]).json()["code"] == "upload.finished"
    other = finish(small_farm, path, "sha256:" + "0" * 64)
    assert (other.status_code, other.json()["code"]) == (409, "upload.finished")


def test_other_bytes_than_the_digest_says_are_forgotten(farm: TestFarm) -> None:
    path = path_of(begin(farm))
    piece(farm, path, 0, b"x" * SIZE)
    answer = finish(farm, path)
    assert (answer.status_code, answer.json()["code"]) == (422, "upload.digest")
    assert farm.http.get(path).status_code == 404
    assert list(farm.farm.storage.growing()) == []
    assert farm.farm.storage.size(DIGEST) is None


def test_the_same_file_again_is_the_same_upload(small_farm: TestFarm) -> None:
    path = path_of(begin(small_farm, digest=DIGEST))
    piece(small_farm, path, 0, DATA[:1000])
    again = begin(small_farm, digest=DIGEST)
    assert (path_of(again), again.json()["received_bytes"]) == (path, 1000)
    assert path_of(begin(small_farm, digest="sha256:" + "0" * 64)) != path
    assert path_of(begin(small_farm)) != path
    foreign = small_farm.http.post(
        "/uploads", json={"kind": "model", "size_bytes": SIZE, "digest": DIGEST}, headers=small_farm.key()
    )
    assert path_of(foreign) != path


def test_an_upload_is_its_organisations_alone(farm: TestFarm) -> None:
    """Another's upload is answered as one that never was."""
    path = path_of(begin(farm))
    piece(farm, path, 0, DATA)
    other, nothing = farm.tenant("acme"), "/uploads/" + new_id("upl")

    def answers(path: str) -> list[tuple[int, str]]:
        got = [
            other.http.get(path),
            other.http.head(path),
            piece(other, path, 0, DATA),
            finish(other, path),
            other.http.delete(path),
        ]
        return [(one.status_code, one.text.replace(path.rpartition("/")[2], "NAME")) for one in got]

    assert answers(path) == answers(nothing)
    assert {status for status, _ in answers(path)} == {404}
    colleague = farm.key()
    assert farm.http.get(path, headers=colleague).json()["received_bytes"] == SIZE


def test_a_digest_grants_nothing_to_who_did_not_send_the_bytes(small_farm: TestFarm) -> None:
    """Another organisation gets the same answers about a file that is there as about one that is not."""
    model = send(small_farm, DATA)
    data = send(small_farm, b"weights", "data")
    array = npz(x=np.zeros((2, 3), np.float32), y=np.zeros(2, np.int64))
    dataset = send(small_farm, array, "dataset")
    other, nothing = small_farm.tenant("acme"), "sha256:" + "0" * 64

    def answers(model: str, data: str, dataset: str) -> list[tuple[int, str]]:
        form = {"plan": "full", "target": "x86-64-v3"}
        external = json.dumps({"w.bin": data})
        got = [
            other.http.head(f"/files/{model}"),
            other.http.get(f"/files/{model}"),
            other.http.post("/compile", data={**form, "model": model}),
            other.http.post("/compile", data={**form, "external": external}, files={"model": b"m"}),
            other.http.post("/datasets", data={"file": dataset}),
        ]
        texts = [one.text.replace(model, "*").replace(data, "*").replace(dataset, "*") for one in got]
        return [(one.status_code, text) for one, text in zip(got, texts, strict=True)]

    assert answers(model, data, dataset) == answers(nothing, nothing, nothing)
    assert [status for status, _ in answers(model, data, dataset)] == [404] * 5
    for body, kind in ((DATA, "model"), (b"weights", "data"), (array, "dataset")):  # and has it once it has sent them
        assert send(other, body, kind) in (model, data, dataset)
    assert [status for status, _ in answers(model, data, dataset)] == [200, 200, 202, 202, 201]


def test_what_came_in_a_form_may_be_named_by_its_digest(small_farm: TestFarm) -> None:
    job = small_farm.compile(b"a model").json()
    assert small_farm.http.head(f"/files/{digest_of(b'a model')}").status_code == 200
    again = small_farm.http.post(
        "/compile", data={"model": job["model"]["digest"], "plan": "full", "target": "x86-64-v3"}
    )
    assert again.json()["id"] == job["id"]
    assert small_farm.tenant("acme").http.head(f"/files/{digest_of(b'a model')}").status_code == 404


def test_a_data_set_may_be_an_upload(farm: TestFarm) -> None:
    array = npz(x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    digest = send(farm, array, "dataset")
    for form in ({"file": digest, "name": "mine"}, {"file": digest}):
        answer = farm.http.post("/datasets", data=form)
        assert answer.status_code == 201, answer.text
        assert (answer.json()["digest"], answer.json()["samples"], answer.json()["name"]) == (digest, 4, "mine")
    bad = send(farm, b"no npz at all", "dataset")
    assert farm.http.post("/datasets", data={"file": bad}).json()["code"] == "data.invalid"
    assert farm.http.post("/datasets", data={"file": "x"}).json()["where"] == "file"


@pytest.mark.parametrize(("kind", "limit"), [("model", 100), ("data", 200), ("dataset", 300)])
def test_each_kind_has_its_limit(tmp_path: Path, sqlite_url: str, kind: str, limit: int) -> None:
    limits = {"model_limit_bytes": 100, "external_limit_bytes": 200, "dataset_limit_bytes": 300}
    with open_test_farm(tmp_path / "s", sqlite_url, **limits) as farm:
        assert begin(farm, b"x" * limit, kind).status_code == 202
        answer = begin(farm, b"x" * (limit + 1), kind)
        assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (
            413,
            "limits.upload",
            "size_bytes",
        )


def test_a_key_has_so_many_uploads_and_bytes_under_way(tmp_path: Path, database_url: str) -> None:
    with open_test_farm(tmp_path / "s", database_url, open_uploads_per_key=3, open_upload_bytes_per_key=1000) as farm:
        assert begin(farm, b"x" * 600).status_code == 202
        answer = begin(farm, b"x" * 401)
        assert (answer.status_code, answer.json()["code"]) == (429, "limits.open-upload-bytes")
        assert answer.headers["retry-after"]
        path = path_of(begin(farm, b"x" * 100))
        assert begin(farm, b"x" * 100).status_code == 202
        assert begin(farm, b"x").json()["code"] == "limits.open-uploads"
        assert farm.http.post("/uploads", json={"kind": "data", "size_bytes": 9}, headers=farm.key()).status_code == 202
        assert farm.http.delete(path).status_code == 204
        assert begin(farm, b"x").status_code == 202


def test_room_is_looked_for_before_the_first_byte(tmp_path: Path, sqlite_url: str) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url) as farm:
        free = farm.farm.storage.free_bytes()
        assert free is not None
    with open_test_farm(tmp_path / "s", sqlite_url, disk_reserve_bytes=free - (1 << 30)) as farm:
        answer = begin(farm, kind="data", size_bytes=4 << 30)
        assert (answer.status_code, answer.json()["code"]) == (507, "infra.disk-full")
        assert begin(farm, kind="data", size_bytes=600 << 20).status_code == 202
        assert begin(farm, kind="data", size_bytes=600 << 20).status_code == 202, "nothing has come of the first"


def test_an_upload_that_stands_still_is_forgotten(farm: TestFarm) -> None:
    path = path_of(begin(farm))
    piece(farm, path, 0, DATA[:1000])
    done = send(farm, b"finished")
    farm.sweep()
    assert farm.http.get(path).status_code == 200
    with farm.farm.database.transaction() as session:
        session.execute(update(Upload).values(expires_at=time.time() - 1))
    farm.sweep()
    assert farm.http.get(path).status_code == 404
    assert list(farm.farm.storage.growing()) == []
    assert farm.http.head(f"/files/{done}").status_code == 200


def test_of_two_that_go_on_with_an_upload_one_is_told(small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender was cut off and came back while its first request was still being written."""
    path = path_of(begin(small_farm))
    append = small_farm.farm.storage.append

    def overtaken(name: str, data: bytes | bytearray, *, at_bytes: int, reserve_bytes: int) -> None:
        monkeypatch.setattr(small_farm.farm.storage, "append", append)
        assert piece(small_farm, path, 0, DATA[:500]).status_code == 202
        append(name, data, at_bytes=at_bytes, reserve_bytes=reserve_bytes)

    monkeypatch.setattr(small_farm.farm.storage, "append", overtaken)
    answer = piece(small_farm, path, 0, DATA[:1000])
    assert (answer.status_code, answer.json()["code"]) == (409, "upload.elsewhere")
    assert piece(small_farm, path, 500, DATA[500:]).status_code == 202
    assert finish(small_farm, path).status_code == 201


def test_a_file_adopted_by_a_request_that_died_is_finished_by_the_next(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(begin(farm))
    piece(farm, path, 0, DATA)
    farm.farm.storage.adopt(path.rpartition("/")[2], size_bytes=SIZE, digest=DIGEST)
    assert finish(farm, path).status_code == 201
    lost = path_of(begin(farm, b"lost"))
    piece(farm, lost, 0, b"lost")
    farm.farm.storage.discard(lost.rpartition("/")[2])
    answer = finish(farm, lost, digest_of(b"lost"))
    assert (answer.status_code, answer.json()["code"], answer.json()["cause"]) == (409, "upload.lost", "infra")


async def in_chunks(size: int, *, until: int = SIZE) -> AsyncIterator[bytes]:
    for at in range(0, until, size):
        yield DATA[at : min(at + size, until)]
    if until < SIZE:
        raise ClientDisconnect


def receive(farm: TestFarm, path: str, body: AsyncIterator[bytes]) -> int:
    span = Span(0, SIZE)
    return asyncio.run(receiving.receive(body, farm.farm, path.rpartition("/")[2], span))


def test_what_came_before_a_full_disk_is_kept(small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "HELD_BYTES", 1 << 16)
    path = path_of(begin(small_farm))
    append, room = small_farm.farm.storage.append, [3]

    def filling(name: str, data: bytes | bytearray, *, at_bytes: int, reserve_bytes: int) -> None:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        room[0] -= 1
        append(name, data, at_bytes=at_bytes, reserve_bytes=reserve_bytes)

    monkeypatch.setattr(small_farm.farm.storage, "append", filling)
    with pytest.raises(OSError, match="No space"):
        receive(small_farm, path, in_chunks(1 << 16))
    assert small_farm.http.get(path).json()["received_bytes"] == 3 << 16
    assert receiving.ALL_HELD.total_bytes == 0
    answer = piece(small_farm, path, 3 << 16, DATA[3 << 16 :])
    assert (answer.status_code, answer.json()["code"]) == (507, "infra.disk-full")
    room[0] = 100
    assert piece(small_farm, path, 3 << 16, DATA[3 << 16 :]).status_code == 202
    assert finish(small_farm, path).status_code == 201


@pytest.mark.parametrize("until", [0, 1, 100_000, SIZE - 1])
def test_what_came_before_a_cut_is_kept(small_farm: TestFarm, until: int) -> None:
    path = path_of(begin(small_farm))
    assert receive(small_farm, path, in_chunks(9_999, until=until)) == until
    assert small_farm.http.head(path).headers["upload-offset"] == str(until)
    assert piece(small_farm, path, until, DATA[until:]).status_code == 202
    assert finish(small_farm, path).status_code == 201


def test_a_request_holds_a_bounded_part_and_less_when_many_send(
    small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    append = small_farm.farm.storage.append

    def noted(name: str, data: bytes | bytearray, *, at_bytes: int, reserve_bytes: int) -> None:
        sizes.append(len(data))
        append(name, data, at_bytes=at_bytes, reserve_bytes=reserve_bytes)

    monkeypatch.setattr(small_farm.farm.storage, "append", noted)
    monkeypatch.setattr(receiving, "HELD_BYTES", 1 << 19)
    receive(small_farm, path_of(begin(small_farm)), in_chunks(1 << 16))
    assert (max(sizes), sum(sizes)) == (1 << 19, SIZE)
    sizes.clear()
    monkeypatch.setattr(receiving, "TOTAL_BYTES", 1 << 18)
    receive(small_farm, path_of(begin(small_farm)), in_chunks(1 << 16))
    assert (max(sizes), sum(sizes)) == (1 << 18, SIZE)


def test_a_stream_that_is_put_and_an_upload_are_the_same_file(farm: TestFarm) -> None:
    farm.farm.storage.put(io.BytesIO(DATA), limit_bytes=SIZE)
    assert farm.http.head(f"/files/{DIGEST}").status_code == 404
    assert send(farm, DATA) == DIGEST
    assert farm.http.head(f"/files/{DIGEST}").status_code == 200
