"""Signed messages: DSSE envelopes and the payload types in them. Standard library only."""

import base64
import binascii
from dataclasses import dataclass, field

from device_agents.wire.codec import LONG_TEXT, ProtocolError

ASSIGNMENT_TYPE = "application/vnd.pockfarm.assignment.v2+json"
"""DSSE payload type of `Assignment`. (Without `.v2` it was of a part of it: no such signature fits a whole one.)"""
REPORT_TYPE = "application/vnd.pockfarm.report+json"
"""DSSE payload type of `Report`."""
CHALLENGE_TYPE = "application/vnd.pockfarm.challenge"
"""Type of the message that a device signs to renew: `pae(CHALLENGE_TYPE, challenge_message(...))`."""
ENROL_TYPE = "application/vnd.pockfarm.enrolment"
"""Type of the message that a device signs to enrol: `pae(ENROL_TYPE, enrol_message(...))`."""
KEY_TYPE = "application/vnd.pockfarm.key"
"""Type of the message that an old server key signs to introduce a new one: `pae(KEY_TYPE, key_message(...))`."""


@dataclass(frozen=True)
class Signature:
    keyid: str
    sig: str
    """Ed25519 over `pae(payloadType, payload)`, base64."""


@dataclass(frozen=True)
class Envelope:
    """A DSSE envelope (https://github.com/secure-systems-lab/dsse), field names as in its specification."""

    payloadType: str
    payload: str = field(metadata=LONG_TEXT)
    """The signed bytes, base64."""
    signatures: tuple[Signature, ...]

    def payload_bytes(self) -> bytes:
        """The signed bytes. Raises `ProtocolError` when `payload` is not base64."""
        return base64_bytes("payload", self.payload)


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE pre-authentication encoding: the bytes that are really signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def base64_bytes(where: str, text: str) -> bytes:
    """Returns the bytes that `text` encodes; each value has one text. Raises `ProtocolError` naming `where`."""
    try:
        data = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError(where, "must be base64") from None
    if base64.b64encode(data).decode() != text:
        raise ProtocolError(where, "must be base64 with no bits left over")
    return data
