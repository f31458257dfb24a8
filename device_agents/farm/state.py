"""The agent's state folder: device key, identity, credential, trusted keys, release ratchet. All files are 0600.

device-key          Ed25519 private key, raw, base64; made here, never leaves
identity.json       device id, farm URL, trusted server keys, highest release seen per key
choices.json        what its operator chose: name, class, runner, engine
used.json           assignments that were taken, until they expire: none is taken twice
credential.json     the short-lived bearer token; rewritten at each renewal
agent.lock          held by the running agent: one agent per folder
alive               touched every two seconds by the running agent
spool/              finished results that the farm does not have yet (`spool.py`)
unfinished/         checkpoints of runs whose weights stay on this board (`unfinished.py`)
scratch/            the running job; wiped between jobs
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Optional

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from device_agents.errors import EnrolmentError
from device_agents.wire import Credential, Envelope, KeyList, ProtocolError, Signature, dumps, loads, pae

_PROGRAM = re.compile(r"program-[0-9a-f]{16}")


@dataclass(frozen=True)
class Identity:
    """The identity of this device at its farm, and the keys that it trusts."""

    device_id: str
    server: str
    trusted_keys: Mapping[str, str] = field(default_factory=dict)
    """Key id -> raw public key, base64."""
    highest_release: Mapping[str, int] = field(default_factory=dict)
    """Key id -> highest release number seen (the ratchet against rollback)."""
    # Python 3.9 reads these annotations too (`get_type_hints`), and knows no `|` of types.
    root: Optional[str] = None  # noqa: UP045
    """The farm's root, raw public key, base64: then the keys that it has listed are trusted, not `trusted_keys`."""
    key_list: Optional[KeyList] = None  # noqa: UP045
    """The newest that the root has signed."""

    def trusted_at(self, now: float) -> Mapping[str, str]:
        """The keys that may sign an assignment now: key id -> raw public key, base64."""
        if self.root is None:
            return self.trusted_keys
        return self.key_list.good_at(now) if self.key_list else {}


@dataclass(frozen=True)
class Choices:
    """The operator's choices for this device; they hold at a later start that does not state them. None: not chosen."""

    # Python 3.9 reads these annotations too (`get_type_hints`), and knows no `|` of types.
    name: Optional[str] = None  # noqa: UP045
    device_class: Optional[str] = None  # noqa: UP045
    runner: Optional[str] = None  # noqa: UP045
    engine: Optional[str] = None  # noqa: UP045

    def filled(self, earlier: Choices) -> Choices:
        """These, and what was chosen earlier where they say nothing."""
        return Choices(*(now or before for now, before in zip(astuple(self), astuple(earlier))))


@dataclass(frozen=True)
class Used:
    """The marks of assignments that were taken before."""

    until: Mapping[str, float] = field(default_factory=dict)
    """When what is known by this mark is of no use to anybody any more."""


