"""The exchange by which a device gets work: the request for a lease, and the assignment, signed as a whole."""

import re
from dataclasses import dataclass, field
from typing import Optional

from device_agents.wire.checkpoint import checkpoint_key
from device_agents.wire.codec import FLAT, SENT_IF_SET, check
from device_agents.wire.comparison_report import MOST_BUNDLES
from device_agents.wire.own_data import OwnData
from device_agents.wire.report import Blob
from device_agents.wire.settings import MODES, RunSettings

LEASE_S = 60.0
MAX_LONG_POLL_S = 60.0
EMULATION_TIME_FACTOR = 10.0
_TOKEN = re.compile(r"[A-Za-z0-9_-]{8,200}")


@dataclass(frozen=True)
class LeaseRequest:
    """Asks for work; held open by the server up to `wait_s`."""

    session: str
    wait_s: float = 25.0
    isolation_level: int = 0


@dataclass(frozen=True)
class Limits:
    """Limits of an attempt. The agent may hold it to less (its own settings), never more."""

    transfer_s: float = 900.0
    run_s: float = 1800.0
    """Wall-clock time of all processes of the binary together, as for a real board: on an emulated device the agent
    (and the farm's own run clock) multiply it by `EMULATION_TIME_FACTOR`."""
    memory_bytes: int = 4 << 30
    disk_bytes: int = 4 << 30


@dataclass(frozen=True)
class Assignment:
    """An attempt of a run, leased to one device: payload of the envelope that answers a request for a lease.

    All of it is signed: an agent reads these bytes once the signature holds, and acts on nothing else. A field that is
    added here is signed by being here.
    """

    run_id: str
    attempt: int
    """The number of the attempt, from 1."""
    device_id: str
    device_class: str
    target: str
    lease_token: str
    """Fencing token; URL-safe characters. In the path of every write of the attempt."""
    lease_expires_at: float
    lease_s: float
    """Time until the lease ends unless a heartbeat renews it (`LEASE_S`)."""
    not_before: float
    expires_at: float
    release_number: int
    """Never falls for one signing key. A device refuses less than the highest it has seen (rollback ratchet)."""
    model_digest: str
    plan_digest: str
    bundle: Blob
    settings: RunSettings = field(metadata=FLAT)
    dataset: Optional[Blob] = None
    """npz with the model's inputs by name (or `x`) and labels `y`. Null for profile only (synthetic data)."""
    weights: Optional[Blob] = None
    """Starting weights (safetensors); null: the bundle's."""
    limits: Limits = field(default_factory=Limits)
    validation_dataset: Optional[Blob] = field(default=None, metadata=SENT_IF_SET)
    """npz of the same form that training is validated on. Null: a share of the data set, or nothing."""
    own_data: Optional[OwnData] = field(default=None, metadata=SENT_IF_SET)
    """A data set of the device itself, in place of `dataset`; it stays there."""
    checkpoint: Optional[Blob] = field(default=None, metadata=SENT_IF_SET)
    """The point that an earlier attempt had reached, to go on from (`checkpoint.py`). Null: the first step."""
    others: tuple[Blob, ...] = field(default=(), metadata=SENT_IF_SET)
    """Bundles that take turns with the first; mode compare only."""

    def __post_init__(self) -> None:
        check(bool(_TOKEN.fullmatch(self.lease_token)), "lease_token", "8-200 URL-safe characters")
        check(self.attempt >= 1, "attempt", "at least 1")
        check(self.bundle.size_bytes > 0, "bundle.size_bytes", "more than 0")
        check(self.release_number >= 0, "release_number", "at least 0")
        check(self.dataset is None or self.own_data is None, "own_data", "absent beside a data set")
        check(self.settings.mode in MODES, "mode", f"one of {', '.join(MODES)}")
        least, most = (1, MOST_BUNDLES - 1) if self.settings.mode == "compare" else (0, 0)
        check(least <= len(self.others) <= most, "others", f"{least} to {most} of mode {self.settings.mode}")
        self.settings.check_validation("validation_dataset", is_given=self.validation_dataset is not None)

    def checkpoint_key(self) -> str:
        """Returns the key that this attempt's checkpoints have in common with those of the run's other attempts."""
        blobs = {name: getattr(self, name) for name in ("dataset", "validation_dataset", "weights")}
        digests = {name: blob.digest if blob is not None else None for name, blob in blobs.items()}
        own_digest = self.own_data.digest if self.own_data is not None else None
        return checkpoint_key(self.settings, bundle=self.bundle.digest, own_data=own_digest, **digests)
