"""What an agent and the farm say to each other: wire types and paths. Standard library only.

Conventions. JSON bodies, one dataclass each, written by `dumps` and read by `loads` / `from_json`, which refuse
unknown, missing and ill-typed fields by name (`ProtocolError`). `_at` is seconds since 1970-01-01 UTC, `_s` seconds,
`_us` microseconds, `_mj` millijoules, `_c` degrees Celsius, `_hz` hertz, `_bytes` bytes. Absent numbers are null,
never zero or NaN. Digests are `sha256:<64 hex digits>`. Keys, signatures and payloads are standard base64 with padding.

Who may call. `/agent/enrol` needs the one-time token in its body; `/agent/challenge` and `/agent/renew` need nothing
but the signature; everything else needs `Authorization: Bearer <credential>`. The answers that an agent acts on: 401
(the credential ran out or was revoked: renew once, then give up), 409 (the lease token or the session is stale: stop,
keep the result), 204 (no work), 429 and 5xx (try again later, `Retry-After` obeyed), other 4xx (do not try again).
Every request carries `X-Pockfarm-Protocol: pockfarm.agent/1`. The flow is told in `docs/protocol.md`.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Optional

from device_agents.plausibility import check_plausible
from device_agents.report import (
    MAX_COUNT,
    MAX_STEPS,
    MAX_US,
    Blob,
    Block,
    Cause,
    DeviceState,
    Energy,
    Evaluation,
    KernelTime,
    Measurement,
    MeasurementClass,
    Memory,
    Mode,
    Outcome,
    OutcomeState,
    Report,
    Verdict,
    VerdictKind,
    check_count,
    check_digest,
    check_moment,
)
from device_agents.tuning_report import KernelTuning, Tuning, VariantTime
from device_agents.wire import ProtocolError, check, dumps, from_json, loads, to_json

PROTOCOL = "pockfarm.agent/1"
PROTOCOL_HEADER = "X-Pockfarm-Protocol"
DIGEST_HEADER = "X-Pockfarm-Digest"
"""On `PUT …/weights`: the digest of the body. The server refuses (422) a body that does not match."""
CLOCK_HEADER = "X-Pockfarm-Clock"  # the device's time, seconds since 1970; the farm's is in `Date`

ENROL_PATH = "/agent/enrol"
"""POST EnrolRequest -> 201 EnrolResponse. 403: token unknown, used, expired, or for another device class."""
CHALLENGE_PATH = "/agent/challenge"
"""POST ChallengeRequest -> 200 Challenge. 404: no such device."""
RENEW_PATH = "/agent/renew"
"""POST RenewRequest -> 200 Credential. 403: bad signature, challenge too old, device removed.
A new `session` voids the older session of the same device: its next write gets 409."""
LEASE_PATH = "/agent/lease"
"""POST LeaseRequest, held up to `wait_s` -> 200 Assignment, or 204 when there is no work. 409: session voided."""
HEARTBEAT_PATH = "/agent/attempts/{lease_token}/heartbeat"
"""POST HeartbeatRequest -> 200 HeartbeatResponse. 409: the lease is not the agent's any more."""
EVENTS_PATH = "/agent/attempts/{lease_token}/events"
"""POST EventBatch -> 200 EventsResponse. Sending a sequence number again changes nothing. 409 as above."""
REPORT_PATH = "/agent/attempts/{lease_token}/report"
"""POST Envelope (payload type `REPORT_TYPE`, payload = `dumps(Report)`, signed by the device key, key id = device id)
-> 200 ReportResponse. The same body again -> 200 `already-recorded`; another body -> 409."""
WEIGHTS_PATH = "/agent/attempts/{lease_token}/weights"
"""PUT the trained weights (safetensors, parameters only) as the raw body, with `DIGEST_HEADER`, before the report that
names them -> 200 or 201, empty body. GET: the *starting* weights of the attempt (an earlier run's), raw bytes."""
BUNDLE_PATH = "/agent/attempts/{lease_token}/bundle"
"""GET -> 200 raw bytes of the bundle, with Content-Length."""
DATASET_PATH = "/agent/attempts/{lease_token}/dataset"
"""GET -> 200 raw bytes of the npz, with Content-Length."""

ASSIGNMENT_TYPE = "application/vnd.pockfarm.assignment+json"
"""DSSE payload type of `Statement`."""
REPORT_TYPE = "application/vnd.pockfarm.report+json"
"""DSSE payload type of `Report`."""
CHALLENGE_TYPE = "application/vnd.pockfarm.challenge"
"""What a device signs to renew: `pae(CHALLENGE_TYPE, challenge_message(...))`."""
KEY_TYPE = "application/vnd.pockfarm.key"
"""What an old server key signs to introduce a new one: `pae(KEY_TYPE, key_message(...))`."""

