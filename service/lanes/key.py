"""What tells one lane from another, and putting a run into its lane."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from service.database.insert import insert_if_new
from service.database.memory import recalled
from service.database.models import IS_QUEUED, Bundle, Device, Lane, Run
from service.database.scope import organisation_of
from service.lanes.calls import call_for
from service.runs.wants import offers

ANY = ""
"""No wish for one device, or for one class."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A device, as far as it decides which lanes are for it."""

    device_id: str
    device_class: str
    targets: tuple[str, ...]
    features: frozenset[str]
    offers: frozenset[str] = frozenset()
    """Tags and data sets of its own (`service/runs/wants.py`)."""
    owner_id: str | None = None
    """The organisation whose runs it takes, beside the farm's canary runs; None: everybody's."""

    @classmethod
    def of(cls, device: Device) -> Taker:
        """As the device is now."""
        owner_id = None if device.is_shared else device.organisation_id
        return cls(
            device.id, device.device_class, tuple(device.targets), frozenset(device.features), offers(device), owner_id
        )

    def may_take(self, lane: Lane | LaneKey) -> bool:
        """Whether the lane is for it."""
        return (
            lane.target in self.targets
            and lane.device_id in (ANY, self.device_id)
            and lane.device_class in (ANY, self.device_class)
            and self.features.issuperset(lane.features)
            and self.offers.issuperset(lane.wants.split("\n") if lane.wants else ())
            and (self.owner_id in (None, lane.organisation_id) or lane.is_canary)
        )


@dataclass(frozen=True, slots=True)
class LaneKey:
    """All that decides which devices may take a run, but for what they have done with it before."""

    organisation_id: str
    target: str
    features: tuple[str, ...]
    """CPU features that the bundle requires, in order."""
    device_class: str = ANY
    device_id: str = ANY
    is_canary: bool = False
    wants: str = ANY
    """What else a device must offer, a line for each, in order."""

    @classmethod
    def of(cls, run: Run, features: Collection[str], organisation_id: str) -> LaneKey:
        """The key of an organisation's run whose bundle requires `features`."""
        return cls(
            organisation_id=organisation_id,
            target=run.target,
            features=tuple(sorted(features)),
            device_class=run.wanted_device_class or ANY,
            device_id=run.wanted_device_id or ANY,
            is_canary=bool(run.is_canary),
            wants=run.wants or ANY,
        )

    @classmethod
    def of_lane(cls, lane: Lane) -> LaneKey:
        """The key of a lane that is there."""
        told = {name: getattr(lane, name) for name in cls.__slots__}
        return cls(**{**told, "features": tuple(lane.features)})

    @property
    def id(self) -> str:
        """The lane's id: a digest of what is set, so that the same key is the same lane in every process, and a field
        that is added later, unset, changes no lane."""
        told = {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (ANY, False, ())}
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return "lan_" + hashlib.sha256(text.encode()).hexdigest()[:32]

    def columns(self) -> dict[str, Any]:
        """As a row of `lanes`."""
        return {name: getattr(self, name) for name in self.__slots__} | {"id": self.id, "features": list(self.features)}


def lanes_of(takers: Collection[Taker]) -> Select[Lane]:
    """The lanes that may be for any of these devices, by an index of the lanes; whether they are, the device says."""
    query = select(Lane).where(
        Lane.device_id.in_((ANY, *(one.device_id for one in takers))),
        Lane.target.in_({target for one in takers for target in one.targets}),
        Lane.device_class.in_((ANY, *{one.device_class for one in takers})),
    )
    owners = {one.owner_id for one in takers}
    return query if None in owners else query.where(or_(Lane.organisation_id.in_(owners), Lane.is_canary))


def enter(session: Session, run: Run, features: Collection[str]) -> None:
    """Put a new run into its lane, for good: what decides the lane of a run never changes."""
    key = LaneKey.of(run, features, run.organisation_id or organisation_of(session))
    run.lane_id, run.attempts = key.id, run.attempts or 0
    call_for(session, run)
    if recalled(session, ("lane", key.id), frozenset(), lambda: session.get(Lane, key.id) and key.id) is None:
        insert_if_new(session, Lane, key.columns() | {"created_at": time.time()})


def enter_queued(session: Session, *, most: int) -> int:
    """Put queued runs into their lanes that code without lanes has queued; how many, at most `most`."""
    query = select(Run).where(IS_QUEUED, Run.lane_id.is_(None)).order_by(Run.created_at, Run.id).limit(most)
    runs = list(session.scalars(query.with_for_update(skip_locked=True)))
    for run in runs:
        enter(session, run, session.get_one(Bundle, run.bundle_digest).required_features)
    return len(runs)
