"""The present condition of a device: sent in a header of its requests for work and of its heartbeats. Standard library
only.

A header, so that a farm which is older than it does not read it, and an agent which is older does not send it.
"""

from dataclasses import dataclass, field
from typing import Optional

from device_agents.wire.codec import SENT_IF_SET, check

CONDITION_HEADER = "X-Pockfarm-Condition"
MOST_CONDITION_CHARACTERS = 500
MOST_BYTES = 1 << 60
COLDEST_C, HOTTEST_C = -60.0, 150.0
"""Bounds of the temperature of a board that works."""


@dataclass(frozen=True)
class Condition:
    """A device's condition. A field that is left out is not known."""

    storage_total_bytes: Optional[int] = field(default=None, metadata=SENT_IF_SET)
    """Size of the file system where the agent keeps its work."""
    storage_free_bytes: Optional[int] = field(default=None, metadata=SENT_IF_SET)
    """Bytes of it that the agent may still write."""
    kept_bytes: Optional[int] = field(default=None, metadata=SENT_IF_SET)
    """Bytes of it that the agent's own files take: results to be sent, checkpoints, programs; not those of a job."""
    temperature_c: Optional[float] = field(default=None, metadata=SENT_IF_SET)
    """Temperature of its hottest processor zone."""

    def __post_init__(self) -> None:
        total, free = self.storage_total_bytes, self.storage_free_bytes
        both = (total is None) == (free is None)
        check(both, "storage_free_bytes", "there if storage_total_bytes is, and only then")
        check(total is None or 1 <= total <= MOST_BYTES, "storage_total_bytes", f"1 to {MOST_BYTES}")
        check(free is None or 0 <= free <= (total or 0), "storage_free_bytes", "0 to storage_total_bytes")
        kept_bytes = self.kept_bytes
        check(kept_bytes is None or 0 <= kept_bytes <= MOST_BYTES, "kept_bytes", f"0 to {MOST_BYTES}")
        heat = self.temperature_c
        bounds = f"{COLDEST_C:.0f} to {HOTTEST_C:.0f}"
        check(heat is None or COLDEST_C <= heat <= HOTTEST_C, "temperature_c", bounds)
