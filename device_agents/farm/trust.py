"""The device's trust: the checks that an assignment passes before anything of it is done."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Union

from device_agents.errors import Untrusted
from device_agents.farm.state import Identity
from device_agents.wire import (
    ASSIGNMENT_TYPE,
    KEY_LIST_TYPE,
    KEY_TYPE,
    OFFER_TYPE,
    ROOT_TYPE,
    AgentOffer,
    Assignment,
    Credential,
    DeviceDescription,
    Envelope,
    KeyList,
    ProtocolError,
    ServerKey,
    base64_bytes,
    key_message,
    loads,
    pae,
)
from device_agents.wire.ed25519 import verify

log = logging.getLogger("device_agents")

CLOCK_TOLERANCE_S = 120.0
Signed = Union[Assignment, AgentOffer]


def verify_assignment(
    envelope: Envelope, identity: Identity, description: DeviceDescription, *, now: float
) -> tuple[Assignment, str]:
    """The assignment that a trusted key signed, all of it, for this device and now; and the key's id.

    Checks, in this order: signature by a known key, not before, expiry, release ratchet, device, class, target.

    Raises: `Untrusted` with code `envelope.<what>`.
    """
    assignment, key_id = open_envelope(envelope, identity.trusted_at(now))
    _check_time(assignment, now)
    _check_release(assignment, max(identity.highest_release.values(), default=-1))
    _check_device(assignment, identity, description)
    return assignment, key_id


def verify_offer(envelope: Envelope, identity: Identity, *, now: float) -> tuple[AgentOffer, str]:
    """The agent that a trusted key offers to this device, now; and the key's id. Checks and errors as above."""
    payload, key_id = open_bytes(envelope, OFFER_TYPE, identity.trusted_at(now))
    try:
        offer = loads(AgentOffer, payload)
    except ProtocolError as error:
        raise Untrusted("envelope.payload", f"the signed payload is no offer that this agent knows: {error}") from None
    _check_time(offer, now)
    _check_release(offer, max(identity.highest_release.values(), default=-1))
    _check_id(offer, identity)
    return offer, key_id


def open_envelope(envelope: Envelope, trusted_keys: Mapping[str, str]) -> tuple[Assignment, str]:
    """Verifies the signature, then, only then, parses the payload. Raises: `Untrusted`."""
    payload, key_id = open_bytes(envelope, ASSIGNMENT_TYPE, trusted_keys)
    try:
        return loads(Assignment, payload), key_id
    except ProtocolError as error:
        message = f"the signed payload is no assignment that this agent knows: {error}"
        raise Untrusted("envelope.payload", message, hint="update the agent") from None


def open_bytes(envelope: Envelope, payload_type: str, trusted_keys: Mapping[str, str]) -> tuple[bytes, str]:
    """Returns the payload that a trusted key has signed as this type, and that key's id. Raises: `Untrusted`."""
    if envelope.payloadType != payload_type:
        raise Untrusted("envelope.type", f"payload type {envelope.payloadType!r:.80}, expected {payload_type}")
    try:
        payload = envelope.payload_bytes()
    except ProtocolError as error:
        raise Untrusted("envelope.payload", str(error)) from None
    return payload, _verified_by(envelope, payload, trusted_keys)


def _verified_by(envelope: Envelope, payload: bytes, trusted_keys: Mapping[str, str]) -> str:
    if len(envelope.signatures) != 1:
        raise Untrusted("envelope.signature", f"{len(envelope.signatures)} signatures, expected one")
    [signature] = envelope.signatures
    if signature.keyid not in trusted_keys:
        message = f"signed by an unknown key ({signature.keyid[:40]!r})"
        raise Untrusted("envelope.key", message, hint="enrol the device again")
    if not verify(trusted_keys[signature.keyid], signature.sig, pae(envelope.payloadType, payload)):
        raise Untrusted("envelope.signature", "the signature does not match the payload")
    return signature.keyid


def open_key_list(envelope: Envelope, root: str) -> KeyList:
    """The list that this root (raw public key, base64) has signed. Raises: `Untrusted`."""
    payload, _ = open_bytes(envelope, KEY_LIST_TYPE, {key_id_of(root): root})
    try:
        return loads(KeyList, payload)
    except ProtocolError as error:
        raise Untrusted("envelope.payload", f"the signed payload is no list of keys: {error}") from None


def key_id_of(public_key: str) -> str:
    """The first 16 hex digits of the raw public key's SHA-256."""
    return hashlib.sha256(base64_bytes("public_key", public_key)).hexdigest()[:16]


def believed(identity: Identity, credential: Credential) -> Identity:
    """The identity after a renewal: keys that are endorsed, a root that is introduced, a newer list that it has signed.

    What is not to be believed changes nothing. A root is never replaced.
    """
    if identity.root is None:
        identity = replace(identity, trusted_keys=accept_keys(identity.trusted_keys, credential.server_keys))
        if credential.root is not None and _is_introduced(credential.root, identity.trusted_keys):
            identity = replace(identity, root=credential.root.public_key)
    if identity.root is None or credential.key_list is None:
        return identity
    try:
        offered = open_key_list(credential.key_list, identity.root)
    except Untrusted as error:
        log.warning("the farm's list of keys is not believed: %s", error)
        return identity
    current = identity.key_list
    return replace(identity, key_list=offered) if current is None or offered.number > current.number else identity


def _is_introduced(root: ServerKey, trusted_keys: Mapping[str, str]) -> bool:
    introducer = trusted_keys.get(root.endorsed_by or "")
    message = pae(ROOT_TYPE, key_message(root.key_id, root.public_key))
    return introducer is not None and verify(introducer, root.endorsement or "", message)


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


def _check_time(assignment: Signed, now: float) -> None:
    hint = "compare the clocks of the board and the farm"
    if now < assignment.not_before - CLOCK_TOLERANCE_S:
        early_s = assignment.not_before - now
        raise Untrusted("envelope.not_before", f"not valid for another {early_s:.0f} s", hint=hint)
    if now > assignment.expires_at + CLOCK_TOLERANCE_S:
        late_s = now - assignment.expires_at
        raise Untrusted("envelope.expired", f"expired {late_s:.0f} s ago", hint=hint)


def _check_release(assignment: Signed, highest: int) -> None:
    if assignment.release_number < highest:
        raise Untrusted(
            "envelope.rollback",
            f"release number {assignment.release_number}, this device has seen {highest}",
            hint="what the farm signed before was replayed, or the farm was restored from an old backup: enrol again",
        )


def _check_id(signed: Signed, identity: Identity) -> None:
    if signed.device_id != identity.device_id:
        raise Untrusted("envelope.device", f"signed for device {signed.device_id}, this is {identity.device_id}")


def _check_device(assignment: Assignment, identity: Identity, description: DeviceDescription) -> None:
    _check_id(assignment, identity)
    if assignment.device_class != description.device_class:
        message = f"signed for class {assignment.device_class}, this device is {description.device_class}"
        raise Untrusted("envelope.device_class", message)
    if assignment.target not in description.targets:
        message = f"built for target {assignment.target}, this device runs {', '.join(description.targets)}"
        raise Untrusted("envelope.target", message)
