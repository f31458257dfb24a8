"""A connection to a farm that breaks: a link on the loopback that ends connections after so many bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK_BYTES = 1 << 16


class CuttingLink:
    """Passes bytes to a port; each number in `cuts` ends a connection when so many bytes more have passed to it."""

    def __init__(self, target: int, cuts: list[int]) -> None:
        self.cuts = list(cuts)
        self.made = 0
        """Cuts so far."""
        self.total = 0
        """Bytes that came from the client."""
        self._target = target
        self._passed = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while (data := client.recv(CHUNK_BYTES)) and not self._is_cut(len(data)):
                    server.sendall(data)
            for end in (client, server):  # a reset, as a router that dies or a cable that is pulled may bring
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
            back.join(5)

    def _is_cut(self, count: int) -> bool:
        with self._lock:
            self._passed += count
            self.total += count
            if not self.cuts or self._passed < self.cuts[0]:
                return False
            self.cuts.pop(0)
            self._passed = 0
            self.made += 1
            return True


def _pass(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


@contextmanager
def cutting_link(target: int, cuts: list[int]) -> Iterator[CuttingLink]:
    """A link for the length of a block."""
    link = CuttingLink(target, cuts)
    try:
        yield link
    finally:
        link.close()
