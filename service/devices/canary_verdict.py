"""The verdict of a canary run on its device: active again, or quarantined for longer; nothing, if it was timed."""

from __future__ import annotations

import time

from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.devices import blame
from service.store.database.models import Device, Run

SAMPLES, LEARNING_RATE = 8, 0.5
"""Batch and learning rate of the canary run."""
MOST_DOUBLINGS = 7
"""Most doublings of the pause between two canaries of one device: 128 times as long at most."""


def pause_s(settings: Settings, failures: int) -> float:
    """Returns the pause before the next canary, after this many failures in a row."""
    return float(settings.canary_s * 2 ** min(failures, MOST_DOUBLINGS))


def conclude(session: Session, settings: Settings, run: Run, device: Device, *, is_right: bool, message: str) -> None:
    """Brings the device back, or makes it wait for longer. The caller holds its row. A decision that someone else has
    made since takes precedence.
    """
    if run.is_timed_canary:
        if not is_right:
            blame.note(session, device.id, "canary", f"timed run {run.id} measured nothing: {message}")
        return
    now = time.time()
    if device.state != "quarantined" or device.quarantined_for != blame.BY_STRIKES:
        blame.note(session, device.id, "canary", f"run {run.id} ended, but the device is {device.state} by other means")
        return
    if is_right:
        device.canary_failures, device.canary_at, device.released_at = 0, 0.0, now
        blame.forget_strikes(session, device)
        blame.end_quarantine(session, device, f"canary run {run.id} was right: it works again")
        return
    device.canary_failures += 1
    device.canary_at = now + pause_s(settings, device.canary_failures)
    blame.note(
        session,
        device.id,
        "canary",
        f"run {run.id} was not right: {message}; the next one in {device.canary_at - now:,.0f} s",
    )
