"""A receiver of webhooks on a real socket: it keeps what came, and answers as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import until


@dataclass
class Receiver:
    """`answers` are used up one by one; the last one stays."""

    url: str = ""
    answers: list[int] = field(default_factory=lambda: [204])
    location: str = ""
    drip_s: float = 0.0
    """It sends a byte of an endless header every so often."""
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def wait_for(self, count: int) -> list[tuple[dict[str, str], bytes]]:
        until(lambda: len(self.received) >= count, lambda: str(self.received))
        return self.received


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
            if receiver.drip_s:
                self._drip()
                return
            status = receiver.answers[0] if len(receiver.answers) == 1 else receiver.answers.pop(0)
            self.send_response(status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.end_headers()

        def _drip(self) -> None:
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while True:
                    self.wfile.write(b"x")
                    time.sleep(receiver.drip_s)
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?a=1"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
