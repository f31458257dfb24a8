"""A device's health history, the strikes that quarantine it, and the clock that does.

A strike is an attempt that failed for the device's sake; a success forgets them all, and a strike for a run that turns
out to be at fault itself is taken back. One run strikes a device once. Who changes strikes holds the device's row.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.base.identifiers import clean_text
from service.store import states
from service.store.database.models import Attempt, Device, DeviceEvent, Run, Strike

CLOCK_SKEW_S = 300.0
"""Largest tolerated error of a device's clock: assignments are valid from so long before they were made, to so long
after.
"""
BY_STRIKES, BY_CLOCK = "strikes", "clock"
OF_THE_CLOCK = ("envelope.expired", "envelope.not_before")
RESTARTED = "restarted"
"""A line of the history: the agent started again."""
COUNTED, TAKEN_BACK = "counted", "taken-back"
"""`Attempt.strike`."""
FAILED, MISSED = "failed", "missed"
"""`Attempt.spent`: the device is out for this run until an operator releases it; or until it has worked since, or
`device_retry_s` have passed, for the reason may pass."""
FRESH = {"populate_existing": True}
"""Execution options that read a row anew: values that were read before the row was held may be old."""


def note(session: Session, device_id: str, kind: str, message: str = "") -> None:
    """Adds a line to a device's health history."""
    session.add(DeviceEvent(device_id=device_id, kind=kind, message=clean_text(message, 1000)))


def hold(session: Session, run: Run, device_id: str) -> Device:
    """Returns the device, held together with those that this run has struck: in the order of ids, so that nobody
    deadlocks.
    """
    struck = select(Strike.device_id).where(Strike.run_id == run.id)
    query = select(Device).where((Device.id == device_id) | Device.id.in_(struck)).order_by(Device.id)
    devices = {device.id: device for device in session.scalars(query.with_for_update(), execution_options=FRESH)}
    return devices[device_id]


def hold_alone(session: Session, device_id: str) -> Device | None:
    """Returns the device, held and read anew; None if there is none."""
    query = select(Device).where(Device.id == device_id).with_for_update()
    return session.scalar(query, execution_options=FRESH)


def strike(session: Session, device: Device, run: Run, *, code: str, message: str, most: int) -> bool:
    """Counts an attempt against its device, once for each run; the `most`th in a row quarantines it."""
    if run.organisation_id != device.organisation_id:  # what others' runs say is not for the device's owner to read
        message = "a run of another organisation"
    note(session, device.id, "strike", f"run {run.id}: {code}: {message}")
    strikes = select(Strike.id).where(Strike.device_id == device.id)
    if session.scalar(strikes.where(Strike.run_id == run.id).limit(1)) is not None:
        return False
    session.add(Strike(device_id=device.id, run_id=run.id, code=code[:100]))
    device.strikes += 1
    session.flush()
    if device.strikes >= most and device.state == "active":
        codes = session.scalars(select(Strike.code).where(Strike.device_id == device.id).order_by(Strike.id))
        reason = (
            f"{device.strikes} attempts in a row failed because of this device: {_counted(codes)}; the last: {message}"[
                :800
            ]
            + "; mend it, then release it (a canary run that is right does so too)"
        )
        _quarantine(session, device, reason, BY_STRIKES)
    return True


def _counted(codes: Iterable[str]) -> str:
    counts = Counter(codes)
    return ", ".join(code if count == 1 else f"{code} {count} times" for code, count in counts.items())


def _quarantine(session: Session, device: Device, reason: str, why: str) -> None:
    states.move(session, device, "quarantine", message=reason)
    device.state_reason, device.quarantined_for = clean_text(reason, 1000), why
    device.canary_at, device.canary_failures = 0.0, 0


def forget_strikes(session: Session, device: Device) -> None:
    """Clears the device's strikes: it has shown that it works, or an operator says so."""
    if not device.strikes:
        return
    device.strikes = 0
    session.execute(delete(Strike).where(Strike.device_id == device.id))


