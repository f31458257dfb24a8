"""The way a device becomes known and stays so: enrolment, challenge, renewal, keys. Standard library only."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from device_agents.wire.codec import SENT_IF_SET, check, dumps
from device_agents.wire.envelope import Envelope, base64_bytes
from device_agents.wire.isolation import ISOLATION_LEVELS
from device_agents.wire.own_data import MAX_OWN_DATASETS, OwnDataset
from device_agents.wire.report import MeasurementClass

MAX_MODES = 16
_MODE = re.compile(r"[a-z]{1,40}")
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:@+-]{0,99}")
DEVICE_NAME_WORDS = "1-100 letters, digits, spaces and ._:@+-"


@dataclass(frozen=True)
class DeviceDescription:
    """A device's description of itself, at enrolment and at each renewal."""

    # It is part of what an enrolment signs, so a field that is added is `SENT_IF_SET`: agent and farm then write the
    # same bytes, though one of them is older than the field.

    name: str
    """The name for people; 1-100 letters, digits, spaces and `._:@+-`."""
    device_class: str
    """The kind of board: `x86-64`, `raspberry-pi-4`, `raspberry-pi-5`, `jetson-orin-nano`, `snapdragon-8-gen-2`..."""
    measurement_class: MeasurementClass
    """The worth of its numbers: a real board, this computer, an emulator, a simulator. On every report again."""
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
    """The quantities that it can measure: `temperature`, `frequency`, `throttling`, `energy`, `power`."""
    isolation_level: int = 0
    """The isolation that the sandbox of a job really gives, tried at start; each level has those below it: 0 nothing, 1
    own session, resource limits, no privileges, 2 a list of system calls (no network, one process), 3 namespaces and an
    empty root with only the job's folder, 4 a cgroup's limits on memory and processes.
    """
    agent_version: str = ""
    runner: Optional[str] = None
    """The emulator in front of the binary (`qemu-aarch64-static`), or null."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Facts that belong beside a number: `kernel`, `governor`, `power_mode`, `python`..."""
    own_datasets: tuple[OwnDataset, ...] = field(default=(), metadata=SENT_IF_SET)
    """Data sets that stay on it, and that its operator lets runs use there."""
    modes: tuple[str, ...] = field(default=(), metadata=SENT_IF_SET)
    """The modes that it takes beside those that every agent does (`settings.FIRST_MODES`)."""

    def __post_init__(self) -> None:
        check(bool(DEVICE_NAME.fullmatch(self.name)), "name", DEVICE_NAME_WORDS)
        check(bool(DEVICE_NAME.fullmatch(self.device_class)), "device_class", DEVICE_NAME_WORDS)
        check(self.cores >= 1, "cores", "at least 1")
        check(self.memory_bytes >= 1, "memory_bytes", "at least 1")
        most = len(ISOLATION_LEVELS) - 1
        check(0 <= self.isolation_level <= most, "isolation_level", f"0 to {most}")
        check(len(self.modes) <= MAX_MODES, "modes", f"at most {MAX_MODES}")
        for number, mode in enumerate(self.modes):
            check(bool(_MODE.fullmatch(mode)), f"modes[{number}]", "a word of 1-40 lower-case letters")
        check(len(self.own_datasets) <= MAX_OWN_DATASETS, "own_datasets", f"at most {MAX_OWN_DATASETS}")


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
        check(len(base64_bytes("public_key", self.public_key)) == 32, "public_key", "32 bytes")


@dataclass(frozen=True)
class EnrolRequest:
    """The first thing a device ever says. The private key never leaves it."""

    token: str
    """The enrolment token, which is good once."""
    public_key: str
    """Ed25519, raw 32 bytes, base64; made on the device."""
    session: str
    """Random id of this start of the agent."""
    description: DeviceDescription
    signature: str = ""
    """The signature by that key over `pae(ENROL_TYPE, enrol_message(...))`, base64: public keys are no secret, receipts
    hold them. Empty only from agents that are older than it, which no farm enrols.
    """

    def __post_init__(self) -> None:
        check(len(base64_bytes("public_key", self.public_key)) == 32, "public_key", "32 bytes")
        check(8 <= len(self.session) <= 100, "session", "8-100 characters")


@dataclass(frozen=True)
class Credential:
    """A short-lived bearer token, bound to one device and one session."""

    token: str
    expires_at: float
    lifetime_s: float
    """Seconds that the session lasts, at most 3600. Boards may have a wrong clock, so the agent renews after half of
    this, by its own stop-watch.
    """
    server_keys: tuple[ServerKey, ...] = ()
    root: Optional[ServerKey] = field(default=None, metadata=SENT_IF_SET)
    """The key that the farm's operators keep offline. Trusted as it is at enrolment; later by a device that has none,
    if a key that it trusts endorses it over `pae(ROOT_TYPE, key_message(...))`. Then `server_keys` count no more."""
    key_list: Optional[Envelope] = field(default=None, metadata=SENT_IF_SET)
    """`KeyList`, signed by the root."""


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
    """The signature by the device key over `pae(CHALLENGE_TYPE, challenge_message(device_id, session, challenge))`,
    base64.
    """
    description: DeviceDescription

    def __post_init__(self) -> None:
        check(8 <= len(self.session) <= 100, "session", "8-100 characters")


def enrol_message(request: EnrolRequest) -> bytes:
    """Payload of an enrolment's signature: all that the request says, but the token as its hash."""
    token_hash = hashlib.sha256(request.token.encode("utf-8", "replace")).hexdigest()
    return dumps(
        {
            "token_sha256": token_hash,
            "public_key": request.public_key,
            "session": request.session,
            "description": request.description,
        }
    )


def challenge_message(device_id: str, session: str, challenge: str) -> bytes:
    """Payload of a renewal's signature."""
    return dumps({"device_id": device_id, "session": session, "challenge": challenge})


def key_message(key_id: str, public_key: str) -> bytes:
    """Payload of a key's endorsement."""
    return dumps({"key_id": key_id, "public_key": public_key})
