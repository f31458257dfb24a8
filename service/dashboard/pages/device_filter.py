"""The filter of devices: by health, class of board and tag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from service.dashboard.facts import DeviceFacts
from service.dashboard.parts import Filter, choices
from service.devices.health import Health

HEALTHS = tuple(word for word in get_args(Health) if word != "removed")


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """A filter of devices; an empty field does not restrict."""

    health: str = ""
    device_class: str = ""
    tag: str = ""
    """`key` or `key=value`."""

    def takes(self, device: DeviceFacts) -> bool:
        """Whether the device is one of them."""
        keys = {tag.partition("=")[0] for tag in device.tags}
        return (
            self.health in ("", device.health)
            and self.device_class in ("", device.device_class)
            and (not self.tag or self.tag in device.tags or self.tag in keys)
        )

    @property
    def query(self) -> tuple[tuple[str, str], ...]:
        """Filters in force, as query fields."""
        pairs = (("health", self.health), ("class", self.device_class), ("tag", self.tag))
        return tuple(pair for pair in pairs if pair[1])

    def filters(self, every: Sequence[DeviceFacts]) -> tuple[Filter, ...]:
        """Returns the choices by what there is."""
        classes = tuple(sorted({device.device_class for device in every}))
        tags = tuple(sorted({tag for device in every for tag in device.tags}))
        return (
            Filter("health", "Health", self.health, choices(HEALTHS)),
            Filter("class", "Board", self.device_class, choices(classes)),
            *([Filter("tag", "Tag", self.tag, choices(tags))] if tags else []),
        )
