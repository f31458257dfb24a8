"""A proxy on the loopback that keeps every byte that a client sends: what an agent lets out, seen at the wire."""

from __future__ import annotations

import base64
import binascii
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}")


class Recorder:
    """All that went through one proxy, upwards: requests with their heads, a text for each connection."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sent: list[bytearray] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def sent(self) -> tuple[bytes, ...]:
        return tuple(bytes(one) for one in self._sent)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                farm = socket.create_connection(self._upstream)
                self._sent.append(bytearray())
                for pair in ((client, farm, self._sent[-1]), (farm, client, None)):
                    threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(source: socket.socket, to: socket.socket, kept: bytearray | None) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if kept is not None:
                kept += data
            to.sendall(data)
    for one in (source, to):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)  # which ends the other direction's wait, too
    source.close()


@contextmanager
def recorded(upstream: str) -> Iterator[Recorder]:
    """A proxy in front of a server."""
    recorder = Recorder(upstream)
    try:
        yield recorder
    finally:
        recorder.close()


def forms(mark: bytes) -> tuple[bytes, ...]:
    """How a mark may be hidden: as it is, in hexadecimal digits, in base64 wherever it begins in what was encoded."""
    digits = mark.hex().encode()
    shifted = [base64.b64encode(b"\0" * before + mark) for before in range(3)]
    # The characters at both ends mix with what stands beside.
    inner = [text[4 if before else 0 :].rstrip(b"=")[:-3] for before, text in enumerate(shifted)]
    return mark, digits, digits.upper(), *inner, *(one.translate(bytes.maketrans(b"+/", b"-_")) for one in inner)


def traces(sent: bytes, mark: bytes, depth: int = 3) -> list[bytes]:
    """The forms of the mark in what was sent, also within what is base64 there (an envelope's payload)."""
    found = [form for form in forms(mark) if form in sent]
    for text in _BASE64.findall(sent) if depth else ():
        with suppress(binascii.Error, ValueError):
            inner = base64.b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4))
            found += traces(inner, mark, depth - 1)
    return found
