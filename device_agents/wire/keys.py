"""The keys that a farm signs with, listed by its root: a key that is kept offline. Standard library only."""

from dataclasses import dataclass

from device_agents.wire.codec import check
from device_agents.wire.envelope import base64_bytes

KEY_LIST_TYPE = "application/vnd.pockfarm.keys+json"
"""DSSE payload type of `KeyList`; the envelope's key id is that of the root."""
ROOT_TYPE = "application/vnd.pockfarm.root"
"""Type of the message that a signing key signs to introduce a root: `pae(ROOT_TYPE, key_message(...))`."""
MAX_KEYS = 100


@dataclass(frozen=True)
class ListedKey:
    """A signing key, and the time for which it is good."""

    key_id: str
    public_key: str
    """Ed25519, raw 32 bytes, base64."""
    not_before: float
    expires_at: float

    def __post_init__(self) -> None:
        check(len(base64_bytes("public_key", self.public_key)) == 32, "public_key", "32 bytes")
        check(self.not_before < self.expires_at, "expires_at", "after not_before")


@dataclass(frozen=True)
class KeyList:
    """The list of all signing keys that are good, and of those that are not any more. A newer list replaces an older
    one whole.
    """

    number: int
    """Goes up with each list of a root. A device refuses less than the highest it has seen."""
    issued_at: float
    keys: tuple[ListedKey, ...]
    revoked: tuple[str, ...] = ()
    """Key ids that are never good again, whatever else is listed."""

    def __post_init__(self) -> None:
        check(self.number >= 1, "number", "at least 1")
        check(0 < len(self.keys) <= MAX_KEYS, "keys", f"1 to {MAX_KEYS}")
        check(len({key.key_id for key in self.keys}) == len(self.keys), "keys", "of different ids")

    def good_at(self, now: float) -> dict[str, str]:
        """Public keys by id: those that are within their time, and not revoked."""
        return {
            key.key_id: key.public_key
            for key in self.keys
            if key.not_before <= now <= key.expires_at and key.key_id not in self.revoked
        }
