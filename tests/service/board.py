"""A board in a few lines: it enrols, leases, writes and reports over HTTP as an agent does, with a real key."""

from __future__ import annotations

import base64
import time
import uuid
from dataclasses import replace
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents import wire as p


def description(name: str = "board", **changes: Any) -> p.DeviceDescription:
    fields: dict[str, Any] = {
        "name": name,
        "device_class": "x86-64",
        "measurement_class": "host",
        "targets": ("x86-64-v4", "x86-64-v3"),
        "architecture": "x86_64",
        "cpu_model": "a CPU",
        "features": ("avx2", "fma"),
        "cores": 2,
        "memory_bytes": 1 << 33,
        "isolation_level": 2,
        "agent_version": "1",
    }
    return p.DeviceDescription(**(fields | changes))


class Board:
    """One device. `http` is any client of the farm."""

    def __init__(self, http: httpx.Client, *, name: str = "", **changes: Any) -> None:
        self.http = http
        self.key = Ed25519PrivateKey.generate()
        self.session = uuid.uuid4().hex
        self.description = description(name or f"board-{self.session[:8]}", **changes)
        self.device_id = ""
        self.credential = ""
        self.protocol = p.PROTOCOL
        self.program: p.Program | None = None
        """What its agent says it runs from, as it enrols and renews; None: an older agent, which does not say."""
        self.machine: p.Machine | None = None
        """Which machine it is, as its agent says as it enrols and renews; None: an older agent, which does not say."""
        self.clock_off_s: float | None = None
        """How far its clock is ahead of the farm's; None: an older agent, which does not say."""
        self.condition: str | None = p.dumps(p.Condition(32 << 30, 12 << 30, 1 << 20, 48.5)).decode()
        """How it is, as its requests for work and heartbeats say; None: an older agent, which does not say."""

    @property
    def public_key(self) -> str:
        return base64.b64encode(self.key.public_key().public_bytes_raw()).decode()

    def sign(self, payload_type: str, payload: bytes) -> str:
        return base64.b64encode(self.key.sign(p.pae(payload_type, payload))).decode()

    def post(self, path: str, body: object, *, content: bytes | None = None) -> httpx.Response:
        headers: dict[str, Any] = {p.PROTOCOL_HEADER: self.protocol, "Content-Type": "application/json"}
        if self.clock_off_s is not None:
            headers["X-Pockfarm-Clock"] = f"{time.time() + self.clock_off_s:.3f}"
        if self.program is not None:
            headers[p.PROGRAM_HEADER] = p.dumps(self.program).decode()
        if self.machine is not None:
            headers[p.MACHINE_HEADER] = p.dumps(self.machine).decode()
        if self.condition is not None and path.endswith(("/lease", "/heartbeat")):
            headers[p.CONDITION_HEADER] = self.condition.encode("latin-1")
        if self.credential:
            headers["Authorization"] = f"Bearer {self.credential}"
        return self.http.post(path, content=p.dumps(body) if content is None else content, headers=headers)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {p.PROTOCOL_HEADER: self.protocol, "Authorization": f"Bearer {self.credential}"}

    def try_enrol(self, token: str) -> httpx.Response:
        return self.post(p.ENROL_PATH, self.enrolment(token))

    def enrolment(self, token: str, *, public_key: str | None = None) -> p.EnrolRequest:
        """Signed by its own key, whichever it names."""
        request = p.EnrolRequest(token, public_key or self.public_key, self.session, self.description)
        return replace(request, signature=self.sign(p.ENROL_TYPE, p.enrol_message(request)))

    def enrol(self, token: str) -> Board:
        answer = self.try_enrol(token)
        assert answer.status_code == 201, answer.text
        response = p.loads(p.EnrolResponse, answer.content)
        self.device_id, self.credential = response.device_id, response.credential.token
        self.server_keys, self.credential_sent = response.credential.server_keys, response.credential
        return self

    def try_renew(self, *, session: str | None = None, key: Ed25519PrivateKey | None = None) -> httpx.Response:
        answer = self.post(p.CHALLENGE_PATH, p.ChallengeRequest(self.device_id))
        challenge = p.loads(p.Challenge, answer.content).challenge
        self.session = session or self.session
        message = p.pae(p.CHALLENGE_TYPE, p.challenge_message(self.device_id, self.session, challenge))
        signature = base64.b64encode((key or self.key).sign(message)).decode()
        return self.post(
            p.RENEW_PATH, p.RenewRequest(self.device_id, self.session, challenge, signature, self.description)
        )

    def copy(self, machine: p.Machine | None) -> Board:
        """Another agent with the same state folder."""
        twin = Board(self.http, name=self.description.name)
        twin.key, twin.device_id, twin.machine, twin.description = self.key, self.device_id, machine, self.description
        return twin

    def restart(self) -> None:
        answer = self.try_renew(session=uuid.uuid4().hex)
        assert answer.status_code == 200, answer.text
        self.credential = p.loads(p.Credential, answer.content).token

    def try_lease(self, wait_s: float = 0.0) -> httpx.Response:
        return self.post(p.LEASE_PATH, p.LeaseRequest(self.session, wait_s, self.description.isolation_level))

    def lease(self, wait_s: float = 0.0) -> p.Assignment | None:
        answer = self.try_lease(wait_s)
        assert answer.status_code in (200, 204), answer.text
        return assignment_of(answer) if answer.status_code == 200 else None

    def heartbeat(self, work: p.Assignment, phase: str = "run", steps_done: int = 0) -> httpx.Response:
        path = p.attempt_path(p.HEARTBEAT_PATH, work.lease_token)
        return self.post(path, p.HeartbeatRequest(phase, steps_done))

    def send_events(self, work: p.Assignment, *events: p.Event) -> httpx.Response:
        return self.post(p.attempt_path(p.EVENTS_PATH, work.lease_token), p.EventBatch(events))

    def put_weights(
        self, work: p.Assignment, data: bytes, digest: str, *, path: str = p.WEIGHTS_PATH
    ) -> httpx.Response:
        headers = self._headers() | {p.DIGEST_HEADER: digest}
        return self.http.put(p.attempt_path(path, work.lease_token), content=data, headers=headers)

    def make_report(self, work: p.Assignment, outcome: p.Outcome | None = None, **changes: Any) -> p.Report:
        fields: dict[str, Any] = {
            "run_id": work.run_id,
            "attempt": work.attempt,
            "device_id": self.device_id,
            "bundle_digest": work.bundle.digest,
            "mode": work.settings.mode,
            "outcome": outcome or p.Outcome("succeeded"),
            "measurement_class": self.description.measurement_class,
            "started_at": 1.0,
            "finished_at": 3.0,
            "transfer_s": 0.5,
            "run_s": 1.5,
            "losses": (2.5, 1.25),
            "isolation_level": self.description.isolation_level,
            "memory": p.Memory(arena_bytes=4096, peak_rss_bytes=100_000),
            "verdict": p.Verdict("valid", "all fine"),
        }
        return p.Report(**(fields | changes))

    def envelope(self, report: p.Report, *, key: Ed25519PrivateKey | None = None) -> p.Envelope:
        payload = p.dumps(report)
        signature = base64.b64encode((key or self.key).sign(p.pae(p.REPORT_TYPE, payload))).decode()
        return p.Envelope(p.REPORT_TYPE, base64.b64encode(payload).decode(), (p.Signature(self.device_id, signature),))

    def report(self, work: p.Assignment, outcome: p.Outcome | None = None, **changes: Any) -> httpx.Response:
        envelope = self.envelope(self.make_report(work, outcome, **changes))
        return self.post(p.attempt_path(p.REPORT_PATH, work.lease_token), envelope)


def offer_of(answer: httpx.Response) -> p.AgentOffer:
    """The agent that the farm has signed an offer of."""
    envelope = p.loads(p.Envelope, answer.content)
    assert envelope.payloadType == p.OFFER_TYPE
    return p.loads(p.AgentOffer, envelope.payload_bytes())


def assignment_of(answer: httpx.Response) -> p.Assignment:
    """What the farm has signed."""
    return p.loads(p.Assignment, p.loads(p.Envelope, answer.content).payload_bytes())


def leased(board: Board) -> p.Assignment:
    """The work that a board gets, which there must be."""
    work = board.lease()
    assert work is not None
    return work
