"""The farm's side of its root: the keys that it asks to be listed, the signed list, and the change to the next key.

`key-list.json` beside the signing key holds the root's public key and the newest list; it is no secret, and there is
none while the farm has no root. The root's private half is never here (`service/root.py`).
"""

from __future__ import annotations

import base64
import errno
import hashlib
from dataclasses import dataclass
from pathlib import Path

from device_agents.wire import KEY_LIST_TYPE, Envelope, KeyList, ListedKey, ProtocolError, dumps, loads, pae
from device_agents.wire.ed25519 import verify
from service.base.private import replace_file
from service.base.settings import Settings
from service.store.signing import Signer, load_signer
from service.store.signing import rotate as rotate_files

KEY_LIST_NAME = "key-list.json"
SOON = 1.0


class KeyListError(Exception):
    """The operator must act; the message says how."""


@dataclass(frozen=True)
class KeyListFile:
    """The list of keys as the root's owner writes it and as the farm stores it."""

    root: str
    """Raw public key, base64."""
    key_list: Envelope


@dataclass(frozen=True)
class Rooted:
    """A file whose signature holds."""

    root: str
    key_list: Envelope
    keys: KeyList


@dataclass(frozen=True)
class KeyRequest:
    """A farm's request to its root for a signature: the keys that it has, and the number of its newest list."""

    number: int
    keys: tuple[ListedKey, ...]
    revoked: tuple[str, ...] = ()


def key_id_of(public_key: str) -> str:
    """Returns the first 16 hex digits of the raw public key's SHA-256."""
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()[:16]


def rooted(path: Path) -> Rooted | None:
    """Returns the farm's root and newest list; None without. Raises: KeyListError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return opened(data, str(path))


def opened(data: bytes, where: str) -> Rooted:
    """Returns a list and the root that it names. Raises: KeyListError unless that root has signed it."""
    try:
        file = loads(KeyListFile, data)
        payload = file.key_list.payload_bytes()
        is_signed = len(file.key_list.signatures) == 1 and verify(
            file.root, file.key_list.signatures[0].sig, pae(KEY_LIST_TYPE, payload)
        )
        if file.key_list.payloadType != KEY_LIST_TYPE or not is_signed:
            raise KeyListError(f"{where}: the root that it names has not signed it")
        return Rooted(file.root, file.key_list, loads(KeyList, payload))
    except ProtocolError as error:
        raise KeyListError(
            f"{where} holds no signed list of keys: {error}; the root signs one, of what key-request writes"
        ) from None


def prepare(settings: Settings) -> Signer:
    """Makes the key for the next rotation. Raises: KeyListError if there is one."""
    path = settings.next_signing_key_path
    if path.exists():
        raise KeyListError(f"{path} is there: it is prepared already; rotate-key takes it")
    return load_signer(path, release_number=0)


def request(settings: Settings) -> bytes:
    """Returns what the root is to sign: the farm's key, the prepared one if there is one, and what was revoked before.

    Raises: KeyListError if the farm has no key yet.
    """
    if not settings.signing_key_path.exists():
        raise KeyListError(f"{settings.signing_key_path} is missing: start the farm once, which makes its key")
    paths = (settings.signing_key_path, settings.next_signing_key_path)
    signers = [load_signer(path, release_number=0) for path in paths if path.exists()]
    keys = {signer.key_id: ListedKey(signer.key_id, signer.public_key, 0.0, SOON) for signer in signers}
    current = rooted(settings.key_list_path)
    number, revoked = (current.keys.number, current.keys.revoked) if current else (0, ())
    return dumps(KeyRequest(number, tuple(keys.values()), revoked))


def accept(settings: Settings, path: Path, *, now: float) -> Rooted:
    """Accepts a signed list as the farm's. Raises: KeyListError (another root, an older list, our key not in it)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KeyListError(f"{path}: {error.strerror}") from None
    offered, current = opened(data, str(path)), rooted(settings.key_list_path)
    signer = load_signer(settings.signing_key_path, release_number=0)
    if current is not None and current.root != offered.root:
        raise KeyListError(
            f"{path} is of root {key_id_of(offered.root)}, this farm's is {key_id_of(current.root)}: "
            "devices never change their root; enrol them again at a farm of their own"
        )
    if current is not None and offered.keys.number <= current.keys.number:
        raise KeyListError(f"{path} is list {offered.keys.number}, this farm has {current.keys.number}: ask again")
    if signer.key_id not in offered.keys.good_at(now):
        raise KeyListError(
            f"{path} does not list key {signer.key_id}, which this farm signs with: "
            "rotate-key first, or ask for a list with it (key-request)"
        )
    _keep(settings.key_list_path, data, offered)
    return offered


def _keep(path: Path, data: bytes, offered: Rooted) -> None:
    """Raises: KeyListError where the file is mounted: it would be lost, and other processes would not see it."""
    try:
        replace_file(path, data)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise KeyListError(
            f"list {offered.keys.number} is good, but {path} cannot be written ({error.strerror}): if "
            "it is a mounted secret, replace the secret's (docs/operations.md, Keys on Kubernetes)"
        ) from None


def rotate(settings: Settings, *, now: float) -> Signer:
    """Signs with the prepared key from the next start on. Raises: KeyListError (none prepared, or not listed)."""
    path, current = settings.next_signing_key_path, rooted(settings.key_list_path)
    if not path.exists():
        raise KeyListError(f"{path} is missing: prepare-key makes it, then have the root list it (key-request)")
    following = load_signer(path, release_number=0)
    if current is None or following.key_id not in current.keys.good_at(now):
        raise KeyListError(
            f"the farm's root has not listed key {following.key_id}: no device would trust it; "
            "key-request, `python -m service.root sign`, accept-keys, then again"
        )
    return rotate_files(settings.signing_key_path, path)
