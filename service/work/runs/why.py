"""Why a run is where it is, in plain words: what each attempt came to, why it waits, and when it may start."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.durations import format_duration
from service.base.schemas import Timestamp, View, columns
from service.base.settings import Settings
from service.devices.blame import COUNTED, FAILED, MISSED, TAKEN_BACK
from service.devices.machines import ON_TWO_MACHINES, refused_lately
from service.people.quotas.limits import HINT
from service.store.database.models import OPEN_RUN_STATES, Attempt, Device, Run
from service.store.states import end_phrase
from service.work.runs import fitting
from service.work.runs.fitting import Standing, Wish, standings
from service.work.runs.forecast import Allowance, Forecast, forecast

SHOWN_DEVICES = 50


class TryWhy(View):
    """An attempt, and what was decided because of it."""

    n: int
    device_id: str
    device_name: str
    device_class: str
    state: str
    cause: str | None
    code: str | None
    message: str
    created_at: Timestamp
    finished_at: Timestamp | None
    fault: str | None
    """Whose fault its end was judged to be: run, device, either, passing, nobody; null: it succeeded, or is open."""
    strike: str | None
    """`counted` against the device, or `taken-back` since."""
    decision: str
    """Decision that followed, in words."""


class DeviceWhy(View):
    """How one device stands to the run."""

    device_id: str
    name: str
    device_class: str
    code: fitting.Code
    message: str
    until: Timestamp | None


class Waiting(View):
    """Why a queued run has not started, and when it may."""

    code: str
    """`next`, `queue`, `quota`, `excluded`, `unavailable` or `none`: what keeps it."""
    message: str
    devices: list[DeviceWhy]
    """At most 50 devices, those that fit first."""
    more_devices: int
    position: int | None
    """Place in the queue, from 1; null while no device fits."""
    is_position_least: bool
    """There are more runs ahead than were counted."""
    expected_start_at: Timestamp | None
    confidence: Literal["fair", "rough", "unknown"]
    basis: str
    expires_at: Timestamp


class RunWhy(View):
    """The state of a run, and the reasons for it."""

    id: str
    state: str
    message: str
    """Summary in one or two sentences."""
    tries: list[TryWhy]
    waiting: Waiting | None
    """Null unless it is queued."""


def why(session: Session, settings: Settings, run: Run) -> RunWhy:
    """Returns the explanation of a run as it is now."""
    query = select(Attempt, Device).join(Device, Device.id == Attempt.device_id).where(Attempt.run_id == run.id)
    rows = [(attempt, device) for attempt, device in session.execute(query.order_by(Attempt.n))]
    tries = [_try(settings, run, attempt, device) for attempt, device in rows]
    waiting = waiting_of(session, settings, run) if run.state == "queued" else None
    summary = _summary(run, rows, waiting)
    twice = refused_lately(session, [device.id for _, device in rows] if run.state in OPEN_RUN_STATES else [])
    names = dict.fromkeys(device.name for _, device in rows if device.id in twice)
    summary += "".join(f" {name}: {ON_TWO_MACHINES}." for name in names)
    return RunWhy(id=run.id, state=run.state, message=summary, tries=tries, waiting=waiting)


def _summary(run: Run, rows: Sequence[tuple[Attempt, Device]], waiting: Waiting | None) -> str:
    if waiting is not None:
        after = f"It was tried {_times(len(rows))} and is in the queue again. " if rows else ""
        return after + waiting.message
    where = rows[-1][1].name if rows else ""
    if run.state in OPEN_RUN_STATES:
        so_far = format_duration(time.time() - rows[-1][0].created_at) if rows else ""
        stopping = "; it was asked to stop, and ends when the device hears of it" if run.cancel_requested else ""
        return f"It has been on {where} for {so_far}, attempt {run.attempts}{stopping}."
    if run.state == "succeeded":
        return f"It succeeded on {where}" + (f", at attempt {run.attempts}." if run.attempts > 1 else ".")
    sentence = f"It {end_phrase(run.state)}: {run.message or run.code or 'no more is known'}"
    return sentence.rstrip(".") + "." + (f" Next step: {run.hint}." if run.hint else "")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _try(settings: Settings, run: Run, attempt: Attempt, device: Device) -> TryWhy:
    plain = columns(TryWhy, attempt)
    decision = _decision(settings, run, attempt, device)
    return TryWhy(**plain, device_name=device.name, device_class=device.device_class, decision=decision)


FAULTS = {
    "run": "another device would have ended the same way, so the run ended with it",
    "device": "no run can cause this: it counts as the device's fault",
    "either": "one device alone cannot tell whether it or the run is to blame: a second device decides",
    "passing": "it may pass by itself",
    "nobody": "nobody's fault",
}


def _decision(settings: Settings, run: Run, attempt: Attempt, device: Device) -> str:
    if attempt.finished_at is None:
        return "still at work"
    if attempt.state == "succeeded":
        return "the run ended with it" if run.attempts == attempt.n else "it came too late, and is kept as evidence"
    parts = [FAULTS[attempt.fault]] if attempt.fault in FAULTS else []
    if attempt.strike == COUNTED:
        parts.append(f"a strike against {device.name}")
    if attempt.strike == TAKEN_BACK:
        parts.append(f"the strike against {device.name} was taken back: the run was to blame")
    if attempt.spent == FAILED:
        parts.append(f"{device.name} is not given the run again unless an operator releases it")
    elif attempt.spent == MISSED:
        parts.append(
            f"{device.name} may have it again after {format_duration(settings.device_retry_s)} or its next success"
        )
    parts.append(_followed(run, attempt))
    return "; ".join(part for part in parts if part)


def _followed(run: Run, attempt: Attempt) -> str:
    if run.attempts > attempt.n:
        return f"attempt {attempt.n + 1} followed"
    if run.state == "queued":
        return "the run went back into the queue"
    return "" if attempt.fault == "run" else f"the run {end_phrase(run.state)}"


def waiting_of(session: Session, settings: Settings, run: Run) -> Waiting:
    """Why the run waits."""
    devices = standings(session, settings, Wish.of(session, run), run)
    ready = [standing for standing in devices if standing.fits]
    outlook = forecast(session, settings, run, ready)
    code, message = waiting_words(run, devices, outlook)
    views = [
        DeviceWhy(
            device_id=standing.device.id,
            name=standing.device.name,
            device_class=standing.device.device_class,
            code=standing.code,
            message=standing.message,
            until=standing.until,
        )
        for standing in devices[:SHOWN_DEVICES]
    ]
    return Waiting(
        code=code,
        message=message,
        devices=views,
        more_devices=max(0, len(devices) - SHOWN_DEVICES),
        position=outlook.ahead + 1 if outlook else None,
        is_position_least=outlook.is_more if outlook else False,
        expected_start_at=outlook.start_at if outlook else None,
        confidence=outlook.confidence if outlook else "unknown",
        basis=outlook.basis if outlook else "no device can take it now",
        expires_at=run.queue_deadline_at,
    )


def waiting_words(run: Run, devices: Sequence[Standing], outlook: Forecast | None) -> tuple[str, str]:
    """Returns what keeps the run, as a code and in words."""
    limit = f" It expires in {format_duration(max(0.0, run.queue_deadline_at - time.time()))} if none takes it."
    if outlook is not None:
        return _in_queue(devices, outlook)
    if not devices:
        return "none", f"It waits: {nothing_there(run.wanted_device_class, run.target)}.{limit}"
    if any(standing.code == fitting.TRIED for standing in devices):
        return "excluded", f"It waits for another device: {_device_list(devices)}.{limit}"
    return "unavailable", f"It waits: no device can take it now: {_device_list(devices)}.{limit}"


def nothing_there(device_class: str | None, target: str) -> str:
    """Returns the sentence that no device of the kind is enrolled."""
    if device_class is not None:
        return f"no device of class {device_class} is enrolled"
    return f"no device is enrolled, and this run needs one that runs {target}"


def _in_queue(devices: Sequence[Standing], outlook: Forecast) -> tuple[str, str]:
    if outlook.full is not None:
        return "quota", _at_quota(outlook, outlook.full)
    ready = [standing for standing in devices if standing.fits]
    free = [standing for standing in ready if standing.code == fitting.FREE]
    if outlook.ahead < len(free) and not outlook.is_more:
        taker = outlook.taker or free[0].device.name
        return "next", f"It is next: {taker} is free and gets it when it asks, in a few seconds."
    busy = f"{len(ready)} device{' fits' if len(ready) == 1 else 's fit'}, {len(ready) - len(free)} of them busy"
    if len(ready) == 1 and not free:
        busy = f"the one device that fits, {ready[0].device.name}, {ready[0].message}"
    return "queue", f"It waits: {busy}; {_ahead(outlook, 'ahead of it')}; {_when(outlook)} ({outlook.basis})."


def _at_quota(outlook: Forecast, full: Allowance) -> str:
    has = f"your organisation has {full.live} of {full.limit} run{'' if full.limit == 1 else 's'} on devices"
    if not full.limit:
        return f"It waits: {has}, so it may have none; {HINT}."
    return f"It waits: {has}; {_ahead(outlook, 'of yours ahead of it')}; {_when(outlook)} ({outlook.basis})."


def _ahead(outlook: Forecast, which: str) -> str:
    least = "at least " if outlook.is_more else ""
    return (
        f"{least}{outlook.ahead} run{'' if outlook.ahead == 1 else 's'} {which}"
        if outlook.ahead
        else "first in the queue"
    )


def _when(outlook: Forecast) -> str:
    if outlook.start_at is None:
        return "when it starts is unknown"
    about = "about" if outlook.confidence == "fair" else "very roughly"
    return f"it may start in {about} {format_duration(max(0.0, outlook.start_at - time.time()))}"


def _device_list(devices: Sequence[Standing], most: int = 5) -> str:
    listing = "; ".join(f"{standing.device.name} {standing.message}" for standing in devices[:most])
    rest = Counter(standing.code for standing in devices[most:])
    return listing + "".join(f"; {count} more: {code}" for code, count in rest.items())
