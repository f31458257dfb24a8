"""Decides which devices could take a run, and what prevents the others: the one place that explains what leasing does.

Leasing asks from the device's side, with one indexed query; this asks from the run's side, when somebody wants to know.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlalchemy import Select, Text, cast, select
from sqlalchemy.orm import Session

from device_agents.wire import RunSettings
from service.artefacts.bundles.service import built
from service.base.durations import format_duration
from service.base.settings import Settings
from service.devices.blame import FAILED
from service.devices.clocks import free_s, run_s
from service.devices.machines import ON_TWO_MACHINES, refused_lately
from service.devices.maintenance.standing import DRAINED, MAINTENANCE, WINDOWS, Calendar
from service.devices.sightings import SILENT_AFTER_S
from service.devices.wants import lacking as lacking_wants
from service.devices.wants import offers
from service.store.database.memory import recalled
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Device, Run
from service.store.database.scope import EVERYONES, organisation_of
from service.work.runs import compared

MOST_DEVICES = 200
"""Most devices that are looked at for one answer."""
FIRST_DEVICES = 3
"""Number of devices that are looked at first: mostly one of them will do."""
DEVICES = WINDOWS | {Device.__tablename__}
"""Tables that say which devices are there."""
Code = Literal[
    "free",
    "busy",
    "tried",
    "silent",
    "drained",
    "maintenance",
    "quarantined",
    "isolation",
    "features",
    "wants",
    "target",
    "removed",
]
FREE: Final = "free"
BUSY: Final = "busy"
TRIED: Final = "tried"
SILENT: Final = "silent"
QUARANTINED: Final = "quarantined"
ISOLATION: Final = "isolation"
FEATURES: Final = "features"
WANTS: Final = "wants"
TARGET: Final = "target"
REMOVED: Final = "removed"
FITS = (FREE, BUSY)
ORDER: tuple[Code, ...] = (
    FREE,
    BUSY,
    TRIED,
    MAINTENANCE,
    DRAINED,
    QUARANTINED,
    SILENT,
    ISOLATION,
    FEATURES,
    WANTS,
    TARGET,
    REMOVED,
)
"""Order in which devices are listed: those that may take the run soonest come first."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The needs of a run, and its user's wish for a device."""

    target: str
    features: frozenset[str]
    device_id: str | None = None
    device_class: str | None = None
    wants: frozenset[str] = frozenset()
    settings: RunSettings | None = None
    """Settings of the run, as far as they say how long it may take."""

    @classmethod
    def of(cls, session: Session, run: Run) -> Wish:
        """Returns the wish of a run that is there."""
        needed = compared.features(built(session, run.bundle_digest), compared.others(session, run))
        wants = frozenset(run.wants.split("\n")) - {""}
        return cls(run.target, needed, run.wanted_device_id, run.wanted_device_class, wants, run.settings)


