"""The farm over HTTP: one short method per endpoint, foreign errors translated here and nowhere else.

Time-outs: 10 s to connect and between bytes, 15 s more than the poll for a lease. Attempts and back-off: the caller's
(`retry.py`); only a 401 is handled here, by one renewal. Redirects are not followed: they would carry the credential.

Whether this board's clock agrees with the farm's, by the `Date` of its answers; the log says when that changes.

Reads the farm's answers: a status that is no success is an error, with the farm's own sentence.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from device_agents import wire
from device_agents.devices import Board
from device_agents.devices.machine import machine_of
from device_agents.errors import (
    AttemptError,
    Busy,
    EnrolmentError,
    EnrolmentRefused,
    FarmError,
    NameTaken,
    Refused,
    Stale,
    Stopped,
    Unauthorized,
    Unreachable,
    Untrusted,
)
from device_agents.farm import certificate
from device_agents.farm.state import Identity, StateFolder, public_key_text, sign
from device_agents.farm.trouble import Trouble
from device_agents.farm.trust import CLOCK_TOLERANCE_S, believed
from device_agents.wire import (
    Blob,
    Challenge,
    ChallengeRequest,
    Condition,
    Credential,
    DeviceDescription,
    EnrolRequest,
    EnrolResponse,
    Envelope,
    EventBatch,
    EventsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaseRequest,
    Outcome,
    OwnDataset,
    Program,
    ProtocolError,
    RenewRequest,
    ReportResponse,
    attempt_path,
    challenge_message,
    dumps,
    enrol_message,
    loads,
)

MOST_REASON_CHARACTERS = 4000
"""Length of a refusal's reason in messages and the log, at most."""
_LEASE = re.compile(r"(/agent/attempts/)[^/\s\"]+")


def raise_for(method: str, path: str, answer: http.client.HTTPResponse, body: bytes) -> None:
    """Checks that the answer is a success. Raises: `FarmError`, with what the farm says."""
    status = answer.status
    if 200 <= status < 300:
        return
    code, reason = _reason(body)
    message = without_lease(f"{method} {path}: {status} {answer.reason}: {reason}")
    if status == 401:
        raise Unauthorized(message, status=status, code=code, reason=reason)
    if status == 409:
        raise Stale(message, status=status, code=code, reason=reason)
    if status == 429 or status >= 500:
        retry_after_s = _seconds(answer.headers.get("Retry-After"))
        raise Busy(message, status=status, retry_after_s=retry_after_s, code=code, reason=reason)
    raise Refused(message, status=status, code=code, reason=reason)


def _reason(body: bytes) -> tuple[str, str]:
    """The code of a farm's problem document, and its sentence with the next step; of another answer the first
    characters."""
    text = body[:MOST_REASON_CHARACTERS].decode("utf-8", "replace")
    try:
        problem = json.loads(text)
        hint = f"; {problem['hint']}" if problem.get("hint") else ""
        return str(problem.get("code", "")), f"{problem['detail']}{hint}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", text


def without_lease(text: str) -> str:
    """A message without the lease token of its path: a token is the right to write, and messages go into logs."""
    return _LEASE.sub(r"\1...", text)


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None


log = logging.getLogger("device_agents")


class ClockWatch:
    """Compares with each answer of the farm."""

    def __init__(self) -> None:
        self.off_s = 0.0
        """The seconds that our clock was ahead at the last answer; zero while it is within the tolerance."""

    def compare(self, date: str | None) -> None:
        """Compares our clock with the `Date` header of an answer that has just come."""
        farm_s = seconds_of(date)
        if farm_s is None:
            return
        off_s, was_s = time.time() - farm_s, self.off_s
        self.off_s = off_s if abs(off_s) > CLOCK_TOLERANCE_S else 0.0
        if self.off_s and abs(self.off_s - was_s) > CLOCK_TOLERANCE_S:
            side = "ahead of" if off_s > 0 else "behind"
            log.warning(
                "this board's clock is %.0f s %s the farm's: no assignment is valid here until it is set (NTP)",
                abs(off_s),
                side,
            )
        elif was_s and not self.off_s:
            log.info("this board's clock agrees with the farm's again")


