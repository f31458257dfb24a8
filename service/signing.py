"""The farm's signatures: Ed25519 over DSSE envelopes, and MAC'd challenges.

The key file (0600, in the state folder) holds the private key and the release number, which never falls. Every API
process of a farm must see the same file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from device_agents.wire import ASSIGNMENT_TYPE, Envelope, ServerKey, Signature, Statement, dumps, pae

CHALLENGE_S = 60.0


@dataclass(frozen=True)
class Signer:
    """The farm's signing key. Secrets stay inside."""

    key: Ed25519PrivateKey
    release_number: int

    @property
    def public_key(self) -> str:
        """Raw 32 bytes, base64."""
        return base64.b64encode(self.key.public_key().public_bytes_raw()).decode()

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the public key's SHA-256."""
        return hashlib.sha256(self.key.public_key().public_bytes_raw()).hexdigest()[:16]

    def server_key(self) -> ServerKey:
        """What devices learn at enrolment."""
        return ServerKey(self.key_id, self.public_key)

    def sign(self, statement: Statement) -> Envelope:
        """The DSSE envelope of an assignment's statement."""
        payload = dumps(statement)
        signature = self.key.sign(pae(ASSIGNMENT_TYPE, payload))
        return Envelope(
            payloadType=ASSIGNMENT_TYPE,
            payload=base64.b64encode(payload).decode(),
            signatures=(Signature(self.key_id, base64.b64encode(signature).decode()),),
        )

    def _mac(self, text: str) -> str:
        secret = hashlib.sha256(b"pockfarm challenge" + self.key.private_bytes_raw()).digest()
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()

    def challenge(self, device_id: str) -> str:
        """Something fresh for one device to sign; it needs no storage."""
        text = f"{time.time():.3f}:{secrets.token_hex(16)}"
        return f"{text}:{self._mac(f'{device_id}:{text}')}"

    def is_fresh_challenge(self, device_id: str, challenge: str) -> bool:
        """Whether it is one of ours, for this device, and less than a minute old."""
        text, _, mac = challenge.rpartition(":")
        if not hmac.compare_digest(mac.encode(), self._mac(f"{device_id}:{text}").encode()):
            return False
        return time.time() - float(text.partition(":")[0]) <= CHALLENGE_S


def verify(public_key: str, signature: str, message: bytes) -> bool:
    """Whether `signature` (base64) is the Ed25519 signature of `message` by `public_key` (raw, base64)."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_signer(path: Path, *, release_number: int) -> Signer:
    """The signer kept at `path`; made there (0600) on first use."""
    stored = _read_or_make(path)
    highest = max(int(stored["release_number"]), release_number)
    if highest != stored["release_number"]:
        _replace(path, {**stored, "release_number": highest})
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(str(stored["private_key"])))
    return Signer(key, highest)


def _read_or_make(path: Path) -> dict[str, str | int]:
    if not path.exists():
        private = base64.b64encode(Ed25519PrivateKey.generate().private_bytes_raw()).decode()
        _create(path, {"private_key": private, "release_number": 0})
    stored: dict[str, str | int] = json.loads(path.read_text())
    return stored


def _write_beside(path: Path, body: dict[str, str | int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as out:
        json.dump(body, out)
        out.flush()
        os.fsync(out.fileno())
    return draft


def _create(path: Path, body: dict[str, str | int]) -> None:
    """Whole or not at all; of two processes that try, one wins."""
    draft = _write_beside(path, body)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _replace(path: Path, body: dict[str, str | int]) -> None:
    os.replace(_write_beside(path, body), path)
