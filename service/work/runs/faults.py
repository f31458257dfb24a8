"""Whose fault an attempt's end is, by its state, cause and code alone: the run's, the device's, or either's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

NOT_RECEIVED = "infra.not-received"
"""The device never heard that it had the run."""
DEATH, OVERRUN, DAMAGE, DEFECT = "death", "overrun", "damage", "defect"
DOUBTS: Mapping[str, str] = {
    "infra.lease-expired": DEATH,
    "infra.abandoned": DEATH,
    "step.killed": DEATH,
    "download.size": DAMAGE,
    "download.digest": DAMAGE,
    "agent.internal": DEFECT,
    "report.impossible": DEFECT,
}
"""Codes that one device alone cannot settle: its own fault, or what it was given. A second device decides."""


class Fault(Enum):
    """The party that is responsible for an attempt that did not succeed."""

    RUN = "run"
    """Model, data, limits, owner: another device would end the same way."""
    DEVICE = "device"
    """The device could not do its part, and no run can be the cause."""
    EITHER = "either"
    """The device's, until another device ends the same way: then the run's."""
    PASSING = "passing"
    """Network, storage, farm: it may pass."""
    NOBODY = "nobody"
    """The agent went down in order, or the work never reached it."""


def fault_of(state: str, cause: str | None, code: str | None) -> Fault:
    """Returns who is responsible for this end; `cancelled` is one that the owner did not ask for.

    A statement that a device does not accept (`envelope.*`) was signed by the farm for this device a moment ago, so the
    device's clock, keys or identity are wrong, and no run is.
    """
    code = code or ""
    if state == "cancelled" or code in ("agent.stopped", NOT_RECEIVED):
        return Fault.NOBODY
    if code in DOUBTS or state == "lost":
        return Fault.EITHER
    if code.startswith("envelope.") or cause == "device" or code == "agent.revoked":
        return Fault.DEVICE
    if cause in ("infra", "service"):
        return Fault.PASSING
    return Fault.RUN


def doubt_of(state: str, code: str | None) -> str:
    """Returns the group of an end that is `EITHER`; ends of one group on two devices are the same end."""
    return DOUBTS.get(code or "", OVERRUN if state == "lost" else "")
