"""A farm on a real socket that answers from a script: a stand-in for the service where a test needs its bad days."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """What to say: a JSON body or raw bytes."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)

    def payload(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeFarm:
    """`script[(method, path)]` is a list of answers, given in turn; the last one repeats. `seen` holds all requests."""

    def __init__(self) -> None:
        self.script: dict[tuple[str, str], list[Answer]] = {}
        self.seen: list[Seen] = []
        self.url = ""

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self.script[(method, path)] = list(answers)

    def answer(self, request: Seen) -> Answer:
        self.seen.append(request)
        answers = self.script.get((request.method, request.path.split("?")[0]))
        if not answers:
            return Answer(404, {"detail": f"no {request.path}", "code": "http.no-such-path", "hint": "look elsewhere"})
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def fake_farm() -> Iterator[FakeFarm]:
    farm = FakeFarm()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = farm.answer(Seen(self.command, self.path, dict(self.headers.items()), body))
            payload = b"" if answer.status == 304 else answer.payload()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    farm.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield farm
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
