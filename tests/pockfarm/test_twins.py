"""`AsyncClient` and `Client` are one source, and say the same things to a farm."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pockfarm.client import AsyncClient, Client, answers
from pockfarm.errors import NotFound, Unreachable
from tests.architecture.sources import ROOT
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

JOB = {
    "id": "job_1",
    "state": "queued",
    "stage": "",
    "fraction": 0.0,
    "target": "raspberry-pi-4",
    "model": {"name": "cnn"},
    "plan": {"name": "full"},
    "bundle_digest": None,
}
DONE = {**JOB, "state": "succeeded", "bundle_digest": "sha256:" + "a" * 64}


def test_the_client_without_async_is_made_from_the_one_with_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "synchronous.py"), str(tmp_path)], check=True)
    kept = {path.name: path.read_text() for path in (ROOT / "pockfarm/client/synchronous").glob("*.py")}
    made = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert len(made) > 10
    assert sorted(made) == sorted(kept)
    assert [name for name in made if made[name] != kept[name]] == [], "make golden"


def test_both_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(one).parameters) for name, one in found if not name.startswith("_")}

    assert methods(Client) == methods(AsyncClient)
    assert len(methods(Client)) > 60


def said(server: FakeFarm) -> list[tuple[str, str, object]]:
    """What was asked, but for what differs from one request to the next."""
    heads = ("authorization", "accept", "user-agent", "if-none-match")
    return [(one.method, one.path, {name: one.headers.get(name) for name in heads}) for one in server.seen]


def script(server: FakeFarm) -> None:
    server.on("POST", "/compile", Answer(503, {}), Answer(201, JOB))
    server.on("GET", "/jobs/job_1", Answer(200, JOB, {"ETag": '"1"'}), Answer(200, DONE))
    server.on("GET", f"/bundles/{DONE['bundle_digest']}", Answer(200, b"bundle" * 1000))
    server.on("GET", "/jobs/job_1/events", Answer(200, [{"id": 1, "kind": "stage"}]), Answer(200, []))
    server.on("GET", "/devices", Answer(200, {"items": [{"id": "dev_1", "targets": ["raspberry-pi-4"]}]}))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RETRY_PAUSE_S", 0.01)


def test_both_say_the_same_to_a_farm(loopback: None, tmp_path: Path) -> None:
    async def with_an_event_loop(url: str) -> list[object]:
        async with AsyncClient(url, "key") as client:
            job = await client.compile(b"model", plan="full", spec="{}", target="raspberry-pi-4")
            done = await client.wait_for_job(job.id)
            await client.save_bundle(str(done.bundle_digest), tmp_path / "a.pfb")
            events = [event async for event in client.events("job_1")]
            return [job, done, events, await client.devices()]

    def without(url: str) -> list[object]:
        with Client(url, "key") as client:
            job = client.compile(b"model", plan="full", spec="{}", target="raspberry-pi-4")
            done = client.wait_for_job(job.id)
            client.save_bundle(str(done.bundle_digest), tmp_path / "b.pfb")
            return [job, done, list(client.events("job_1")), client.devices()]

    with fake_farm() as first, fake_farm() as second:
        script(first)
        script(second)
        assert asyncio.run(with_an_event_loop(first.url)) == without(second.url)
        assert said(first) == said(second)
    assert (tmp_path / "a.pfb").read_bytes() == (tmp_path / "b.pfb").read_bytes() == b"bundle" * 1000
    assert len(list(tmp_path.iterdir())) == 2, "a part of a file is left"


def test_an_event_loop_goes_on_while_a_farm_is_waited_for(loopback: None) -> None:
    async def both(url: str) -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        async with AsyncClient(url, "key") as client:
            await client.wait_for_job("job_1")
        counting.cancel()
        return turns

    with fake_farm() as server:
        script(server)
        assert asyncio.run(both(server.url)) > 3


def test_errors_are_the_same(loopback: None) -> None:
    async def ask(url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        async with AsyncClient(url, "key", transport=transport) as client:
            await client.job("job_2")

    with fake_farm() as server, pytest.raises(NotFound, match="no /jobs/job_2"):
        asyncio.run(ask(server.url))

    def cut(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("cut", request=request)

    with pytest.raises(Unreachable, match="no answer from the farm"):
        asyncio.run(ask("http://farm.example", httpx.MockTransport(cut)))
