"""The campaign's own network does what it says: else its faults prove nothing."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.thorough.chaos.links import Link, MessageLink, Network, Rule, Trick
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.usefixtures("loopback")
SEEN: list[bytes] = []


class Farm(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        SEEN.append(body)
        self.send_response({b"refused": 409, b"down": 503}.get(body, 200))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    SEEN.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Farm) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def network() -> Iterator[Network]:
    running = Network()
    yield running
    running.close()


def post(port: int, body: bytes, *, timeout_s: float = HANG_S) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", "/agent/report", body)
        return connection.getresponse().read()
    finally:
        connection.close()


def is_ended(held: socket.socket) -> bool:
    """Whether the other side has closed: with a word of farewell, or (it had not read all) without."""
    try:
        return held.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("trick", "seen", "is_answered"),
    [("drop-request", 0, False), ("drop-answer", 1, False), ("duplicate", 2, True), ("delay", 1, True)],
)
def test_a_trick_is_played_once(port: int, network: Network, trick: Trick, seen: int, is_answered: bool) -> None:
    link = MessageLink(network, [port])
    rule = Rule(re.compile("/report"), trick, delay_s=0.1)
    link.rules.append(rule)
    if is_answered:
        assert post(link.port, b"first") == b"first"
    else:
        with pytest.raises((HTTPException, OSError)):
            post(link.port, b"first")
    assert [b"first"] * seen == SEEN
    assert rule.done == ["POST /agent/report HTTP/1.1"]
    assert post(link.port, b"second") == b"second"


@pytest.mark.parametrize("refused", [b"refused", b"down"])
@pytest.mark.parametrize("trick", ["drop-answer", "duplicate"])
def test_a_trick_on_a_refusal_does_not_count_and_waits_for_the_next_message(
    port: int, network: Network, trick: Trick, refused: bytes
) -> None:
    link = MessageLink(network, [port])
    rule = Rule(re.compile("/report"), trick)
    link.rules.append(rule)
    assert post(link.port, refused) == refused, "it passes as it is"
    assert (SEEN, rule.done) == ([refused], [])
    with contextlib.suppress(HTTPException, OSError):
        post(link.port, b"taken")
    assert rule.done == ["POST /agent/report HTTP/1.1"]


def test_a_message_is_overtaken_by_a_later_one_though_its_sender_has_given_up(port: int, network: Network) -> None:
    link = MessageLink(network, [port])
    rule = Rule(re.compile("/report"), "overtake", delay_s=HANG_S)
    link.rules.append(rule)
    with pytest.raises(TimeoutError):
        post(link.port, b"early", timeout_s=0.3)
    assert SEEN == []
    assert post(link.port, b"late") == b"late"
    until(lambda: rule.done)
    assert SEEN == [b"late", b"early"]


def test_one_that_nothing_overtakes_does_not_count(port: int, network: Network) -> None:
    link = MessageLink(network, [port])
    rule = Rule(re.compile("/report"), "overtake", delay_s=0.2)
    link.rules.append(rule)
    assert post(link.port, b"alone") == b"alone"
    assert rule.done == []


def test_a_parted_network_loses_nothing_and_a_cut_one_refuses(port: int, network: Network) -> None:
    link = Link(network, [port])
    link.stalled = True
    answers: list[bytes] = []
    waiting = threading.Thread(target=lambda: answers.append(post(link.port, b"late")))
    waiting.start()
    until(lambda: link._tasks)
    assert post(port, b"early") == b"early", "while it waits"
    link.mend()
    waiting.join(HANG_S)
    assert (answers, SEEN) == ([b"late"], [b"early", b"late"])
    with socket.create_connection(("127.0.0.1", link.port), timeout=HANG_S) as held:
        held.sendall(b"P")
        until(lambda: link._tasks)
        link.cut()
        assert is_ended(held)
    with pytest.raises((HTTPException, OSError)):
        post(link.port, b"refused")
    link.mend()
    assert post(link.port, b"again") == b"again"


def test_requests_go_to_an_api_process_that_is_there(port: int, network: Network) -> None:
    link = MessageLink(network, [port])
    with socket.create_server(("127.0.0.1", 0)) as gone:
        dead = int(gone.getsockname()[1])
    link.targets = (dead, port)
    assert [post(link.port, b"x") for _ in range(3)] == [b"x"] * 3
