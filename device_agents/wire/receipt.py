"""Documents that a farm countersigns: the log of results, and the receipt of one, checked offline. Standard library
only.
"""

from dataclasses import dataclass, field
from typing import Literal, Optional

from device_agents.wire.codec import check, dumps
from device_agents.wire.enrolment import ServerKey
from device_agents.wire.envelope import Envelope
from device_agents.wire.merkle import is_hash, leaf_hash
from device_agents.wire.report import check_digest

CHECKPOINT_TYPE = "application/vnd.pockfarm.checkpoint+json"
"""DSSE payload type of `Checkpoint`, signed by the farm."""
BUNDLE_STATEMENT_TYPE = "application/vnd.pockfarm.bundle-statement+json"
"""DSSE payload type of `BundleStatement`, signed by the farm."""
SIGNED_SCHEMA = "pockfarm.signed/1"


@dataclass(frozen=True)
class LogEntry:
    """A result, as the log has it: `leaf_hash(dumps(entry))`."""

    index: int
    """The place in the log, from 0, without gaps."""
    run_id: str
    attempt: int
    device_id: str
    device_key: str
    """The key that the device enrolled with: Ed25519, raw 32 bytes, base64."""
    report_digest: str
    """Digest of the payload that the device signed."""
    state: str
    """`recorded`, or `superseded` (evidence only)."""
    recorded_at: float

    def __post_init__(self) -> None:
        check_digest("report_digest", self.report_digest)
        check(self.index >= 0, "index", "at least 0")

    def leaf(self) -> str:
        """Its leaf of the tree."""
        return leaf_hash(dumps(self))


@dataclass(frozen=True)
class Checkpoint:
    """The length and the content of the log at one time."""

    size: int
    root_hash: str
    at: float

    def __post_init__(self) -> None:
        check(self.size >= 0, "size", "at least 0")
        check(is_hash(self.root_hash), "root_hash", "64 hex digits")


@dataclass(frozen=True)
class Receipt:
    """The receipt of a result: all that it takes to check it without the farm, but for the key that one trusts."""

    schema: Literal["pockfarm.receipt/1"]
    entry: LogEntry
    proof: tuple[str, ...]
    """The proof from the entry's leaf to the checkpoint's root (`merkle.includes`)."""
    checkpoint: Envelope
    report: Envelope
    """The report as the device sent it."""
    signing_key: ServerKey
    """Signed the checkpoint."""
    root: Optional[str] = field(default=None)
    """The farm's root, raw public key, base64; null: it has none."""
    key_list: Optional[Envelope] = field(default=None)
    """Signed by the root; lists the signing key."""


@dataclass(frozen=True)
class BundleStatement:
    """The statement that the farm's compiler made a bundle, from what and by which version."""

    bundle_digest: str
    size_bytes: int
    model_digest: str
    plan_digest: str
    spec_digest: str
    target: str
    compiler: str
    """Its version; empty: not known any more."""
    at: float

    def __post_init__(self) -> None:
        check_digest("bundle_digest", self.bundle_digest)


@dataclass(frozen=True)
class Signed:
    """An envelope of the farm (a head of the log, or the statement of a bundle), and its keys' way to the root."""

    schema: Literal["pockfarm.signed/1"]
    signed: Envelope
    signing_key: ServerKey
    root: Optional[str] = field(default=None)
    """The farm's root, as in `Receipt`."""
    key_list: Optional[Envelope] = field(default=None)
