"""The waiting runs of an organisation: by lane, which is what runs wait for, and who could take each lane."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.devices.clocks import free_s
from service.devices.maintenance.standing import Calendar
from service.devices.sightings import SILENT_AFTER_S
from service.store.database.memory import recalled
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Device, Lane, Run
from service.store.database.scope import EVERYONES, organisation_of
from service.work.lanes.key import Taker
from service.work.runs.fitting import MOST_DEVICES

RUNS = frozenset({Run.__tablename__})
MOST_LANES = 50
"""Most lanes that are looked at: those whose oldest run came first."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A device, and whether it takes work: `free`, `busy`, `held` (by its operators), `away` or `quarantined`."""

    device: Device
    now: str


@dataclass(frozen=True, slots=True)
class WaitingLane:
    """Runs that wait for the same devices."""

    lane: Lane
    runs: int
    oldest_at: float
    first_id: str
    devices: tuple[Standing, ...]
    """Devices that fit the lane, whether they take work now or not."""

    @property
    def takers(self) -> tuple[Standing, ...]:
        """Devices that take the lane's runs, now or when they are done with their current work."""
        return tuple(standing for standing in self.devices if standing.now in ("free", "busy"))


def waiting_lanes(session: Session, there: Sequence[Standing]) -> list[WaitingLane]:
    """Returns the organisation's lanes in which something waits, the oldest first. The farm's own canaries are left
    out.

    `there`: the devices, by `device_standings`.
    """
    rows = recalled(session, ("waiting lanes", organisation_of(session)), RUNS, lambda: _read(session))
    lanes = {lane.id: lane for lane in session.scalars(select(Lane).where(Lane.id.in_([row[0] for row in rows])))}
    takers = [(Taker.of(standing.device), standing) for standing in there]
    return [
        WaitingLane(
            lanes[lane_id],
            runs,
            oldest_at,
            first_id,
            tuple(standing for taker, standing in takers if taker.may_take(lanes[lane_id])),
        )
        for lane_id, runs, oldest_at, first_id in rows
        if lane_id in lanes and not lanes[lane_id].is_canary
    ]


def _read(session: Session) -> list[tuple[str, int, float, str]]:
    """Returns (lane, runs, the oldest one's time, its id)."""
    query = (
        select(Run.queued_in, func.count(), func.min(Run.created_at), func.min(Run.id))
        .where(Run.queued_in.is_not(None), Run.queue_deadline_at > time.time())
        .group_by(Run.queued_in)
        .order_by(func.min(Run.created_at))
        .limit(MOST_LANES)
    )
    return [(str(lane), int(runs), float(oldest), str(first)) for lane, runs, oldest, first in session.execute(query)]


def device_standings(session: Session, settings: Settings) -> list[Standing]:
    """Returns the devices to which the organisation's runs may go, those seen last first."""
    query = select(Device).where(Device.state != "removed").order_by(Device.last_seen_at.desc()).limit(MOST_DEVICES)
    devices: Sequence[Device] = session.scalars(query).all()
    live = select(Attempt.device_id).where(Attempt.state.in_(LIVE_ATTEMPT_STATES))
    busy = set(session.scalars(live, execution_options=dict(EVERYONES)))
    calendar, now = Calendar.read(session), time.time()

    def stands(device: Device) -> str:
        if device.state != "active":
            return device.state
        if calendar.hold(device, free_s(settings, device, None)) is not None:
            return "held"
        if now - device.last_seen_at > SILENT_AFTER_S:
            return "away"
        return "busy" if device.id in busy else "free"

    return [
        Standing(device, stands(device)) for device in devices if device.isolation_level >= settings.isolation_level
    ]
