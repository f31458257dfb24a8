"""The proxy of docker-compose.yml before two stand-ins for API processes, which can be unfit and gone."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.thorough.topology.compose import container
from tests.thorough.topology.places import HOST, Places
from tests.thorough.topology.servers import proxy
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.usefixtures("loopback")


class Stub:
    """Says who it is, and how many requests it was sent; fit for work or not."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port, self.is_fit = name, port, True
        self.asked: list[str] = []
        stub = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200 if stub.is_fit or not self.path.startswith("/readyz") else 503)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(200)

            def _answer(self, status: int) -> None:
                if not self.path.startswith("/readyz"):
                    stub.asked.append(f"{self.command} {self.path} {self.headers.get('X-Forwarded-For')}")
                self.send_response(status)
                self.end_headers()
                self.wfile.write(stub.name.encode())

            def log_message(self, *_: object) -> None:
                """Quietly."""

        self._server = http.server.ThreadingHTTPServer((HOST, port), Answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def behind_the_proxy(folder: Path) -> Iterator[tuple[httpx.Client, list[Stub]]]:
    places = Places(folder)
    places.reserve(["proxy", "api-1", "api-2"])
    asked = container("proxy", {})
    environment = {name: places.here(value, asked, "proxy") for name, value in asked.environment.items()}
    made = proxy(asked, places)
    stubs = [Stub(name, places.ports[name]) for name in ("api-1", "api-2")]
    with (folder / "log").open("ab") as log:
        told = {**os.environ, **environment, **made.environment, "HOME": str(folder)}
        process = subprocess.Popen(made.words, env=told, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://{HOST}:{places.ports['proxy']}", trust_env=False, timeout=HANG_S) as client:
        try:
            until(lambda: answers(client), (folder / "log").read_text)
            yield client, stubs
        finally:
            process.terminate()
            process.wait(HANG_S)
            for stub in stubs:
                with contextlib.suppress(OSError):
                    stub.end()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def who(client: httpx.Client, count: int = 12) -> set[str]:
    return {client.post("/compile", content=b"x").text for _ in range(count)}


def test_who_is_unfit_or_gone_is_left_out_and_comes_back(tmp_path: Path) -> None:
    with behind_the_proxy(tmp_path) as (client, (first, second)):
        assert who(client) == {"api-1", "api-2"}
        assert all(" 127.0.0.1" in one for one in first.asked), "who asks is told"
        first.is_fit = False
        until(lambda: who(client) == {"api-2"}, "its /readyz says 503")
        first.is_fit = True
        until(lambda: who(client) == {"api-1", "api-2"})
        second.end()
        assert who(client) == {"api-1"}, "at once, and no request is lost"


def test_without_any_it_says_so_in_the_form_of_every_refusal(tmp_path: Path) -> None:
    with behind_the_proxy(tmp_path) as (client, stubs):
        for stub in stubs:
            stub.end()
        answer = client.post("/compile", content=b"x")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.headers["Content-Type"] == "application/problem+json"
        problem = answer.json()
        assert (problem["cause"], problem["code"], problem["status"]) == ("infra", "infra.api", 503)
        assert {"type", "title", "detail", "hint"} <= set(problem)