@dataclass(frozen=True, slots=True)
class Standing:
    """How one device stands to a run: `code` says what prevents it from taking the run, and `message` says it in
    words.
    """

    device: Device
    code: Code
    message: str
    until: float | None = None
    """When that passes by itself, as far as is known."""
    busy_since: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the device takes the run now, or when it is done with its current work."""
        return self.code in FITS


def standings(
    session: Session, settings: Settings, wish: Wish, run: Run | None = None, *, most: int = MOST_DEVICES
) -> list[Standing]:
    """Returns every device that the wish may mean, those that fit first. With `run`, earlier attempts count too."""
    devices = list(session.scalars(_meant(wish).limit(most)))
    busy = _busy(session, [device.id for device in devices])
    own_runs = set(session.scalars(select(Run.id).where(Run.id.in_([attempt.run_id for attempt in busy.values()]))))
    spent = _spent(session, run) if run is not None else {}
    calendar = Calendar.read(session)
    twice = refused_lately(session, [device.id for device in devices])
    results = []
    for device in devices:
        standing = _standing(
            settings, wish, device, busy.get(device.id), spent.get(device.id), calendar, own_runs=own_runs
        )
        remark = f" ({ON_TWO_MACHINES})" if device.id in twice else ""
        results.append(replace(standing, message=standing.message + remark))
    return sorted(results, key=lambda standing: (ORDER.index(standing.code), standing.device.name))


def has_one(session: Session, settings: Settings, wish: Wish) -> bool:
    """Whether some device that is there now fits; of runs sent one after the other, asked once a second."""
    key = ("fits", organisation_of(session), replace(wish, settings=None), run_s(settings, wish.settings))
    return recalled(session, key, DEVICES, lambda: _finds_one(session, settings, wish) or None) is True


def _finds_one(session: Session, settings: Settings, wish: Wish) -> bool:
    query = _meant(wish).where(
        Device.state == "active",
        Device.last_seen_at > time.time() - SILENT_AFTER_S,
        Device.isolation_level >= settings.isolation_level,
        cast(Device.targets, Text).contains(f'"{wish.target}"', autoescape=True),
    )
    calendar = Calendar.read(session)

    def fits(device: Device) -> bool:
        is_free = calendar.hold(device, free_s(settings, device, wish.settings)) is None
        return (
            is_free
            and wish.target in device.targets
            and wish.features.issubset(device.features)
            and (wish.wants <= offers(device))
        )

    return any(fits(device) for most in (FIRST_DEVICES, MOST_DEVICES) for device in session.scalars(query.limit(most)))


def classes(session: Session) -> list[str]:
    """Returns the device classes that the farm has, by name."""
    query = select(Device.device_class).where(Device.state != "removed").distinct()
    return sorted(session.scalars(query))


def _meant(wish: Wish) -> Select[Device]:
    query = select(Device).order_by(Device.state, Device.last_seen_at.desc())
    if wish.device_id is not None:
        return query.where(Device.id == wish.device_id)
    query = query.where(Device.state != "removed")
    return query if wish.device_class is None else query.where(Device.device_class == wish.device_class)


def _busy(session: Session, ids: Sequence[str]) -> dict[str, Attempt]:
    live = select(Attempt).where(Attempt.state.in_(LIVE_ATTEMPT_STATES), Attempt.device_id.in_(ids))
    return {attempt.device_id: attempt for attempt in session.scalars(live, execution_options=dict(EVERYONES))}


def _spent(session: Session, run: Run) -> dict[str, Attempt]:
    """Returns the newest attempt on each device that keeps the run from it."""
    query = select(Attempt).where(Attempt.run_id == run.id, Attempt.spent.is_not(None)).order_by(Attempt.n)
    return {attempt.device_id: attempt for attempt in session.scalars(query)}


def _standing(
    settings: Settings,
    wish: Wish,
    device: Device,
    busy: Attempt | None,
    spent: Attempt | None,
    calendar: Calendar,
    *,
    own_runs: Collection[str],
) -> Standing:
    """Returns how the device stands to the wish. `own_runs`: runs that the caller may know of."""
    if device.state == "removed":
        return Standing(device, REMOVED, "was removed from the farm")
    if wish.target not in device.targets:
        return Standing(device, TARGET, f"runs {_listed(device.targets)}, not {wish.target}")
    lacking = wish.features.difference(device.features)
    if lacking:
        return Standing(device, FEATURES, f"lacks the CPU features {_listed(sorted(lacking))}")
    without = lacking_wants(wish.wants, device)
    if without:
        return Standing(device, WANTS, without)
    if device.state == "quarantined":
        return Standing(device, QUARANTINED, f"is quarantined: {device.state_reason or 'an operator said so'}")
    if device.isolation_level < settings.isolation_level:
        return Standing(
            device,
            ISOLATION,
            f"isolates at level {device.isolation_level}, this farm asks for {settings.isolation_level}",
        )
    hold = calendar.hold(device, free_s(settings, device, wish.settings))
    if hold is not None:
        return Standing(device, hold.code, hold.message, hold.until)
    tried = _tried(settings, device, spent)
    if tried is not None:
        return tried
    if time.time() - device.last_seen_at > SILENT_AFTER_S:
        return Standing(device, SILENT, f"has been silent for {format_duration(time.time() - device.last_seen_at)}")
    if busy is not None:
        what = busy.run_id if busy.run_id in own_runs else "another organisation's run"
        return Standing(device, BUSY, f"works on {what}", busy_since=busy.created_at)
    return Standing(device, FREE, "is free")


def _tried(settings: Settings, device: Device, spent: Attempt | None) -> Standing | None:
    """Decides the same as `attempts.untried`, and returns the reason if the device may not have the run."""
    if spent is None or spent.finished_at is None or spent.finished_at <= device.released_at:
        return None
    reason = f"attempt {spent.n} on it ended with {spent.code or spent.state}"
    if spent.spent == FAILED:
        return Standing(device, TRIED, f"is not given this run again: {reason}; an operator's release lifts that")
    until = spent.finished_at + settings.device_retry_s
    if spent.finished_at <= device.succeeded_at or until <= time.time():
        return None
    return Standing(
        device,
        TRIED,
        f"is kept from this run for now: {reason}; it may try again in "
        f"{format_duration(until - time.time())}, or after its next success",
        until,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