LEASE_S = 60.0
HEARTBEAT_INTERVAL_S = 10.0
MAX_LONG_POLL_S = 60.0
EMULATION_TIME_FACTOR = 10.0
MAX_REPORT_BYTES = 20 << 20
"""Of a report before it is sealed; base64 adds a third, and the farm takes 32 MiB."""
MAX_TUNE_S = 86_400.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:@+-]{0,99}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{8,200}")


@dataclass(frozen=True)
class DeviceDescription:
    """What a device says about itself, at enrolment and at each renewal."""

    name: str
    """For people; 1-100 letters, digits, spaces and `._:@+-`."""
    device_class: str
    """What kind of board: `x86-64`, `raspberry-pi-4`, `raspberry-pi-5`, `jetson-orin-nano`, `snapdragon-8-gen-2`..."""
    measurement_class: MeasurementClass
    """What its numbers are worth: a real board, this computer, an emulator, a simulator. On every report again."""
    targets: tuple[str, ...]
    """Compiler targets that it can run, best first, such as (`x86-64-v4`, `x86-64-v3`)."""
    architecture: str
    """`x86_64` or `aarch64`, of the binaries it runs (for an emulated device: of the emulated machine)."""
    cpu_model: str
    features: tuple[str, ...]
    """CPU feature words as in /proc/cpuinfo, sorted (`avx2`, `fma`, `asimd`...)."""
    cores: int
    memory_bytes: int
    sensors: tuple[str, ...] = ()
    """What it can measure: `temperature`, `frequency`, `throttling`, `energy`, `power`."""
    isolation_level: int = 0
    """What the sandbox of a job really gives, tried at start; each level has those below it: 0 nothing, 1 own session,
    resource limits, no new privileges, 2 namespaces (no network, own process tree), 3 read-only file system and a
    hidden state folder, 4 cgroup v2 limits on memory and processes."""
    agent_version: str = ""
    runner: Optional[str] = None
    """The emulator in front of the binary (`qemu-aarch64-static`), or null."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Facts that belong beside a number: `kernel`, `governor`, `power_mode`, `python`..."""

    def __post_init__(self) -> None:
        check(bool(_NAME.fullmatch(self.name)), "name", "1-100 letters, digits, spaces and ._:@+-")
        check(bool(_NAME.fullmatch(self.device_class)), "device_class", "1-100 letters, digits, spaces and ._:@+-")
        check(self.cores >= 1, "cores", "at least 1")
        check(self.memory_bytes >= 1, "memory_bytes", "at least 1")
        check(0 <= self.isolation_level <= 4, "isolation_level", "0 to 4")


@dataclass(frozen=True)
class ServerKey:
    """A public key that the farm signs assignments with.

    At enrolment all keys are trusted. Later (renewal) a new key is accepted only with an endorsement: a signature by a
    key that the device already trusts over `pae(KEY_TYPE, key_message(key_id, public_key))`.
    """

    key_id: str
    public_key: str
    """Ed25519, raw 32 bytes, base64."""
    endorsed_by: Optional[str] = None
    endorsement: Optional[str] = None

    def __post_init__(self) -> None:
        check(len(_base64("public_key", self.public_key)) == 32, "public_key", "32 bytes")


@dataclass(frozen=True)
class EnrolRequest:
    """The first thing a device ever says. The private key never leaves it."""

    token: str
    """One-time enrolment token."""
    public_key: str
    """Ed25519, raw 32 bytes, base64; made on the device."""
    session: str
    """Random id of this start of the agent."""
    description: DeviceDescription

    def __post_init__(self) -> None:
        check(len(_base64("public_key", self.public_key)) == 32, "public_key", "32 bytes")
        check(8 <= len(self.session) <= 100, "session", "8-100 characters")


@dataclass(frozen=True)
class Credential:
    """A short-lived bearer token, bound to one device and one session."""

    token: str
    expires_at: float
    lifetime_s: float
    """At most 3600. Boards may have a wrong clock, so the agent renews after half of this, by its own stop-watch."""
    server_keys: tuple[ServerKey, ...] = ()


@dataclass(frozen=True)
class EnrolResponse:
    device_id: str
    credential: Credential


@dataclass(frozen=True)
class ChallengeRequest:
    device_id: str


@dataclass(frozen=True)
class Challenge:
    """Random bytes of the server's making (or a MAC'd time: it need not be stored), good for a minute."""

    challenge: str
    """Opaque, at most 500 characters."""


