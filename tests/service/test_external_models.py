"""POST /compile of a model with data files: kept by digest, part of the job's identity, refused by name and limit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from compiler.external import Listing
from tests.service.farms import TestFarm, open_test_farm

MODEL = b"an onnx file"
DATA = {"model.data": b"d" * 1000, "more/b.bin": b"e" * 10}


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def named(data: Mapping[str, bytes]) -> str:
    return json.dumps({location: digest(held) for location, held in data.items()})


def send(farm: TestFarm, external: str, *sent: bytes, model: object = MODEL, **fields: object) -> httpx.Response:
    files = [("data", (f"file{number}", one)) for number, one in enumerate(sent)]
    form = {"plan": "full", "target": "x86-64-v3", **({"external": external} if external else {}), **fields}
    if isinstance(model, bytes):
        files.append(("model", ("net.onnx", model)))
    else:
        form["model"] = model
    return farm.http.post("/compile", data=form, files=files)


def test_the_data_is_part_of_the_models_identity(small_farm: TestFarm) -> None:
    first = send(small_farm, named(DATA), *DATA.values())
    assert first.status_code == 202, first.text
    job = first.json()
    listing = Listing(digest(MODEL), {location: digest(held) for location, held in DATA.items()})
    assert job["model"] == {"name": "net", "digest": listing.digest, "size_bytes": len(MODEL) + 1010}
    again = send(small_farm, named(dict(reversed(DATA.items()))), *reversed(DATA.values()))
    assert again.json()["id"] == job["id"]
    other = {**DATA, "model.data": b"f" * 1000}
    changed = send(small_farm, named(other), *other.values()).json()
    assert changed["id"] != job["id"]
    assert changed["model"]["digest"] != job["model"]["digest"]
    moved = {"other.data": DATA["model.data"], "more/b.bin": DATA["more/b.bin"]}
    assert send(small_farm, named(moved)).json()["id"] not in (job["id"], changed["id"])
    assert small_farm.compile(MODEL).json()["model"]["digest"] == digest(MODEL)


def test_what_was_sent_before_is_not_sent_again(small_farm: TestFarm) -> None:
    missing = send(small_farm, named(DATA))
    assert (missing.status_code, missing.json()["code"]) == (404, "model.external-missing")
    assert "'model.data'" in missing.json()["detail"]
    job = send(small_farm, named(DATA), *DATA.values()).json()
    assert send(small_farm, named(DATA)).json()["id"] == job["id"]
    by_digest = send(small_farm, named(DATA), model=digest(MODEL))
    assert by_digest.json()["model"]["digest"] == job["model"]["digest"]
    whole = send(small_farm, "", model=job["model"]["digest"])
    assert (whole.status_code, whole.json()["id"]) == (202, job["id"])


LONG = json.dumps({f"{number}.bin": digest(b"") for number in range(65)})


@pytest.mark.parametrize(
    ("external", "sent", "status", "code", "message"),
    [
        (named(DATA), (DATA["model.data"], b"damaged"), 422, "upload.digest", "'file1'"),
        (named(DATA), (DATA["model.data"],), 404, "model.external-missing", "'more/b.bin'"),
        ("", (b"d",), 422, "external.invalid", "where they belong"),
        ("model.data", (b"d",), 422, "external.invalid", "JSON"),
        ("{}", (b"d",), 422, "external.invalid", "mapping"),
        ('["a"]', (), 422, "external.invalid", "mapping"),
        ('{"../a": "sha256:' + "0" * 64 + '"}', (), 422, "external.invalid", "'../a'"),
        ('{"/etc/passwd": "sha256:' + "0" * 64 + '"}', (), 422, "external.invalid", "plain path"),
        ('{"a": "sha256:0"}', (), 422, "external.invalid", "the digest of 'a'"),
        ('{"a": 1}', (), 422, "external.invalid", "the digest of 'a'"),
        (LONG, (), 422, "external.invalid", "65 data files, the limit is 64"),
        (named(DATA), (b"",), 422, "upload.empty", "0 bytes"),
    ],
)
def test_wrong_data_is_refused(
    small_farm: TestFarm, external: str, sent: tuple[bytes, ...], status: int, code: str, message: str
) -> None:
    answer = send(small_farm, external, *sent)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert message in problem["detail"]
    assert code == "upload.empty" or problem["hint"]


def test_the_limit_holds_for_all_data_files_together(tmp_path: Path, sqlite_url: str) -> None:
    limits = {"external_limit_bytes": 1000, "model_limit_bytes": 1 << 20}
    with open_test_farm(tmp_path / "state", sqlite_url, **limits) as farm:
        two = {"a": b"a" * 600, "b": b"b" * 600}
        answer = send(farm, named(two), *two.values())
        assert (answer.status_code, answer.json()["code"]) == (413, "limits.upload")
        for location, held in two.items():
            assert send(farm, named({location: held}), held).status_code == 202
        answer = send(farm, named(two))  # each was taken, and both are too much
        assert (answer.status_code, answer.json()["code"]) == (413, "limits.upload")
        answer = send(farm, named({"c": b"c" * (2 << 20)}), b"c" * (2 << 20))
        assert (answer.status_code, answer.json()["code"]) == (413, "limits.body")
