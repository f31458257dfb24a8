"""The farm's signatures: Ed25519 over DSSE envelopes, and MAC'd challenges.

The key file (0600, in the state folder) holds the private key and the release number, which never falls. Every API
process of a farm must see the same file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents.wire import ROOT_TYPE, Envelope, ServerKey, Signature, key_message, pae

LOG = logging.getLogger(__name__)
CHALLENGE_S = 60.0


@dataclass(frozen=True)
class Signer:
    """The farm's signing key. Secrets stay inside."""

    key: Ed25519PrivateKey
    release_number: int
    challenge_secret: bytes = b""
    """Secret of challenges, where a rotation has kept it: processes with the old and the new key know each other's."""

    @property
    def public_key(self) -> str:
        """Raw 32 bytes, base64."""
        return base64.b64encode(self.key.public_key().public_bytes_raw()).decode()

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the public key's SHA-256."""
        return hashlib.sha256(self.key.public_key().public_bytes_raw()).hexdigest()[:16]

    def server_key(self) -> ServerKey:
        """Returns the key that devices learn at enrolment."""
        return ServerKey(self.key_id, self.public_key)

    def sign(self, payload_type: str, payload: bytes) -> Envelope:
        """Returns the DSSE envelope of these bytes."""
        signature = self.key.sign(pae(payload_type, payload))
        return Envelope(
            payloadType=payload_type,
            payload=base64.b64encode(payload).decode(),
            signatures=(Signature(self.key_id, base64.b64encode(signature).decode()),),
        )

    def _mac(self, text: str) -> str:
        return hmac.new(self.mac_secret(), text.encode(), hashlib.sha256).hexdigest()

    def mac_secret(self) -> bytes:
        """Returns the secret with which challenges are marked."""
        derived = hashlib.sha256(b"pockfarm challenge" + self.key.private_bytes_raw()).digest()
        return self.challenge_secret or derived

    def introduce(self, root: str) -> ServerKey:
        """Returns a root's public key (raw, base64), endorsed for devices that know this key and no root."""
        key_id = hashlib.sha256(base64.b64decode(root)).hexdigest()[:16]
        signature = self.key.sign(pae(ROOT_TYPE, key_message(key_id, root)))
        return ServerKey(key_id, root, self.key_id, base64.b64encode(signature).decode())

    def challenge(self, device_id: str) -> str:
        """Returns a fresh challenge for one device to sign; it needs no storage."""
        text = f"{time.time():.3f}:{secrets.token_hex(16)}"
        return f"{text}:{self._mac(f'{device_id}:{text}')}"

    def is_fresh_challenge(self, device_id: str, challenge: str) -> bool:
        """Whether it is one of ours, for this device, and less than a minute old."""
        text, _, mac = challenge.rpartition(":")
        if not hmac.compare_digest(mac.encode(), self._mac(f"{device_id}:{text}").encode()):
            return False
        return time.time() - float(text.partition(":")[0]) <= CHALLENGE_S


def load_signer(path: Path, *, release_number: int) -> Signer:
    """Loads the signer stored at `path`; it is made there (0600) on first use."""
    stored = _read_or_make(path)
    highest = max(int(stored["release_number"]), release_number)
    if highest != stored["release_number"]:
        _keep_release(path, {**stored, "release_number": highest})
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(str(stored["private_key"])))
    return Signer(key, highest, base64.b64decode(str(stored.get("challenge_secret", ""))))


def _keep_release(path: Path, body: dict[str, str | int]) -> None:
    """Writes the release number into the key file. A file that is mounted read-only stays as it is: the settings state
    the number at each start.
    """
    try:
        _replace(path, body)
    except OSError as error:
        LOG.warning(
            "%s cannot be written (%s): release number %s is not kept there", path, error, body["release_number"]
        )


def rotate(path: Path, following: Path) -> Signer:
    """Replaces this key with the key of another file. The private half of this one is gone then."""
    old, new = load_signer(path, release_number=0), load_signer(following, release_number=0)
    body: dict[str, str | int] = {
        "private_key": base64.b64encode(new.key.private_bytes_raw()).decode(),
        "release_number": max(old.release_number, new.release_number),
        "challenge_secret": base64.b64encode(old.mac_secret()).decode(),
    }
    _replace(path, body)
    following.unlink()
    return load_signer(path, release_number=0)


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
    """Creates the file whole or not at all; of two processes that try, one wins."""
    draft = _write_beside(path, body)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _replace(path: Path, body: dict[str, str | int]) -> None:
    os.replace(_write_beside(path, body), path)