@dataclass(frozen=True)
class RenewRequest:
    """Proof of the device key, in exchange for a fresh credential."""

    device_id: str
    session: str
    challenge: str
    signature: str
    """By the device key over `pae(CHALLENGE_TYPE, challenge_message(device_id, session, challenge))`, base64."""
    description: DeviceDescription

    def __post_init__(self) -> None:
        check(8 <= len(self.session) <= 100, "session", "8-100 characters")


@dataclass(frozen=True)
class Signature:
    keyid: str
    sig: str
    """Ed25519 over `pae(payloadType, payload)`, base64."""


@dataclass(frozen=True)
class Envelope:
    """A DSSE envelope (https://github.com/secure-systems-lab/dsse), field names as in its specification."""

    payloadType: str
    payload: str
    """The signed bytes, base64."""
    signatures: tuple[Signature, ...]

    def payload_bytes(self) -> bytes:
        """The signed bytes. Raises `ProtocolError` when `payload` is not base64."""
        return _base64("payload", self.payload)


@dataclass(frozen=True)
class Statement:
    """What the farm signs for one attempt; payload of the assignment's envelope. The agent trusts nothing else."""

    run_id: str
    attempt: int
    device_id: str
    device_class: str
    bundle_digest: str
    bundle_bytes: int
    target: str
    model_digest: str
    plan_digest: str
    not_before: float
    expires_at: float
    release_number: int
    """Never falls for one signing key. A device refuses less than the highest it has seen (rollback ratchet)."""
    dataset_digest: Optional[str] = None
    weights_digest: Optional[str] = None

    def __post_init__(self) -> None:
        check_digest("bundle_digest", self.bundle_digest)
        check_digest("dataset_digest", self.dataset_digest)
        check_digest("weights_digest", self.weights_digest)
        check(self.bundle_bytes > 0, "bundle_bytes", "more than 0")
        check(self.release_number >= 0, "release_number", "at least 0")


@dataclass(frozen=True)
class Limits:
    """What an attempt may use. The agent may hold it to less (its own settings), never more."""

    transfer_s: float = 900.0
    run_s: float = 1800.0
    """Wall-clock time of all processes of the binary together, as for a real board: on an emulated device the agent
    (and the farm's own run clock) multiply it by `EMULATION_TIME_FACTOR`."""
    memory_bytes: int = 4 << 30
    disk_bytes: int = 4 << 30


@dataclass(frozen=True)
class LeaseRequest:
    """Asks for work; held open by the server up to `wait_s`."""

    session: str
    wait_s: float = 25.0
    isolation_level: int = 0


@dataclass(frozen=True)
class Assignment:
    """One attempt of one run, leased to one device."""

    run_id: str
    attempt: int
    """From 1."""
    lease_token: str
    """Fencing token; URL-safe characters. In the path of every write of the attempt."""
    lease_expires_at: float
    lease_s: float
    """Time until the lease ends unless a heartbeat renews it (`LEASE_S`)."""
    envelope: Envelope
    bundle: Blob
    mode: Mode
    steps: int
    """Measured or training steps; ignored by eval and tune."""
    warmup: int = 3
    """Steps before measuring; profile only."""
    seed: int = 0
    learning_rate: Optional[float] = None
    """Null: the bundle's."""
    threads: Optional[int] = None
    """Null: the bundle's."""
    dataset: Optional[Blob] = None
    """npz with the model's inputs by name (or `x`) and labels `y`. Null for profile only (synthetic data)."""
    weights: Optional[Blob] = None
    """Starting weights (safetensors); null: the bundle's."""
    tune_s: Optional[float] = None
    """Mode tune: seconds that the measuring may take."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check(bool(_TOKEN.fullmatch(self.lease_token)), "lease_token", "8-200 URL-safe characters")
        check(self.attempt >= 1, "attempt", "at least 1")
        check(0 <= self.steps <= MAX_STEPS, "steps", f"0 to {MAX_STEPS:,}")
        check(0 <= self.warmup <= MAX_STEPS, "warmup", f"0 to {MAX_STEPS:,}")
        check(0 <= self.seed < 1 << 63, "seed", "0 to 2^63 - 1")
        check(self.threads is None or 1 <= self.threads <= 1024, "threads", "1 to 1024")
        check(self.tune_s is None or 0 < self.tune_s <= MAX_TUNE_S, "tune_s", f"above 0, at most {MAX_TUNE_S:,.0f}")


@dataclass(frozen=True)
class HeartbeatRequest:
    """I am alive. Sent each `HEARTBEAT_INTERVAL_S` from a process of its own."""

    phase: str = "run"
    """`download`, `verify`, `run` or `upload`; for people."""
    steps_done: int = 0


@dataclass(frozen=True)
class HeartbeatResponse:
    lease_expires_at: float
    lease_s: float
    cancel: bool = False
    """True: stop (SIGTERM, 10 s, SIGKILL of the group) and report `cancelled`."""


@dataclass(frozen=True)
class Event:
    """Something that happened in an attempt. Which optional fields are set depends on `kind`:

    phase: `message` is the new phase. step: `step`, `loss` (null when not finite), `step_us`. eval: `message` (`before`
    or `after`), `loss`, `accuracy`, `samples`. progress: `fraction` 0..1. log: `message`, a stderr line.
    """

    sequence: int
    """From 1, without gaps, per attempt."""
    at: float
    kind: Literal["phase", "step", "eval", "progress", "log"]
    message: Optional[str] = None
    step: Optional[int] = None
    loss: Optional[float] = None
    step_us: Optional[float] = None
    accuracy: Optional[float] = None
    samples: Optional[int] = None
    fraction: Optional[float] = None

    def __post_init__(self) -> None:
        check(0 <= self.sequence <= MAX_COUNT, "sequence", "0 to 2^62")
        check_moment("at", self.at)
        check(self.step is None or 0 <= self.step <= MAX_STEPS, "step", f"0 to {MAX_STEPS:,}")
        check(self.step_us is None or 0 < self.step_us <= MAX_US, "step_us", f"more than 0, at most {MAX_US:g}")
        check_count("samples", self.samples)
        for name in ("accuracy", "fraction"):
            value = getattr(self, name)
            check(value is None or 0 <= value <= 1, name, "0 to 1")


MAX_EVENTS_PER_BATCH = 1000


@dataclass(frozen=True)
class EventBatch:
    """Events in order, at most `MAX_EVENTS_PER_BATCH`."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        check(len(self.events) <= MAX_EVENTS_PER_BATCH, "events", f"at most {MAX_EVENTS_PER_BATCH}")


