"""The identity of a lane: what tells one lane from another, and for which devices it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from service.devices.wants import offers
from service.store.database.models import Device, Lane, Run

ANY = ""
"""No wish for one device, or for one class."""


def device_wish(device_id: str) -> str:
    """Returns the wish for this device, as a text beside those for tags and data (`service/devices/wants.py`)."""
    return f"device:{device_id}"


def class_wish(device_class: str) -> str:
    """Returns the wish for a device of this class."""
    return f"class:{device_class}"


def target_wish(target: str) -> str:
    """Returns the wish for a device that runs this target."""
    return f"target:{target}"


@dataclass(frozen=True, slots=True)
class Taker:
    """A device, as far as it decides which lanes are for it."""

    device_id: str
    device_class: str
    targets: tuple[str, ...]
    features: frozenset[str]
    offers: frozenset[str] = frozenset()
    """Tags and data sets of its own (`service/devices/wants.py`)."""
    owner_id: str | None = None
    """The organisation whose runs it takes, beside the farm's canary runs; None: everybody's."""

    @classmethod
    def of(cls, device: Device) -> Taker:
        """Returns the device as it is now."""
        owner_id = None if device.is_shared else device.organisation_id
        return cls(
            device.id, device.device_class, tuple(device.targets), frozenset(device.features), offers(device), owner_id
        )

    @property
    def wishes(self) -> frozenset[str]:
        """All wishes for a single thing that the device satisfies."""
        wishes = {class_wish(self.device_class), *map(target_wish, self.targets)}
        return self.offers | wishes | ({device_wish(self.device_id)} if self.device_id else set())

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
    """Everything that decides which devices may take a run, except what they have done with it before."""

    organisation_id: str
    target: str
    features: tuple[str, ...]
    """CPU features that the bundle requires, in order."""
    device_class: str = ANY
    device_id: str = ANY
    is_canary: bool = False
    wants: str = ANY
    """Further offers that a device must make, a line for each, in order."""

    @classmethod
    def of(cls, run: Run, features: Collection[str], organisation_id: str) -> LaneKey:
        """Returns the key of an organisation's run whose bundle requires `features`."""
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
        """Returns the key of a lane that is there."""
        fields = {name: getattr(lane, name) for name in cls.__slots__}
        return cls(**{**fields, "features": tuple(lane.features)})

    @property
    def id(self) -> str:
        """The lane's id: a digest of what is set, so that the same key is the same lane in every process, and a field
        that is added later, unset, changes no lane."""
        fields = {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (ANY, False, ())}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return "lan_" + hashlib.sha256(text.encode()).hexdigest()[:32]

    def columns(self) -> dict[str, Any]:
        """Returns the key as a row of `lanes`."""
        return {name: getattr(self, name) for name in self.__slots__} | {"id": self.id, "features": list(self.features)}