class StateFolder:
    """Reads and writes the files above. Writes replace whole files atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._was_there = self.path.exists()
        self._is_new = not self._was_there or all(_PROGRAM.fullmatch(path.name) for path in self.path.iterdir())
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o700)
        self.spool = self._folder("spool")
        self.scratch = self._folder("scratch")
        self.unfinished = self._folder("unfinished")

    def has_key(self) -> bool:
        """Whether the device has a key, which a farm may know."""
        return (self.path / "device-key").exists()

    def remove_if_new(self) -> None:
        """Leaves the disk as it was before this agent came, if it has enrolled nowhere: a folder that was empty, or had
        the agent's own program in it (`unpack.py`), stays empty. Folders above it that had to be made stay, too.
        """
        if not self._is_new or (self.path / "identity.json").exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._was_there:
            self.path.mkdir(exist_ok=True, mode=0o700)

    def device_key(self) -> Ed25519PrivateKey:
        """The device's key, made at the first call."""
        path = self.path / "device-key"
        if not path.exists():
            if (self.path / "identity.json").exists():
                message = (
                    f"{path} is missing, and the farm knows this device by it: put it back from a backup, or delete "
                )
                raise EnrolmentError(message + "the state folder and enrol again with a new token")
            self.write("device-key", base64.b64encode(_raw(Ed25519PrivateKey.generate())))
        try:
            return Ed25519PrivateKey.from_private_bytes(base64.b64decode(path.read_bytes(), validate=True))
        except ValueError:
            raise EnrolmentError(f"{path} is not a device key; delete the state folder and enrol again") from None

    def identity(self) -> Identity | None:
        """Returns the device's identity; None before enrolment."""
        path = self.path / "identity.json"
        try:
            return loads(Identity, path.read_bytes())
        except FileNotFoundError:
            return None
        except ProtocolError as error:
            raise EnrolmentError(f"{path} is damaged ({error}); delete the state folder and enrol again") from None

    def save_identity(self, identity: Identity) -> None:
        self.write("identity.json", dumps(identity))

    def credential(self) -> Credential | None:
        """The last credential, good or not; None when there is none."""
        try:
            return loads(Credential, (self.path / "credential.json").read_bytes())
        except (FileNotFoundError, ProtocolError):
            return None

    def save_credential(self, credential: Credential) -> None:
        self.write("credential.json", dumps(credential))

    def choices(self) -> Choices:
        """Returns the choices of an earlier start."""
        try:
            return loads(Choices, (self.path / "choices.json").read_bytes())
        except (FileNotFoundError, ProtocolError):
            return Choices()

    def save_choices(self, choices: Choices) -> None:
        if choices != self.choices():
            self.write("choices.json", dumps(choices))

    def raise_release(self, key_id: str, release_number: int) -> None:
        """Remembers the highest release number seen for a key. It never falls."""
        with self.locked("identity"):
            identity = self.identity()
            if identity is None or identity.highest_release.get(key_id, -1) >= release_number:
                return
            self.save_identity(replace(identity, highest_release={**identity.highest_release, key_id: release_number}))

    def use(self, mark: str, *, expires_at: float, now: float) -> bool:
        """Records on disk that this was taken, before anything is done with it. Returns False if it was taken
        before.
        """
        with self.locked("identity"):
            path = self.path / "used.json"
            try:
                used = loads(Used, path.read_bytes()).until
            except FileNotFoundError:
                used = {}
            except ProtocolError as error:
                message = f"{path} is damaged ({error}): what this board took before is not known any more"
                raise EnrolmentError(f"{message}; delete the state folder and enrol again") from None
            if mark in used:
                return False
            unexpired = {used_mark: until for used_mark, until in used.items() if until >= now}
            self.write("used.json", dumps(Used({**unexpired, mark: expires_at})))
            return True

    def write(self, name: str, data: bytes) -> None:
        """Replaces one file: written beside it with mode 0600, flushed to disk, renamed."""
        path = self.path / name
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def forget_programs(self, *, running: Path) -> None:
        """Removes what one-file agents of before laid out here (`unpack.py`), but the newest: it is the way back.

        Only while the agent's lock is held: an agent at work starts its processes from its own folder.
        """
        programs = [path for path in self.path.glob("program-*") if _PROGRAM.fullmatch(path.name) and path != running]
        for path in sorted(programs, key=lambda path: path.stat().st_mtime)[:-1]:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Holds `name`.lock. Raises `BlockingIOError` when not `wait` and another process holds it."""
        with (self.path / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def _folder(self, name: str) -> Path:
        path = self.path / name
        path.mkdir(exist_ok=True, mode=0o700)
        return path


def _raw(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of a private key. (`private_bytes_raw` is younger than what Debian 12 has.)"""
    return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())


def public_key_text(key: Ed25519PrivateKey) -> str:
    """Raw public key, base64, as on the wire."""
    return base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def sign(key: Ed25519PrivateKey, payload_type: str, payload: bytes) -> str:
    """Ed25519 over the DSSE encoding of `payload`, base64."""
    return base64.b64encode(key.sign(pae(payload_type, payload))).decode()


def seal(key: Ed25519PrivateKey, key_id: str, payload_type: str, payload: bytes) -> Envelope:
    """A DSSE envelope with one signature."""
    signature = Signature(key_id, sign(key, payload_type, payload))
    return Envelope(payload_type, base64.b64encode(payload).decode(), (signature,))