@dataclass(frozen=True)
class EventsResponse:
    next_sequence: int
    """The lowest sequence number that the farm does not have."""


@dataclass(frozen=True)
class ReportResponse:
    state: Literal["recorded", "already-recorded", "superseded"]
    """`superseded`: kept as evidence, but a newer attempt owns the run."""


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE pre-authentication encoding: the bytes that are really signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def challenge_message(device_id: str, session: str, challenge: str) -> bytes:
    """Payload of a renewal's signature."""
    return dumps({"device_id": device_id, "session": session, "challenge": challenge})


def key_message(key_id: str, public_key: str) -> bytes:
    """Payload of a key's endorsement."""
    return dumps({"key_id": key_id, "public_key": public_key})


def attempt_path(template: str, lease_token: str) -> str:
    """One of the attempt paths above, filled in."""
    return template.replace("{lease_token}", lease_token)


def _base64(where: str, text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError(where, "must be base64") from None


__all__ = [
    "ASSIGNMENT_TYPE", "BUNDLE_PATH", "CHALLENGE_PATH", "CHALLENGE_TYPE", "CLOCK_HEADER", "DATASET_PATH",
    "DIGEST_HEADER", "EMULATION_TIME_FACTOR", "ENROL_PATH", "EVENTS_PATH", "HEARTBEAT_INTERVAL_S", "HEARTBEAT_PATH",
    "KEY_TYPE", "LEASE_PATH", "LEASE_S", "MAX_EVENTS_PER_BATCH", "MAX_LONG_POLL_S", "MAX_REPORT_BYTES", "MAX_STEPS",
    "MAX_TUNE_S",
    "PROTOCOL", "PROTOCOL_HEADER", "RENEW_PATH", "REPORT_PATH", "REPORT_TYPE", "WEIGHTS_PATH", "Assignment", "Blob",
    "Block", "Cause", "Challenge", "ChallengeRequest", "Credential", "DeviceDescription", "DeviceState", "Energy",
    "EnrolRequest", "EnrolResponse", "Envelope", "Evaluation", "Event", "EventBatch", "EventsResponse",
    "HeartbeatRequest", "HeartbeatResponse", "KernelTime", "KernelTuning", "LeaseRequest", "Limits", "Measurement",
    "MeasurementClass", "Memory", "Mode", "Outcome", "OutcomeState", "ProtocolError", "RenewRequest", "Report",
    "ReportResponse", "ServerKey", "Signature", "Statement", "Tuning", "VariantTime", "Verdict", "VerdictKind",
    "attempt_path", "challenge_message", "check_plausible", "dumps", "from_json", "key_message", "loads", "pae",
    "to_json",
]  # fmt: skip
