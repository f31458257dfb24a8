"""What can be said of a file without any farm: a bundle, or a result's receipt.

A `Finding` says what was checked and by which key. Nothing is believed for being in the file: keys lead to a root
(or to a signing key) that the caller trusts, and where none is given the findings say so.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from device_agents.wire import (
    KEY_LIST_TYPE,
    REPORT_TYPE,
    Envelope,
    KeyList,
    ProtocolError,
    Report,
    ServerKey,
    base64_bytes,
    dumps,
    loads,
    merkle,
    pae,
)
from device_agents.wire.receipt import CHECKPOINT_TYPE, Checkpoint, Receipt
from pockfarm.errors import UsageError

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
MAX_TEXT_BYTES = 64 << 20
MAX_FILES = 10_000
MANIFEST = "manifest.json"


class NotVerified(Exception):
    """The file is not what it should be; the message says where and why."""


@dataclass(frozen=True)
class Finding:
    """One thing that holds."""

    what: str
    how: str


def verify_file(path: Path, *, trusted: str | None) -> list[Finding]:
    """What holds of a bundle or receipt. `trusted`: a root's or signing key's public key (raw, base64).

    Raises: NotVerified, UsageError (no such file).
    """
    try:
        with path.open("rb") as file:
            head = file.read(1)
            if head != b"{":
                return list(_bundle(path))
            file.seek(0)
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise NotVerified(f"more than {MAX_TEXT_BYTES:,} bytes of JSON: neither receipt nor checkpoint")
    found = _read(Receipt, data, "it is no bundle, and as a receipt")
    if dumps(json.loads(data)) != dumps(found):
        raise NotVerified("the receipt leaves out what belongs into it, or spells it in another way")
    return list(_receipt(found, trusted))


# ---------------------------------------------------------------------------------------------------------- bundles


def _bundle(path: Path) -> Iterator[Finding]:
    """Its digest; that its manifest names every file, with the digest and size that it has, and no other."""
    digests: dict[str, tuple[str, int]] = {}
    manifest: dict[str, Any] = {}
    try:
        with tarfile.open(path, mode="r:") as tar:
            for entry in tar:
                if not entry.isreg() or entry.name in digests or len(digests) == MAX_FILES:
                    raise NotVerified(f"{entry.name!r:.100} is no plain file, or there twice")
                stream = tar.extractfile(entry)
                assert stream is not None
                if entry.name == MANIFEST:
                    manifest = _manifest(stream.read(MAX_TEXT_BYTES))
                    digests[entry.name] = ("", entry.size)
                else:
                    digests[entry.name] = (_sha256(stream.read), entry.size)
    except (tarfile.TarError, EOFError) as error:
        raise NotVerified(f"no bundle, or damaged: {error}") from None
    files = manifest.get("files")
    if manifest.get("schema") != "pockfarm.bundle/1" or not isinstance(files, dict):
        raise NotVerified(f"its {MANIFEST} is missing, or not of pockfarm.bundle/1")
    _check_files(files, {name: found for name, found in digests.items() if name != MANIFEST})
    with path.open("rb") as file:
        digest = _sha256(file.read)
    yield Finding("bundle", f"sha256:{digest}")
    yield Finding("target", str(manifest.get("target")))
    for name, value in sorted(manifest.get("digests", {}).items()):
        yield Finding(name, f"{value}, as its manifest says")
    yield Finding("files", f"all {len(files)} are those of its manifest, by size and SHA-256")
    yield Finding("signed", "assignments and results sign its digest: verify a receipt, and compare")


def _manifest(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise NotVerified(f"its {MANIFEST} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotVerified(f"its {MANIFEST} is no object")
    return value


def _check_files(said: dict[str, Any], found: dict[str, tuple[str, int]]) -> None:
    if said.keys() != found.keys():
        odd = sorted(said.keys() ^ found.keys())[0]
        raise NotVerified(f"{odd!r:.100} is in the manifest or in the archive, and not in both")
    for name, (digest, size_bytes) in found.items():
        if said[name] != {"sha256": digest, "bytes": size_bytes}:
            raise NotVerified(f"{name} is not the file of the manifest: sha256 {digest}, {size_bytes:,} bytes")


def _sha256(read: Callable[[int], bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------------- receipts


def _receipt(receipt: Receipt, trusted: str | None) -> Iterator[Finding]:
    key, anchor = _signing_key(receipt, trusted)
    head = _read(Checkpoint, _signed(receipt.checkpoint, CHECKPOINT_TYPE, key, "the log's head"), "the log's head")
    entry = receipt.entry
    if not merkle.includes(head.root_hash, leaf=entry.leaf(), index=entry.index, size=head.size, proof=receipt.proof):
        raise NotVerified(f"entry {entry.index} is not in the log of {head.size} results that the farm signed")
    device = ServerKey(entry.device_id, entry.device_key)
    payload = _signed(receipt.report, REPORT_TYPE, device, "the report")
    if f"sha256:{hashlib.sha256(payload).hexdigest()}" != entry.report_digest:
        raise NotVerified("the report is not the one of the log: its digest differs")
    report = _read(Report, payload, "the report")
    for name in ("run_id", "attempt", "device_id"):
        if getattr(report, name) != getattr(entry, name):
            raise NotVerified(f"the report's {name} is {getattr(report, name)!r}, the log's {getattr(entry, name)!r}")
    yield Finding("result", f"run {entry.run_id}, attempt {entry.attempt}: {report.outcome.state}")
    yield Finding("bundle", report.bundle_digest)
    yield Finding("device", f"{entry.device_id} ({report.measurement_class}) signed it with key {entry.device_key}")
    yield Finding("log", f"entry {entry.index} of {head.size}, root {head.root_hash}")
    yield Finding("farm", f"signed the log's head with key {key.key_id}")
    yield Finding("trust", anchor)


def _signing_key(receipt: Receipt, trusted: str | None) -> tuple[ServerKey, str]:
    """The key that must have signed the log's head, and why it is believed. Raises: NotVerified."""
    said = receipt.signing_key
    if said != ServerKey(_key_id(said.public_key), said.public_key):
        raise NotVerified("the farm's key is not the one of its id")
    if (receipt.root is None) != (receipt.key_list is None):
        raise NotVerified("a root comes with its list of keys, and a list with its root")
    if receipt.root is not None and receipt.key_list is not None:
        listed = _list(receipt.root, receipt.key_list)
        at = _read(Checkpoint, _payload(receipt.checkpoint, "the log's head"), "the log's head").at
        if listed.good_at(at).get(said.key_id) != said.public_key:
            raise NotVerified(f"list {listed.number} of the root does not hold key {said.key_id} for that time")
        if trusted in (None, receipt.root):
            words = "that you named" if trusted else f"{receipt.root} (UNANCHORED: is it yours? name it with --trust)"
            return said, f"key {said.key_id} is in list {listed.number} of the root {words}"
    if trusted is None:
        return said, f"UNANCHORED: is {said.public_key} the farm's key? name it with --trust"
    if trusted != said.public_key:
        raise NotVerified(f"signed with key {said.public_key}, and nothing leads from there to the key that you named")
    return said, f"key {said.key_id} is the one that you named"


