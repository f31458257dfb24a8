"""Whether a signature is by a key. Alone in this room it needs `cryptography`: import it by its own name."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from device_agents.wire.envelope import base64_bytes


def verify(public_key: str, signature: str, message: bytes) -> bool:
    """Whether `signature` (base64) is the Ed25519 signature of `message` by `public_key` (raw, base64)."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64_bytes("public_key", public_key))
        key.verify(base64_bytes("signature", signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True
