"""What a device believes: the checks that an assignment passes before one byte of its bundle is made executable."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from device_agents.errors import Untrusted
from device_agents.farm.state import Identity
from device_agents.wire import (
    ASSIGNMENT_TYPE,
    KEY_TYPE,
    Assignment,
    DeviceDescription,
    Envelope,
    ProtocolError,
    ServerKey,
    Statement,
    key_message,
    loads,
    pae,
)

CLOCK_TOLERANCE_S = 120.0


def verify_assignment(
    assignment: Assignment, identity: Identity, description: DeviceDescription, *, now: float
) -> tuple[Statement, str]:
    """The statement that a trusted key signed for this attempt, and the key's id.

    Checks, in this order: signature by a known key, not before, expiry, release ratchet, device, class, target, and
    that the assignment says the same as the statement (run, attempt, digests, size).

    Raises: `Untrusted` with code `envelope.<what>`.
    """
    statement, key_id = open_envelope(assignment.envelope, identity.trusted_keys)
    _check_time(statement, now)
    _check_release(statement, identity.highest_release.get(key_id, -1))
    _check_device(statement, identity, description)
    _check_same(assignment, statement)
    return statement, key_id


def open_envelope(envelope: Envelope, trusted_keys: Mapping[str, str]) -> tuple[Statement, str]:
    """Verify the signature, then, only then, parse the payload. Raises: `Untrusted`."""
    if envelope.payloadType != ASSIGNMENT_TYPE:
        raise Untrusted("envelope.type", f"payload type {envelope.payloadType!r:.80}, expected {ASSIGNMENT_TYPE}")
    try:
        payload = envelope.payload_bytes()
    except ProtocolError as error:
        raise Untrusted("envelope.payload", str(error)) from None
    key_id = _verified_by(envelope, payload, trusted_keys)
    try:
        return loads(Statement, payload), key_id
    except ProtocolError as error:
        raise Untrusted("envelope.payload", f"signed payload is not a statement: {error}") from None


def _verified_by(envelope: Envelope, payload: bytes, trusted_keys: Mapping[str, str]) -> str:
    known = [signature for signature in envelope.signatures if signature.keyid in trusted_keys]
    if not known:
        names = ", ".join(signature.keyid[:40] for signature in envelope.signatures[:5]) or "none"
        raise Untrusted("envelope.key", f"signed by unknown keys ({names})", hint="enrol the device again")
    for signature in known:
        message = pae(envelope.payloadType, payload)
        if verify(trusted_keys[signature.keyid], signature.sig, message):
            return signature.keyid
    raise Untrusted("envelope.signature", "the signature does not match the payload")


def verify(public_key: str, signature: str, message: bytes) -> bool:
    """Whether `signature` (base64) by `public_key` (raw, base64) fits `message`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def accept_keys(trusted_keys: Mapping[str, str], offered: Sequence[ServerKey]) -> dict[str, str]:
    """The trusted keys with those new ones that a trusted key endorses; others are ignored, none is ever replaced."""
    keys = dict(trusted_keys)
    for key in offered:
        if key.key_id in keys or key.endorsed_by not in keys or key.endorsement is None:
            continue
        message = pae(KEY_TYPE, key_message(key.key_id, key.public_key))
        if verify(keys[key.endorsed_by], key.endorsement, message):
            keys[key.key_id] = key.public_key
    return keys


def _check_time(statement: Statement, now: float) -> None:
    hint = "compare the clocks of the board and the farm"
    if now < statement.not_before - CLOCK_TOLERANCE_S:
        early_s = statement.not_before - now
        raise Untrusted("envelope.not_before", f"not valid for another {early_s:.0f} s", hint=hint)
    if now > statement.expires_at + CLOCK_TOLERANCE_S:
        late_s = now - statement.expires_at
        raise Untrusted("envelope.expired", f"expired {late_s:.0f} s ago", hint=hint)


def _check_release(statement: Statement, highest: int) -> None:
    if statement.release_number < highest:
        raise Untrusted(
            "envelope.rollback",
            f"release number {statement.release_number}, this device has seen {highest}",
            hint="an old assignment was replayed, or the farm was restored from an old backup: enrol again",
        )


def _check_device(statement: Statement, identity: Identity, description: DeviceDescription) -> None:
    if statement.device_id != identity.device_id:
        raise Untrusted("envelope.device", f"signed for device {statement.device_id}, this is {identity.device_id}")
    if statement.device_class != description.device_class:
        message = f"signed for class {statement.device_class}, this device is {description.device_class}"
        raise Untrusted("envelope.device_class", message)
    if statement.target not in description.targets:
        message = f"built for target {statement.target}, this device runs {', '.join(description.targets)}"
        raise Untrusted("envelope.target", message)


def _check_same(assignment: Assignment, statement: Statement) -> None:
    files = {
        "dataset_digest": assignment.dataset,
        "weights_digest": assignment.weights,
        "validation_dataset_digest": assignment.validation_dataset,
    }
    pairs = {
        "run_id": (assignment.run_id, statement.run_id),
        "attempt": (assignment.attempt, statement.attempt),
        "bundle_digest": (assignment.bundle.digest, statement.bundle_digest),
        "bundle_bytes": (assignment.bundle.size_bytes, statement.bundle_bytes),
        **{name: (blob.digest if blob else None, getattr(statement, name)) for name, blob in files.items()},
    }
    for name, (said, signed) in pairs.items():
        if said != signed:
            raise Untrusted(f"envelope.{name}", f"the assignment says {said}, the signed statement {signed}")