def _list(root: str, envelope: Envelope) -> KeyList:
    return _read(
        KeyList, _signed(envelope, KEY_LIST_TYPE, ServerKey(_key_id(root), root), "the list of keys"), "the list"
    )


def _key_id(public_key: str) -> str:
    try:
        return hashlib.sha256(base64_bytes("public_key", public_key)).hexdigest()[:16]
    except ProtocolError as error:
        raise NotVerified(str(error)) from None


def _read(kind: type[T], payload: bytes, what: str) -> T:
    try:
        return loads(kind, payload)
    except ProtocolError as error:
        raise NotVerified(f"{what} cannot be read: {error}") from None


def _signed(envelope: Envelope, payload_type: str, key: ServerKey, what: str) -> bytes:
    """What the key has signed as this type. Raises: NotVerified."""
    payload = _payload(envelope, what)
    if envelope.payloadType != payload_type or [one.keyid for one in envelope.signatures] != [key.key_id]:
        raise NotVerified(f"{what} is not in an envelope of {payload_type} with one signature, by {key.key_id}")
    if not _fits(key.public_key, envelope.signatures[0].sig, pae(payload_type, payload)):
        raise NotVerified(f"{what} is not what {key.key_id} signed")
    return payload


def _payload(envelope: Envelope, what: str) -> bytes:
    try:
        return envelope.payload_bytes()
    except ProtocolError as error:
        raise NotVerified(f"{what}: {error}") from None


def _fits(public_key: str, signature: str, message: bytes) -> bool:
    try:
        from device_agents.wire.ed25519 import verify
    except ImportError:
        raise UsageError("signatures are checked by `cryptography`: pip install cryptography") from None
    return verify(public_key, signature, message)
