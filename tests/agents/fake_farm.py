"""A small farm on a socket: real HTTP, the protocol's own types, real signatures, and faults on request."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import MSG_PEEK
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents import wire as p
from device_agents.farm.state import public_key_text, seal
from device_agents.wire.ed25519 import verify
from tests.waiting import until


@dataclass
class Fault:
    """Answers `status` to the next `times` requests whose path holds `path`."""

    path: str
    status: int
    times: int = 1


class FakeFarm:
    """State and decisions; all attributes may be looked at and changed by a test."""

    def __init__(self, port: int = 0) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.key_id = "farm-1"
        self.token = "one-time"
        self.devices: dict[str, str] = {}
        self.descriptions: dict[str, p.DeviceDescription] = {}
        self.credentials: set[str] = set()
        self.renewals = 0
        self.queue: list[tuple[str, p.Envelope]] = []
        self.refusals: list[p.Outcome] = []
        self.blobs: dict[str, bytes] = {}
        self.heartbeats: list[tuple[float, p.HeartbeatRequest]] = []
        self.conditions: list[tuple[str, str]] = []
        """(path, what its header says of the device)."""
        self.events: dict[str, dict[int, p.Event]] = defaultdict(dict)
        self.reports: dict[str, p.Report] = {}
        self.weights: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.cancelled: set[str] = set()
        self.stale: set[str] = set()
        self.given: set[str] = set()
        self.given_up = 0
        """Requests for work whose agent was gone before they were answered."""
        self.faults: list[Fault] = []
        self.max_body_bytes = 1 << 30
        self.changed = threading.Condition()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeFarm:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def start_again(self) -> None:
        """The same farm comes back on the same port."""
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def assign(
        self,
        bundle: bytes,
        *,
        lease: str = "lease-0001",
        device_class: str = "x86-64",
        dataset: bytes | None = None,
        validation_dataset: bytes | None = None,
        weights: bytes | None = None,
        signed: dict[str, Any] | None = None,
        signer: Ed25519PrivateKey | None = None,
        **fields: Any,
    ) -> p.Assignment:
        """Queue a job; `signed` overrides fields of what is signed."""
        blob = self.blob(bundle, lease, "bundle")
        data = self.blob(dataset, lease, "dataset") if dataset else None
        validation = self.blob(validation_dataset, lease, "validation-dataset") if validation_dataset else None
        start = self.blob(weights, lease, "weights") if weights else None
        now = time.time()
        limits = fields.pop("limits", p.Limits())
        assignment = p.Assignment(
            run_id="run-1",
            attempt=1,
            device_id="device-1",
            device_class=device_class,
            target="x86-64-v3",
            lease_token=lease,
            lease_expires_at=now + 60,
            lease_s=60.0,
            not_before=now - 5,
            expires_at=now + 600,
            release_number=7,
            model_digest="",
            plan_digest="",
            bundle=blob,
            settings=p.RunSettings(**fields),
            dataset=data,
            weights=start,
            limits=limits,
            validation_dataset=validation,
        )
        assignment = replace(assignment, **(signed or {}))
        self.give(assignment, seal(signer or self.key, self.key_id, p.ASSIGNMENT_TYPE, p.dumps(assignment)))
        return assignment

    def give(self, assignment: p.Assignment, envelope: p.Envelope) -> None:
        """Queue an envelope, whatever is in it."""
        with self.changed:
            self.queue.append((assignment.lease_token, envelope))
            self.changed.notify_all()

    def blob(self, data: bytes, lease: str, what: str) -> p.Blob:
        path = f"/agent/attempts/{lease}/{what}"
        self.blobs[path] = data
        return p.Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), path)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until `condition()` holds; fails the test otherwise."""

        def holds() -> object:
            with self.changed:
                return condition()

        until(holds, lambda: f"it did not come about; requests so far: {self.requests[-20:]}")

    def wait_for_steps(self, lease: str = "lease-0001") -> None:
        """Until the job has told of one."""
        self.wait_for(lambda: any(event.kind == "step" for event in self.events[lease].values()))

    def report(self, lease: str = "lease-0001") -> p.Report:
        self.wait_for(lambda: lease in self.reports)
        return self.reports[lease]

    def refusal(self) -> p.Outcome:
        """The only one."""
        self.wait_for(lambda: self.refusals)
        [outcome] = self.refusals
        return outcome

    def answer(
        self, method: str, path: str, body: bytes, headers: Any, has_hung_up: Callable[[], bool]
    ) -> tuple[int, bytes]:
        """One request to one (status, body); `has_hung_up`: whether whoever asked is gone."""
        with self.changed:
            self.requests.append((method, path))
            self.changed.notify_all()
        for fault in self.faults:
            if fault.path in path and fault.times > 0:
                fault.times -= 1
                return fault.status, b"fault on request"
        if len(body) > self.max_body_bytes:
            return 413, b"too large"
        assert headers[p.PROTOCOL_HEADER] == p.PROTOCOL
        if headers.get(p.CONDITION_HEADER) is not None:
            self.conditions.append((path, headers[p.CONDITION_HEADER]))
        if path == p.ENROL_PATH:
            return self._enrol(p.loads(p.EnrolRequest, body))
        if path == p.CHALLENGE_PATH:
            known = p.loads(p.ChallengeRequest, body).device_id in self.devices
            return (200, p.dumps(p.Challenge("riddle"))) if known else (404, b"no such device")
        if path == p.RENEW_PATH:
            return self._renew(p.loads(p.RenewRequest, body))
        if headers.get("Authorization", "").removeprefix("Bearer ") not in self.credentials:
            return 401, b"credential"
        if path == p.LEASE_PATH:
            return self._lease(p.loads(p.LeaseRequest, body), has_hung_up)
        if path == p.REFUSAL_PATH:
            with self.changed:
                self.refusals.append(p.loads(p.Outcome, body))
                self.changed.notify_all()
            return 204, b""
        lease, _, what = path.removeprefix("/agent/attempts/").partition("/")
        if method == "GET":
            return (200, self.blobs[path]) if path in self.blobs else (404, b"no such blob")
        if lease in self.stale:
            return 409, b"stale lease"
        return self._attempt(lease, what, body, headers)

    def _attempt(self, lease: str, what: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        with self.changed:
            self.changed.notify_all()
            if what == "heartbeat":
                self.heartbeats.append((time.monotonic(), p.loads(p.HeartbeatRequest, body)))
                return 200, p.dumps(p.HeartbeatResponse(time.time() + 60, 60.0, lease in self.cancelled))
            if what == "events":
                for event in p.loads(p.EventBatch, body).events:
                    self.events[lease][event.sequence] = event
                return 200, p.dumps(p.EventsResponse(max(self.events[lease]) + 1))
            if what == "weights":
                assert headers[p.DIGEST_HEADER] == f"sha256:{hashlib.sha256(body).hexdigest()}"
                self.weights[lease] = body
                return 201, b""
            return self._record(lease, p.loads(p.Envelope, body))

    def _record(self, lease: str, envelope: p.Envelope) -> tuple[int, bytes]:
        report = p.loads(p.Report, envelope.payload_bytes())
        signature = envelope.signatures[0]
        assert envelope.payloadType == p.REPORT_TYPE
        assert signature.keyid == report.device_id
        message = p.pae(p.REPORT_TYPE, envelope.payload_bytes())
        assert verify(self.devices[report.device_id], signature.sig, message)
        if lease in self.reports and self.reports[lease] != report:
            return 409, b"another report"
        self.reports[lease] = report
        return 200, p.dumps(p.ReportResponse("recorded"))

    def _enrol(self, request: p.EnrolRequest) -> tuple[int, bytes]:
        if not verify(request.public_key, request.signature, p.pae(p.ENROL_TYPE, p.enrol_message(request))):
            return 403, b"not by the device's key"
        if request.token != self.token:
            return 403, b"unknown token"
        self.token = ""
        self.devices["device-1"] = request.public_key
        self.descriptions["device-1"] = request.description
        return 201, p.dumps(p.EnrolResponse("device-1", self._credential()))

    def _renew(self, request: p.RenewRequest) -> tuple[int, bytes]:
        payload = p.challenge_message(request.device_id, request.session, "riddle")
        message = p.pae(p.CHALLENGE_TYPE, payload)
        if not verify(self.devices[request.device_id], request.signature, message):
            return 403, b"bad signature"
        self.renewals += 1
        return 200, p.dumps(self._credential())

    def _credential(self) -> p.Credential:
        token = base64.urlsafe_b64encode(f"{time.time()}".encode()).decode()
        self.credentials.add(token)
        return p.Credential(token, time.time() + 3600, 3600.0, (p.ServerKey(self.key_id, public_key_text(self.key)),))

    def _lease(self, request: p.LeaseRequest, has_hung_up: Callable[[], bool]) -> tuple[int, bytes]:
        """Who asks for work gives up what it had, as at the real farm; who is gone gets none."""
        self.stale |= self.given - set(self.reports)
        deadline = time.monotonic() + request.wait_s
        with self.changed:
            while not self.queue and time.monotonic() < deadline and not has_hung_up():
                self.changed.wait(0.05)
            if has_hung_up():
                self.given_up += 1
                return 204, b""
            if not self.queue:
                return 204, b""
            lease, envelope = self.queue.pop(0)
            self.given.add(lease)
            return 200, p.dumps(envelope)


def _handler(farm: FakeFarm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = farm.answer(self.command, self.path, body, self.headers, self.has_hung_up)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                if status != 204:
                    self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def has_hung_up(self) -> bool:
            """Nothing but an end can come before the answer."""
            return bool(select.select([self.connection], [], [], 0)[0]) and not self.connection.recv(1, MSG_PEEK)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *_: object) -> None:
            pass

    return Handler
