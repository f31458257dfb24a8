"""POST /runs and /datasets: what does not fit is refused before a device sees it."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.farms import TestFarm, npz, open_test_farm

X = np.zeros((4, 1, 8, 8), np.float32)
Y = np.zeros(4, np.int64)


def with_value(value: float) -> Any:
    broken = X.copy()
    broken[2, 0, 3, 1] = value
    return broken


# ------------------------------------------------------------------------------------------------------- data sets


def test_dataset_is_described_and_named_by_digest(farm: TestFarm) -> None:
    data = npz(x=X, y=Y)
    answers = [farm.http.post("/datasets", files={"file": ("digits.npz", data)}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    body = answers[0].json()
    assert answers[1].json() == body
    assert (body["name"], body["samples"], body["size_bytes"]) == ("digits", 4, len(data))
    range_ = {"low": 0.0, "high": 0.0, "is_whole": True}
    assert body["arrays"] == {
        "x": {"dtype": "float32", "shape": [4, 1, 8, 8], **range_},
        "y": {"dtype": "int64", "shape": [4], **range_},
    }
    assert farm.http.get(answers[0].headers["location"]).json() | {"warnings": []} == body
    assert farm.http.get(f"/datasets/{body['digest']}/download").content == data
    assert len(farm.http.get("/datasets").json()["items"]) == 1


@pytest.mark.parametrize(
    ("arrays", "code", "where"),
    [
        ({"x": with_value(np.nan), "y": Y}, "data.not-finite", "x"),
        ({"x": with_value(-np.inf), "y": Y}, "data.not-finite", "x"),
        ({"x": X, "y": Y[:3]}, "data.samples", "dataset"),
        ({"y": Y}, "data.arrays", "dataset"),
        ({"x": X[:0], "y": Y[:0]}, "data.shape", "x"),
        ({"x": X.astype(np.complex64), "y": Y}, "data.dtype", "x"),
        ({"x": X.astype(">f4"), "y": Y}, "data.dtype", "x"),
        ({"x": np.asfortranarray(np.zeros((4, 3), np.float32)), "y": Y}, "data.layout", "x"),
        ({"x": np.array(["a", "b"]), "y": Y[:2]}, "data.dtype", "x"),
        ({"x": np.float32(1), "y": Y}, "data.shape", "x"),
    ],
)
def test_unusable_data_is_refused_with_the_array_named(
    small_farm: TestFarm, arrays: dict[str, Any], code: str, where: str
) -> None:
    answer = small_farm.send_dataset(**arrays)
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, code, where)
    assert not list((small_farm.farm.settings.state / "files" / "sha256").glob("*/*"))  # nothing of it is kept


def test_place_of_a_nan_is_told(small_farm: TestFarm) -> None:
    assert "[2, 0, 3, 1]" in small_farm.send_dataset(x=with_value(np.nan), y=Y).json()["detail"]


def zipped(**entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name.replace("_dot_", "."), data)
    return stream.getvalue()


def npy(shape: tuple[int, ...], data: bytes, descr: str = "<f4") -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "data",
    [
        b"not a zip",
        npz(x=X, y=Y)[:-30],
        zipped(x_dot_npy=b"short", y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(x_dot_txt=b"text", y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(x_dot_npy=npy((1,), b"\0" * 3), y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(x_dot_npy=npy((1,), b"\0" * 5), y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(x_dot_npy=npy((1,), b"\0" * 8, "|O"), y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(x_dot_npy=npy((-1,), b"\0" * 8), y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(x_dot_npy=b"\x93NUMPY\x01\x00\x10\x00__import__('os')", y_dot_npy=npy((1,), b"\0" * 8, "<i8")),
        zipped(),
    ],
    ids=[
        "no zip",
        "cut",
        "short array",
        "no array",
        "three bytes",
        "five bytes",
        "objects",
        "negative",
        "code",
        "empty",
    ],
)
def test_malformed_archives_are_refused(small_farm: TestFarm, data: bytes) -> None:
    answer = small_farm.http.post("/datasets", files={"file": ("d.npz", data)})
    assert answer.status_code == 422
    assert answer.json()["code"].startswith("data.")


def test_declared_sizes_are_bounded_before_they_are_read(tmp_path: Path, sqlite_url: str) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, dataset_unpacked_limit_bytes=1 << 20) as farm:
        huge = zipped(x_dot_npy=npy((1 << 40, 1 << 20), b""), y_dot_npy=b"")
        bomb = zipped(x_dot_npy=npy((1 << 19,), b"\0" * (1 << 21)), y_dot_npy=b"")
        for data in (huge, bomb):
            answer = farm.http.post("/datasets", files={"file": ("d.npz", data)})
            assert (answer.status_code, answer.json()["code"]) == (422, "limits.dataset-unpacked")


# ------------------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize(
    ("arrays", "code", "where"),
    [
        ({"x": np.zeros((4, 1, 8, 9), np.float32), "y": Y}, "data.shape", "dataset.x"),
        ({"x": np.zeros((4, 64), np.float32), "y": Y}, "data.shape", "dataset.x"),
        ({"x": X.astype(np.uint8), "y": Y}, "data.dtype", "dataset.x"),
        ({"z": X, "y": Y}, "data.arrays", "dataset.input"),
        ({"x": X, "y": Y.astype(np.float32)}, "data.dtype", "dataset.y"),
        ({"x": X, "y": np.zeros((4, 2), np.int64)}, "data.shape", "dataset.y"),
        ({"x": X}, "data.arrays", "dataset.y"),
    ],
)
def test_data_that_does_not_fit_the_bundle_is_refused(
    small_farm: TestFarm, arrays: dict[str, Any], code: str, where: str
) -> None:
    dataset = small_farm.send_dataset(**arrays).json()["digest"]
    answer = small_farm.http.post("/runs", json={"bundle": small_farm.bundle(), "mode": "train", "dataset": dataset})
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (422, code, where)


def test_inputs_by_their_own_name_fit(small_farm: TestFarm) -> None:
    dataset = small_farm.send_dataset(input=X, y=Y.astype(np.int32)).json()["digest"]
    assert small_farm.run(bundle=small_farm.bundle(), mode="eval", dataset=dataset)["steps"] == 0


BOXES = {"name": "boxes", "dtype": "f32", "shape": [8, 4]}


@pytest.mark.parametrize(
    ("labels", "arrays", "where"),
    [
        ([], {"x": X}, ""),
        ([], {"x": X, "y": Y}, ""),
        ([BOXES], {"x": X, "boxes": np.zeros((4, 4), np.float32)}, ""),
        ([BOXES], {"x": X, "y": Y}, "dataset.boxes"),
        ([BOXES], {"x": X, "boxes": np.zeros((4, 3), np.float32)}, "dataset.boxes"),
        ([{**BOXES, "name": "input"}], {"input": np.zeros((4, 4), np.float32), "input.input": X}, ""),
    ],
)
def test_labels_are_the_arrays_that_the_bundle_lists(
    small_farm: TestFarm, labels: list[object], arrays: dict[str, Any], where: str
) -> None:
    """None, where the model has its own loss; or by their names."""
    dataset = small_farm.send_dataset(**arrays).json()["digest"]
    bundle = small_farm.bundle(fields={"labels": labels})
    answer = small_farm.http.post("/runs", json={"bundle": bundle, "mode": "train", "dataset": dataset})
    assert (answer.status_code, answer.json()["where"] or "") == (422 if where else 202, where), answer.text


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"mode": "train"}, 422, "run.dataset"),
        ({"mode": "eval"}, 422, "run.dataset"),
        ({"target": "raspberry-pi-4"}, 422, "run.target"),
        ({"threads": 3}, 422, "run.threads"),
        ({"device": "dev_none"}, 404, "device.unknown"),
        ({"dataset": "sha256:" + "0" * 64}, 404, "dataset.unknown"),
        ({"weights": "sha256:" + "0" * 64}, 404, "weights.unknown"),
        ({"bundle": "sha256:" + "0" * 64}, 404, "bundle.unknown"),
        ({"bundle": "latest"}, 422, "request.invalid"),
        ({"mode": "dance"}, 422, "request.invalid"),
        ({"steps": -1}, 422, "request.invalid"),
        ({"learning_rate": "NaN"}, 422, "request.invalid"),
        ({"colour": "red"}, 422, "request.invalid"),
    ],
)
def test_bad_runs_are_refused(small_farm: TestFarm, body: dict[str, Any], status: int, code: str) -> None:
    answer = small_farm.http.post("/runs", json={"bundle": small_farm.bundle()} | body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_device_that_can_never_run_it_is_refused_at_once(small_farm: TestFarm) -> None:
    pi = small_farm.board(name="pi", targets=("raspberry-pi-4",), features=("asimd",))
    old = small_farm.board(name="old", features=("avx2",))
    bundle = small_farm.bundle()
    for board, code in ((pi, "device.target"), (old, "device.features")):
        answer = small_farm.http.post("/runs", json={"bundle": bundle, "device": board.device_id})
        assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_weights_of_another_model_are_refused(small_farm: TestFarm) -> None:
    from device_agents.wire import Blob
    from service.base.identifiers import digest_of

    first, dataset, board = small_farm.bundle(b"one"), small_farm.dataset(), small_farm.board()
    small_farm.run(bundle=first, mode="train", dataset=dataset)
    work = board.lease()
    assert work is not None
    board.put_weights(work, b"w", digest_of(b"w"))
    board.report(work, weights=Blob(digest_of(b"w"), 1))
    other = small_farm.http.post("/runs", json={"bundle": small_farm.bundle(b"two"), "weights": digest_of(b"w")})
    assert (other.status_code, other.json()["code"]) == (422, "weights.model")


def test_weights_of_another_form_of_the_model_are_refused(small_farm: TestFarm) -> None:
    """A folded norm is in the convolution's weight; with frozen norms that weight would be scaled twice."""
    from device_agents.wire import Blob
    from service.base.identifiers import digest_of

    first, dataset, board = small_farm.bundle(b"one"), small_farm.dataset(), small_farm.board()
    small_farm.run(bundle=first, mode="train", dataset=dataset)
    work = board.lease()
    assert work is not None
    board.put_weights(work, b"w", digest_of(b"w"))
    board.report(work, weights=Blob(digest_of(b"w"), 1))
    for spec, status in (("batch_norm: frozen", 422), ("batch: 4", 202)):
        job = small_farm.compile(b"one", spec=spec).json()
        made = small_farm.work_off(job["id"], model=job["model"]["digest"], spec=spec)
        answer = small_farm.http.post("/runs", json={"bundle": made, "weights": digest_of(b"w")})
        assert answer.status_code == status, answer.text
        assert status == 202 or (answer.json()["code"], "frozen" in answer.json()["detail"]) == ("weights.form", True)


