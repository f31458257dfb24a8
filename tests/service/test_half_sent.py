"""Bodies that do not arrive: nobody waits for a stranger's, nor for ever for anybody's."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from device_agents import wire
from tests.agents.live_farm import LiveFarm
from tests.service.farms import TestFarm, open_test_farm
from tests.service.test_uploads import begin, path_of

LIMIT_S = 60.0
STEP_S = 40.0
TINY_S = 0.02
HANG_S = 60.0
KEY = b'{"name": "ci"}'


@pytest.fixture
def hasty_farm(tmp_path: Path, sqlite_url: str) -> Iterator[TestFarm]:
    with open_test_farm(tmp_path / "s", sqlite_url, body_s=TINY_S) as farm:
        yield farm


class Exchange:
    """A request whose body comes in parts, and then no further; each part takes `step_s` of the loop's clock."""

    def __init__(self, farm: TestFarm, method: str, path: str, *parts: bytes, size: int, step_s: float = 0.0) -> None:
        self._farm, self._parts, self._size, self._step_s = farm, list(parts), size, step_s
        self._scope = {"type": "http", "method": method, "path": path, "query_string": b""}
        self.sent: list[MutableMapping[str, Any]] = []
        self.was_answered_unread = False
        self._calls = 0
        self._late_s = 0.0

    def run(self, **headers: str) -> Exchange:
        named = {"Content-Length": str(self._size), "Content-Type": "application/json", **headers}
        self._scope["headers"] = [(name.lower().encode(), text.encode()) for name, text in named.items()]
        asyncio.run(self._exchange())
        return self

    async def _exchange(self) -> None:
        loop = asyncio.get_running_loop()
        clock = loop.time
        loop.time = lambda: clock() + self._late_s  # type: ignore[method-assign]
        await self._farm.http.app(self._scope, self._receive, self._send)

    async def _receive(self) -> MutableMapping[str, Any]:
        self._calls += 1
        self.was_answered_unread |= self._calls == 1 and bool(self.sent)
        if not self._parts:
            await asyncio.Event().wait()
        self._late_s += self._step_s
        turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(turn.set)
        await turn.wait()  # a time-out that is due by the shifted clock comes before the part
        part = self._parts.pop(0)
        self._size -= len(part)
        return {"type": "http.request", "body": part, "more_body": self._size > 0}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def is_closed(self) -> bool:
        return (b"connection", b"close") in self.sent[0]["headers"]

    @property
    def code(self) -> str:
        return str(json.loads(b"".join(message.get("body", b"") for message in self.sent))["code"])


def test_a_stranger_is_refused_before_the_body_is_read(hasty_farm: TestFarm) -> None:
    exchange = Exchange(hasty_farm, "POST", "/keys", size=100).run()
    assert (exchange.status, exchange.code, exchange.is_closed) == (401, "auth.missing", True)
    assert exchange.was_answered_unread
    unknown = Exchange(hasty_farm, "POST", "/keys", size=100).run(Authorization="Bearer nobody")
    assert (unknown.status, unknown.code, unknown.is_closed) == (401, "auth.invalid", True)


def test_a_key_without_the_scope_is_refused_before_the_body_is_read(hasty_farm: TestFarm) -> None:
    exchange = Exchange(hasty_farm, "POST", "/keys", size=100).run(**hasty_farm.key("user"))
    assert (exchange.status, exchange.code, exchange.is_closed) == (403, "auth.scope", True)


@pytest.mark.parametrize("path", ["/keys", "/compile", wire.ENROL_PATH])
def test_half_a_body_ends_in_time(hasty_farm: TestFarm, path: str) -> None:
    headers = {**hasty_farm.key("operator"), wire.PROTOCOL_HEADER: wire.PROTOCOL}
    if path == "/compile":
        headers["Content-Type"] = "multipart/form-data; boundary=b"
    exchange = Exchange(hasty_farm, "POST", path, b"--b\r\nContent", size=100).run(**headers)
    assert (exchange.status, exchange.code, exchange.is_closed) == (408, "request.stalled", True)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/nothing", 404), ("PUT", "/jobs", 405)])
def test_an_address_that_reads_no_body_ends_the_connection(
    hasty_farm: TestFarm, method: str, path: str, status: int
) -> None:
    exchange = Exchange(hasty_farm, method, path, b"x", size=100).run()
    assert (exchange.status, exchange.is_closed) == (status, True)


def test_a_stalled_piece_keeps_what_came(hasty_farm: TestFarm) -> None:
    farm = hasty_farm
    path = path_of(begin(farm, b"x" * 100, "data"))
    headers = {"Authorization": farm.http.headers["Authorization"], "Content-Range": "bytes 0-99/100"}
    exchange = Exchange(farm, "PATCH", path, b"x" * 10, b"x" * 20, size=100).run(**headers)
    assert (exchange.status, exchange.code, exchange.is_closed) == (408, "request.stalled", True)
    assert farm.http.head(path).headers["Upload-Offset"] == "30"


def test_a_slow_piece_that_goes_on_is_taken_and_a_slow_request_is_not(tmp_path: Path, sqlite_url: str) -> None:
    """Three parts, 40 s each: a file has a minute for each of them, a request a minute in all."""
    with open_test_farm(tmp_path / "s", sqlite_url, body_s=LIMIT_S) as farm:
        key = {"Authorization": farm.http.headers["Authorization"]}
        path = path_of(begin(farm, b"x" * 30, "data"))
        piece = Exchange(farm, "PATCH", path, b"x" * 10, b"x" * 10, b"x" * 10, size=30, step_s=STEP_S)
        assert piece.run(**key, **{"Content-Range": "bytes 0-29/30"}).status == 202
        assert not piece.is_closed
        request = Exchange(farm, "POST", "/keys", KEY[:5], KEY[5:9], KEY[9:], size=len(KEY), step_s=STEP_S)
        assert (request.run(**key).status, request.code) == (408, "request.stalled")
        quick = Exchange(farm, "POST", "/keys", KEY[:5], KEY[5:9], KEY[9:], size=len(KEY))
        assert (quick.run(**key).status, quick.is_closed) == (201, False)


@pytest.mark.parametrize("live", [{"body_s": TINY_S}], indirect=True)
@pytest.mark.parametrize(("has_key", "status"), [(False, b"401"), (True, b"408")])
def test_the_connection_ends(live: LiveFarm, has_key: bool, status: bytes) -> None:
    address = urlsplit(live.url)
    key = f"Authorization: {live.http.headers['Authorization']}\r\n" if has_key else ""
    head = f"POST /keys HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{key}Content-Length: 100\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=HANG_S) as connection:
        connection.sendall(head.encode() + b'{"name"')
        heard = b""
        while part := connection.recv(1 << 16):
            heard += part
    assert heard.split()[1] == status
    assert b"connection: close" in heard