def seconds_of(date: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date; None if it is none."""
    try:
        return parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


T = TypeVar("T")

TIMEOUT_S = 10.0
LONG_POLL_GRACE_S = 15.0
MAX_ANSWER_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
HEARTBEAT_END = wire.HEARTBEAT_PATH.rpartition("/")[2]


class FarmClient:
    """Speaks for one device in one session."""

    def __init__(self, server: str, state: StateFolder, *, session: str, description: DeviceDescription) -> None:
        self.server = server.rstrip("/")
        if not _is_origin(self.server):
            raise EnrolmentError(f"--server {server}: expected http://HOST[:PORT] or https://HOST[:PORT]")
        self.state = state
        self.session = session
        self.description = description
        self._clock = ClockWatch()
        self.trouble = Trouble(self.server)
        self.program: Callable[[], Program] | None = None
        """Returns the program that this agent runs from, which is reported when it enrols and renews."""
        self.condition: Callable[[], Condition] | None = None
        """Returns the condition of the device, which is sent with requests for work and heartbeats."""

    def describe_own_data(self, datasets: tuple[OwnDataset, ...]) -> None:
        """Sets the data sets of its own that the device reports from now on, whenever it enrols or renews."""
        self.description = replace(self.description, own_datasets=datasets)

    def enrol(self, token: str) -> Identity:
        """Trade a one-time token for an identity, and keep it. Raises: `EnrolmentError`, `FarmError`."""
        key = self.state.device_key()
        unsigned = EnrolRequest(token, public_key_text(key), self.session, self.description)
        request = replace(unsigned, signature=sign(key, wire.ENROL_TYPE, enrol_message(unsigned)))
        try:
            answer = self._post(wire.ENROL_PATH, request, EnrolResponse)
        except (Refused, Unauthorized, Stale) as error:
            kind = NameTaken if error.code == "device.name-taken" else EnrolmentRefused
            description, hint = self.description, "" if error.code else "; make a new enrolment token on the farm"
            device = f"{description.name} (class {description.device_class})"
            raise kind(f"the farm did not enrol {device}: {error.reason}{hint}") from None
        offered = answer.credential
        keys = {key.key_id: key.public_key for key in offered.server_keys}
        root = offered.root.public_key if offered.root else None
        identity = believed(Identity(answer.device_id, self.server, keys, root=root), offered)
        if not identity.trusted_at(time.time()):
            raise EnrolmentError("the farm sent no signing key that is good now, so no assignment could be trusted")
        self.state.save_identity(identity)
        self.state.save_credential(answer.credential)
        return identity

    def renew(self) -> None:
        """A fresh credential, by a signed challenge. Raises: `EnrolmentError` (we are not known), `FarmError`."""
        with self.state.locked("identity"):
            identity = self._identity()
            try:
                credential = self._renewed(identity)
            except (Refused, Unauthorized) as error:
                message = f"the farm does not accept device {identity.device_id} any more: {error.reason}"
                raise EnrolmentError(f"{message} (its state folder is {self.state.path})") from None
            now_believed = believed(identity, credential)
            if now_believed != identity:
                self.state.save_identity(now_believed)
            self.state.save_credential(credential)

    def trusts_farm(self) -> bool:
        """Whether the key that the farm signs with now is one that this device trusts."""
        identity, credential = self.state.identity(), self.state.credential()
        offered = credential.server_keys if credential else ()
        if identity is None or not offered:
            return True
        trusted = identity.trusted_at(time.time())
        return any(key.key_id in trusted for key in offered)

    def clock_is_wrong(self) -> bool:
        """Whether our clock was off by more than assignments bear, at the farm's last answer."""
        return self._clock.off_s != 0.0

    def clock_off_s(self) -> float:
        """Returns how far our clock is ahead of the farm's, to about a second. Raises: `FarmError`."""
        with self._connection(self.server, TIMEOUT_S) as connection:
            asked_at = time.time()
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            now = (asked_at + time.time()) / 2
            answer.read(MAX_ANSWER_BYTES)
        farm_s = seconds_of(answer.headers.get("Date"))
        if answer.status != 200 or farm_s is None:
            raise Refused(f"GET /healthz: {answer.status} {answer.reason}, and no farm's time", status=answer.status)
        return now - farm_s - 0.5  # the header has whole seconds

    def lease(self, request: LeaseRequest) -> Envelope | None:
        """Waits for work, up to `request.wait_s`, and returns an assignment that nobody has verified yet. None: there
        is none.
        """
        timeout_s = request.wait_s + LONG_POLL_GRACE_S
        return self._authorized(
            lambda: self._post(wire.LEASE_PATH, request, Envelope, timeout_s=timeout_s, none_on=204)
        )

    def ask_for_nothing(self, isolation_level: int) -> Envelope | None:
        """A request for work that does not wait: from an agent that wants to know whether it is answered."""
        return self.lease(LeaseRequest(self.session, 0.0, isolation_level))

    def refuse(self, outcome: Outcome) -> None:
        """Refuses the work that the farm gave last, and says why."""
        self._authorized(lambda: self._exchange("POST", wire.REFUSAL_PATH, dumps(outcome)))

    def still_open(self, runs: tuple[str, ...]) -> frozenset[str]:
        """Returns which of these runs, that this device has had before, may still go on here."""
        request = wire.KeptRuns(runs)
        return frozenset(self._authorized(lambda: self._post(wire.KEPT_PATH, request, wire.KeptRuns)).runs)

    def heartbeat(self, lease_token: str, request: HeartbeatRequest) -> HeartbeatResponse:
        path = attempt_path(wire.HEARTBEAT_PATH, lease_token)
        return self._authorized(lambda: self._post(path, request, HeartbeatResponse))

    def send_events(self, lease_token: str, batch: EventBatch) -> EventsResponse:
        path = attempt_path(wire.EVENTS_PATH, lease_token)
        return self._authorized(lambda: self._post(path, batch, EventsResponse))

    def send_report(self, lease_token: str, envelope: bytes) -> ReportResponse:
        """`envelope`: the JSON bytes of the signed report, the same at each try."""
        path = attempt_path(wire.REPORT_PATH, lease_token)
        return self._authorized(lambda: loads(ReportResponse, self._exchange("POST", path, envelope)[1]))

    def send_weights(self, lease_token: str, file: Path, digest: str) -> None:
        path = attempt_path(wire.WEIGHTS_PATH, lease_token)
        self._authorized(lambda: self._put_file(path, file, digest))

    def send_checkpoint(self, lease_token: str, file: Path, digest: str) -> None:
        path = attempt_path(wire.CHECKPOINT_PATH, lease_token)
        self._authorized(lambda: self._put_file(path, file, digest))

    def download(self, blob: Blob, to: Path, *, should_stop: Callable[[], Stopped | None]) -> None:
        """Stream a blob to a file, refusing a wrong size or digest. Raises: `Untrusted`, `Stopped`, `FarmError`."""
        self._authorized(lambda: self._download(blob, to, should_stop))

    def _renewed(self, identity: Identity) -> Credential:
        challenge = self._post(wire.CHALLENGE_PATH, ChallengeRequest(identity.device_id), Challenge).challenge
        message = challenge_message(identity.device_id, self.session, challenge)
        signature = sign(self.state.device_key(), wire.CHALLENGE_TYPE, message)
        request = RenewRequest(identity.device_id, self.session, challenge, signature, self.description)
        return self._post(wire.RENEW_PATH, request, Credential)

    def _authorized(self, action: Callable[[], T]) -> T:
        used = self.state.credential()
        try:
            return action()
        except Unauthorized:
            if self.state.credential() == used:
                self.renew()
        return action()

    def _identity(self) -> Identity:
        identity = self.state.identity()
        if identity is None:
            raise EnrolmentError(
                "this device is not enrolled: start the agent with a one-time token (--enrol-token FILE)"
            )
        return identity

    def _post(
        self, path: str, request: object, kind: type[T], *, timeout_s: float = TIMEOUT_S, none_on: int | None = None
    ) -> T:
        status, body = self._exchange("POST", path, dumps(request), timeout_s=timeout_s)
        if status == none_on:
            return None  # type: ignore[return-value]
        try:
            return loads(kind, body)
        except ProtocolError as error:
            raise Refused(
                f"POST {without_lease(path)}: the answer is not a {kind.__name__}: {error}", status=status
            ) from None

    def _exchange(self, method: str, path: str, body: bytes, *, timeout_s: float = TIMEOUT_S) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", **self._headers(path)}
        with self._connection(self.server, timeout_s) as connection:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER_BYTES)
            self._clock.compare(answer.headers.get("Date"))
            raise_for(method, path, answer, data)
            return answer.status, data

    def _put_file(self, path: str, file: Path, digest: str) -> None:
        headers = {**self._headers(path), "Content-Type": "application/octet-stream", wire.DIGEST_HEADER: digest}
        headers["Content-Length"] = str(file.stat().st_size)
        with self._connection(self.server, TIMEOUT_S * 6) as connection, file.open("rb") as source:
            connection.request("PUT", path, body=source, headers=headers)
            answer = connection.getresponse()
            raise_for("PUT", path, answer, answer.read(MAX_ANSWER_BYTES))

    def _download(self, blob: Blob, to: Path, should_stop: Callable[[], Stopped | None]) -> None:
        url = urljoin(self.server + "/", blob.url or "")
        origin, _, rest = _split(url)
        headers = self._headers(rest) if origin == _split(self.server)[0] else {}
        with self._connection(origin, TIMEOUT_S) as connection:
            connection.request("GET", rest, headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise_for("GET", rest, answer, answer.read(MAX_ANSWER_BYTES))
            _save(answer, blob, to, should_stop)

    def _headers(self, path: str) -> dict[str, str]:
        headers = {wire.PROTOCOL_HEADER: wire.PROTOCOL, "User-Agent": "pockfarm-agent"}
        headers[wire.CLOCK_HEADER] = f"{time.time():.3f}"
        if self.program is not None and path in (wire.ENROL_PATH, wire.RENEW_PATH):
            headers[wire.PROGRAM_HEADER] = dumps(self.program()).decode()
        if path in (wire.ENROL_PATH, wire.RENEW_PATH):
            headers[wire.MACHINE_HEADER] = dumps(machine_of(Board(), self.state.path)).decode()
        if self.condition is not None and (path == wire.LEASE_PATH or path.endswith(HEARTBEAT_END)):
            headers[wire.CONDITION_HEADER] = dumps(self.condition()).decode()
        credential = self.state.credential()
        if credential and path not in (wire.ENROL_PATH, wire.CHALLENGE_PATH, wire.RENEW_PATH):
            headers["Authorization"] = f"Bearer {credential.token}"
        return headers

    @contextmanager
    def _connection(self, origin: str, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
        parts = urlsplit(origin)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
        try:
            yield connection
        except (OSError, http.client.HTTPException) as error:
            problem = ""
            if isinstance(error, ssl.SSLCertVerificationError):
                problem = certificate.words_of(error, host, parts.port or 443, timeout_s)
            reason = str(problem or error or type(error).__name__)
            raise Unreachable(f"{origin}: {reason}", reason=reason) from None
        finally:
            connection.close()


def _save(answer: http.client.HTTPResponse, blob: Blob, to: Path, should_stop: Callable[[], Stopped | None]) -> None:
    digest, received = hashlib.sha256(), 0
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        while chunk := answer.read(CHUNK_BYTES):
            received += len(chunk)
            if received > blob.size_bytes:
                raise Untrusted("download.size", f"{to.name}: more than the {blob.size_bytes:,} bytes announced")
            digest.update(chunk)
            _write(file, chunk, to)
            stopped = should_stop()
            if stopped:
                raise stopped
    if received < blob.size_bytes:
        raise Unreachable(f"{to.name}: {received:,} of {blob.size_bytes:,} bytes, then the connection ended")
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        message = f"{to.name}: the farm sent sha256:{digest.hexdigest()}, the assignment names {blob.digest}"
        raise Untrusted("download.digest", message)


def _write(file: io.FileIO, chunk: bytes, to: Path) -> None:
    """Raises: `AttemptError`: what the disk says is no news of the farm's, and asking again does not help."""
    remaining = memoryview(chunk)
    try:
        while remaining:
            remaining = remaining[file.write(remaining) :]
    except OSError as error:
        raise AttemptError(
            "device.disk",
            f"{to.name} could not be written: {error.strerror}",
            cause="device",
            hint="make room on the device's disk",
        ) from None


def _is_origin(server: str) -> bool:
    parts = urlsplit(server)
    try:
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path == "" and parts.port != 0
    except ValueError:
        return False


def _split(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}", parts.path, f"{parts.path or '/'}{query}"


def as_attempt_error(error: FarmError) -> AttemptError:
    """Returns the error that a report states when a download finally failed."""
    if isinstance(error, Stale):
        return Stopped("lease.lost", str(error), cause="infra")
    cause = "service" if isinstance(error, Refused) else "infra"
    return AttemptError("download.failed", str(error), cause=cause)  # type: ignore[arg-type]