def test_idempotent_runs_quota_and_filters(tmp_path: Path, database_url: str) -> None:
    with open_test_farm(tmp_path / "s", database_url, open_runs_per_key=2) as farm:
        bundle = farm.bundle()
        key = {"Idempotency-Key": '"one"'}
        twice = [farm.http.post("/runs", json={"bundle": bundle}, headers=key) for _ in range(2)]
        assert twice[0].json()["id"] == twice[1].json()["id"]
        assert farm.http.post("/runs", json={"bundle": bundle, "seed": 1}, headers=key).status_code == 422
        second = farm.run(bundle=bundle, seed=1)
        assert farm.http.post("/runs", json={"bundle": bundle}).status_code == 429
        farm.http.post(f"/runs/{second['id']}/cancel")
        for query, count in (
            ("", 2),
            ("state=queued", 1),
            ("state=cancelled", 1),
            ("mode=train", 0),
            ("model=net", 2),
            ("model=other", 0),
            ("target=x86-64-v3", 2),
            (f"bundle={bundle}", 2),
        ):
            assert len(farm.http.get(f"/runs?{query}").json()["items"]) == count, query


def test_report_and_weights_of_an_unfinished_run(small_farm: TestFarm) -> None:
    run = small_farm.run(bundle=small_farm.bundle())
    report = small_farm.http.get(f"/runs/{run['id']}/report")
    assert (report.status_code, report.json()["code"]) == (409, "run.open")
    assert small_farm.http.get(f"/runs/{run['id']}/weights").json()["code"] == "run.no-weights"
    small_farm.http.post(f"/runs/{run['id']}/cancel")
    assert small_farm.http.get(f"/runs/{run['id']}/report").json()["code"] == "run.no-report"


def test_a_warm_up_that_a_run_does_not_come_out_of_is_told(farm: TestFarm) -> None:
    """When it is sent."""
    asked = {"bundle": farm.bundle(), "dataset": farm.dataset(), "mode": "train", "steps": 5}
    answers = [farm.run(**asked, warmup_steps=count)["warnings"] for count in (4, 5)]
    assert ["run.only-warmup" in [warning["code"] for warning in answer] for answer in answers] == [False, True]