def take_back(session: Session, run: Run, reason: str, *, most: int) -> None:
    """Clears the strikes of a run that was to blame, and ends quarantines that they caused. The devices are held (see
    `hold`).
    """
    strikes = list(session.scalars(select(Strike).where(Strike.run_id == run.id)))
    for strike in strikes:
        device = session.get_one(Device, strike.device_id)
        made_it = device.strikes >= most
        device.strikes = max(0, device.strikes - 1)
        why = reason if run.organisation_id == device.organisation_id else "it was to blame itself"
        note(session, device.id, "strike-taken-back", f"run {run.id}: {why}")
        session.delete(strike)
        if made_it and device.strikes < most and device.quarantined_for == BY_STRIKES:
            end_quarantine(session, device, "a strike was taken back")


def doubt(session: Session, run: Run, *, most: int) -> None:
    """Whether devices that a run has taken down are to prove that they work. The devices are held (see `hold`).

    A run is to blame when two devices die of it, and their strikes go. A device that so many bundles in a row take
    down, and that does nothing well in between, is more likely to be the cause itself, or to drop its work on purpose
    together with another: a canary run decides, at once if it has done work since its last one.
    """
    query = select(Attempt.device_id).where(Attempt.run_id == run.id, Attempt.strike == TAKEN_BACK)
    for device_id in sorted(set(session.scalars(query))):
        device = session.get_one(Device, device_id)
        since = max(device.succeeded_at, device.released_at)
        bundles = (
            select(func.count(Run.bundle_digest.distinct()))
            .join(Attempt, Attempt.run_id == Run.id)
            .where(Attempt.device_id == device_id, Attempt.strike == TAKEN_BACK, Attempt.finished_at > since)
        )
        count = session.scalar(bundles) or 0
        if count < most or device.state != "active":
            continue
        reason = f"runs of {count} bundles in a row have died with it, as with other devices, and nothing has succeeded"
        _quarantine(session, device, f"{reason} in between; a canary run decides", BY_STRIKES)
        device.canary_at = time.time() if device.succeeded_at >= device.released_at else 0.0


def end_quarantine(session: Session, device: Device, reason: str) -> None:
    """Ends a quarantine whose reason, as the farm itself has noticed, is gone."""
    states.move(session, device, "release", message=reason)
    device.state_reason, device.quarantined_for = "", ""


def clock_decides(device: Device, device_time_s: float | None) -> bool:
    """Whether what the device's clock says may change anything for it."""
    if device_time_s is None:
        return False
    is_off = not math.isfinite(device_time_s) or abs(device_time_s - time.time()) > CLOCK_SKEW_S
    return device.state == "active" if is_off else device.quarantined_for == BY_CLOCK


def judge_clock(session: Session, device: Device, device_time_s: float | None) -> None:
    """Quarantines a device whose clock would refuse or misdate every assignment; releases it once the clock is right.

    `device_time_s`: the device's time as it asked for work, seconds since 1970; None if its agent does not say.
    """
    if device_time_s is None or not clock_decides(device, device_time_s):
        return
    off_s = device_time_s - time.time()
    hold_alone(session, device.id)  # an operator may have decided something since it was read
    if not abs(off_s) <= CLOCK_SKEW_S:
        if device.state == "active":
            side = "ahead of" if off_s > 0 else "behind"
            is_far = (
                f"is {abs(off_s):,.0f} s {side} the farm's"
                if math.isfinite(off_s)
                else f"says {device_time_s}, no time"
            )
            reason = f"its clock {is_far}; set it (NTP): then work comes again"
            _quarantine(session, device, reason, BY_CLOCK)
    elif device.state == "quarantined" and device.quarantined_for == BY_CLOCK:
        end_quarantine(session, device, "its clock is right again")
        # Runs that it refused for its clock's sake may come again, once it has shown with others that it works.
        conditions = (Attempt.device_id == device.id, Attempt.code.in_(OF_THE_CLOCK), Attempt.spent.is_not(None))
        session.execute(update(Attempt).where(*conditions).values(spent=MISSED))
