"""Documents that the farm has signed: the receipt of a result, the statement of a bundle, a head of the log.

Nothing is believed for being in the file: keys lead to a root (or to a signing key) that the caller trusts, and where
none is given the findings say so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TypeVar

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
from device_agents.wire.receipt import (
    BUNDLE_STATEMENT_TYPE,
    CHECKPOINT_TYPE,
    SIGNED_SCHEMA,
    BundleStatement,
    Checkpoint,
    Receipt,
    Signed,
)
from pockfarm.errors import UsageError
from pockfarm.verification.findings import MAX_TEXT_BYTES, Finding, NotVerified

T = TypeVar("T")


@dataclass(frozen=True)
class Paper:
    """A signed file that holds: what it says, and of which bundle."""

    findings: list[Finding]
    bundle_digest: str = ""
    head: Checkpoint | None = None
    """The head of the log, if the file is one."""


def read_paper(data: bytes, trusted: str | None) -> Paper:
    """A receipt, a bundle's statement or a head of the log. Raises: NotVerified."""
    if len(data) > MAX_TEXT_BYTES:
        raise NotVerified(f"more than {MAX_TEXT_BYTES:,} bytes of JSON: no receipt, statement or head")
    kind: type[Receipt | Signed] = Signed if f'"{SIGNED_SCHEMA}"'.encode() in data else Receipt
    signed = _read(kind, data, "it is no bundle, and as a receipt or statement")
    if dumps(json.loads(data)) != dumps(signed):
        raise NotVerified("the file leaves out what belongs into it, or spells it in another way")
    return _receipt(signed, trusted) if isinstance(signed, Receipt) else _signed_paper(signed, trusted)


def _signed_paper(paper: Signed, trusted: str | None) -> Paper:
    if paper.signed.payloadType == CHECKPOINT_TYPE:
        head = _read(Checkpoint, _payload(paper.signed, "the log's head"), "the log's head")
        key, anchor = _signing_key(paper, trusted, at=head.at)
        _signed(paper.signed, CHECKPOINT_TYPE, key, "the log's head")
        return Paper(
            [Finding("log", f"{head.size} results, root {head.root_hash}"), *_signers(key, anchor, "head")], head=head
        )
    statement = _read(BundleStatement, _payload(paper.signed, "the statement"), "the statement")
    key, anchor = _signing_key(paper, trusted, at=statement.at)
    _signed(paper.signed, BUNDLE_STATEMENT_TYPE, key, "the statement")
    facts = {
        "bundle": statement.bundle_digest,
        "target": statement.target,
        "model": statement.model_digest,
        "plan": statement.plan_digest,
        "spec": statement.spec_digest,
        "compiler": statement.compiler,
    }
    return Paper(
        [*(Finding(name, value) for name, value in facts.items()), *_signers(key, anchor, "statement")],
        statement.bundle_digest,
    )


def _signers(key: ServerKey, anchor: str, what: str) -> list[Finding]:
    return [Finding("farm", f"signed the {what} with key {key.key_id}"), Finding("trust", anchor)]


def _receipt(receipt: Receipt, trusted: str | None) -> Paper:
    at = _read(Checkpoint, _payload(receipt.checkpoint, "the log's head"), "the log's head").at
    key, anchor = _signing_key(receipt, trusted, at=at)
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
    return Paper(
        [
            Finding("result", f"run {entry.run_id}, attempt {entry.attempt}: {report.outcome.state}"),
            Finding("bundle", report.bundle_digest),
            Finding("device", f"{entry.device_id} ({report.measurement_class}) signed it with key {entry.device_key}"),
            Finding("log", f"entry {entry.index} of {head.size}, root {head.root_hash}"),
            *_signers(key, anchor, "log's head"),
        ],
        report.bundle_digest,
    )


def _signing_key(paper: Receipt | Signed, trusted: str | None, *, at: float) -> tuple[ServerKey, str]:
    """The key that must have signed at that time, and why it is believed. Raises: NotVerified."""
    signing_key = paper.signing_key
    if signing_key != _key(signing_key.public_key):
        raise NotVerified("the farm's key is not the one of its id")
    if (paper.root is None) != (paper.key_list is None):
        raise NotVerified("a root comes with its list of keys, and a list with its root")
    if paper.root is not None and paper.key_list is not None:
        listed = _list(paper.root, paper.key_list)
        if listed.good_at(at).get(signing_key.key_id) != signing_key.public_key:
            raise NotVerified(f"list {listed.number} of the root does not hold key {signing_key.key_id} for that time")
        if trusted in (None, paper.root):
            words = "that you named" if trusted else f"{paper.root} (UNANCHORED: is it yours? name it with --trust)"
            return signing_key, f"key {signing_key.key_id} is in list {listed.number} of the root {words}"
    if trusted is None:
        return signing_key, f"UNANCHORED: is {signing_key.public_key} the farm's key? name it with --trust"
    if trusted != signing_key.public_key:
        raise NotVerified(
            f"signed with key {signing_key.public_key}, and nothing leads from there to the key that you named"
        )
    return signing_key, f"key {signing_key.key_id} is the one that you named"


def _list(root: str, envelope: Envelope) -> KeyList:
    return _read(KeyList, _signed(envelope, KEY_LIST_TYPE, _key(root), "the list of keys"), "the list")


def _key(public_key: str) -> ServerKey:
    """With the id that it must have. Raises: NotVerified, if it is none."""
    try:
        return ServerKey(hashlib.sha256(base64_bytes("public_key", public_key)).hexdigest()[:16], public_key)
    except ProtocolError as error:
        raise NotVerified(str(error)) from None


def _read(kind: type[T], payload: bytes, what: str) -> T:
    try:
        return loads(kind, payload)
    except ProtocolError as error:
        raise NotVerified(f"{what} cannot be read: {error}") from None


def _signed(envelope: Envelope, payload_type: str, key: ServerKey, what: str) -> bytes:
    """Returns the payload that the key has signed as this type. Raises: NotVerified."""
    payload = _payload(envelope, what)
    if envelope.payloadType != payload_type or [signature.keyid for signature in envelope.signatures] != [key.key_id]:
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
