"""What `tests/sockets.py` lets through: this machine's sockets where a test asks, and nothing else ever."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sockets import SocketUsed

OUTSIDE = ("192.0.2.1", "0.0.0.0", "2001:db8::1", "example.org", "")


def test_a_test_that_does_not_ask_gets_no_socket(tmp_path: Path) -> None:
    with socket.socket() as one, pytest.raises(SocketUsed, match="asks for the fixture `loopback`"):
        one.bind(("127.0.0.1", 0))
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(SocketUsed, match="`loopback`"):
        one.connect(str(tmp_path / "socket"))
    with pytest.raises(SocketUsed, match="`loopback`"):
        socket.getaddrinfo("localhost", 80)


def test_a_test_that_asks_reaches_this_machine(loopback: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2], 5):
        pass
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))


@pytest.mark.parametrize("host", OUTSIDE)
def test_no_name_outside_is_looked_up_whoever_asks(loopback: None, host: str) -> None:
    with pytest.raises(SocketUsed, match="nothing outside this machine"):
        socket.getaddrinfo(host, 9)


@pytest.mark.parametrize(
    "look_up", [socket.gethostbyname, socket.gethostbyaddr, lambda host: socket.getnameinfo((host, 9), 0)]
)
@pytest.mark.parametrize("host", ["192.0.2.1", "example.org"])
def test_no_other_look_up_goes_outside(loopback: None, look_up: Callable[[str], object], host: str) -> None:
    with pytest.raises(SocketUsed, match="nothing outside this machine"):
        look_up(host)


@pytest.mark.parametrize("host", OUTSIDE[:2])
def test_nothing_outside_is_reached_whoever_asks(loopback: None, host: str) -> None:
    with socket.socket() as one, pytest.raises(SocketUsed, match="nothing outside this machine"):
        one.connect((host, 9))
    with socket.socket(type=socket.SOCK_DGRAM) as one, pytest.raises(SocketUsed, match="nothing outside this machine"):
        one.sendto(b"", (host, 9))
    with socket.socket(type=socket.SOCK_DGRAM) as one, pytest.raises(SocketUsed, match="nothing outside this machine"):
        one.sendmsg([b""], [], 0, (host, 9))
