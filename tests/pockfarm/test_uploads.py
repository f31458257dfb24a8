"""Large files through broken connections: a real farm, a link that cuts, and a client that goes on by itself."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from pockfarm.client import Client
from pockfarm.client.synchronous import uploads
from pockfarm.errors import Refused, Unreachable
from tests.agents.live_farm import LiveFarm, live_farm
from tests.pockfarm.test_client import external_model
from tests.service.cutting import cutting_link

pytestmark = pytest.mark.usefixtures("loopback")
MIB = 1 << 20


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as farm:
        yield farm


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(uploads, "LONGEST_PAUSE_S", 0.1)


def client(live: LiveFarm, port: int | None = None) -> Client:
    key = live.http.headers["Authorization"].removeprefix("Bearer ")
    return Client(live.url if port is None else f"http://127.0.0.1:{port}", key)


def port_of(live: LiveFarm) -> int:
    return int(live.url.rpartition(":")[2])


def sending(farm: Client, data: bytes) -> uploads.Sending:
    return uploads.Sending(farm._http, io.BytesIO(data), "model", "net.onnx")


def test_a_file_comes_whole_through_ten_cuts(live: LiveFarm, caplog: pytest.LogCaptureFixture) -> None:
    data = os.urandom(48 * MIB)
    cuts = [MIB, 5 * MIB, 100, 9 * MIB + 7, 3 * MIB, 65_536, 2 * MIB, 6 * MIB, 1, 4 * MIB]
    with cutting_link(port_of(live), cuts) as link, client(live, link.port) as farm:
        digest = sending(farm, data).send()
    assert (link.made, link.cuts) == (10, [])
    assert digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert b"".join(live.farm.storage.read(digest)) == data
    assert "net.onnx: cut off after" in caplog.text
    assert "trying again in" in caplog.text


def test_what_was_confirmed_is_not_sent_again(live: LiveFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through ten cuts, each piece begins where the farm has got to, and never before."""
    begun: list[int] = []
    read = uploads._chunks

    def noted(stream: io.BytesIO, start: int, end: int | None) -> Iterator[bytes]:
        if end is not None:
            begun.append(start)
        return read(stream, start, end)

    monkeypatch.setattr(uploads, "_chunks", noted)
    data = os.urandom(64 * MIB)
    with cutting_link(port_of(live), [5 * MIB] * 10) as link, client(live, link.port) as farm:
        sending(farm, data).send()
    assert link.made == 10
    assert begun == sorted(begun)
    assert len(set(begun)) >= 5, "a cut after 5 MiB leaves the farm further on, most of the time"


def test_a_later_call_goes_on_and_a_third_sends_nothing(
    live: LiveFarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = os.urandom(20 * MIB)
    with client(live) as farm:
        first = sending(farm, data)
        first.digest, first.size_bytes = uploads.digest_of(first.stream), len(data)
        first._send_piece(f"/uploads/{first._begin()['id']}", 0)
        monkeypatch.setattr(uploads, "PIECE_BYTES", 8 * MIB)
        other = os.urandom(20 * MIB)
        half = sending(farm, other)
        half.digest, half.size_bytes = uploads.digest_of(half.stream), len(other)
        half._send_piece(f"/uploads/{half._begin()['id']}", 0)
        digest = sending(farm, other).send()
        assert "8 of 20 MiB are there already" in caplog.text
        monkeypatch.setattr(uploads.Sending, "_begin", lambda _: pytest.fail("it is there"))
        assert sending(farm, other).send() == digest


def test_a_farm_that_stays_away_is_given_up_and_said(live: LiveFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FRUITLESS", 3)
    with (
        cutting_link(port_of(live), [1] * 50) as link,
        client(live, link.port) as farm,
        pytest.raises(Unreachable, match=r"\b3 attempts without progress"),
    ):
        sending(farm, os.urandom(9 * MIB)).send()


def test_a_refusal_is_heard_and_not_repeated(live: LiveFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.farm.storage, "append", full)
    with client(live) as farm, pytest.raises(Refused) as caught:
        sending(farm, os.urandom(40 * MIB)).send()
    assert (caught.value.status, caught.value.code) == (507, "infra.disk-full")


def test_large_models_and_data_go_in_pieces_by_themselves(
    live: LiveFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LARGE_BYTES", 4)
    path = external_model(tmp_path)
    with client(live) as farm:
        job = farm.compile(path, plan="full", spec="", target="x86-64-v3")
        assert job.model_name == "net"
        again = farm.compile(path, plan="full", spec="", target="x86-64-v3")
        assert again.id == job.id
        array = tmp_path / "digits.npz"
        np.savez(array, x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
        dataset = farm.upload_dataset(array)
        assert (dataset.name, dataset.samples) == ("digits", 4)
    seen = live.http.get("/jobs").json()["items"]
    assert len(seen) == 1
    whole = path.stat().st_size + 8
    assert seen[0]["model"]["size_bytes"] == whole


def test_a_cut_while_the_farm_reads_the_whole_file_does_no_harm(live: LiveFarm) -> None:
    """The answer to the last request is lost; asked again, the farm says the same."""
    with client(live) as farm:
        lost = sending(farm, os.urandom(9 * MIB))
        finish = farm._http.request
        calls: list[str] = []

        def losing(method: str, path: str, **request: object) -> httpx.Response:
            answer = finish(method, path, **request)  # type: ignore[arg-type]
            if method == "PUT" and not calls:
                calls.append(path)
                raise httpx.ReadError("connection reset")
            return answer

        farm._http.request = losing  # type: ignore[method-assign,assignment]
        assert live.farm.storage.size(lost.send()) == 9 * MIB
    assert calls
