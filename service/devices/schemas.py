"""Bodies of the device endpoints."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.devices.marks import DeviceMark
from service.schemas import RequestBody, Timestamp, View


class DeviceView(View):
    """A device as its agent describes it, and what the farm thinks of it."""

    id: str
    name: str
    state: Literal["active", "quarantined", "removed"]
    state_reason: str
    device_class: str
    measurement_class: str
    """hardware, host, emulated or simulated."""
    targets: list[str]
    architecture: str
    cpu_model: str
    features: list[str]
    cores: int
    memory_bytes: int
    sensors: list[str]
    isolation_level: int
    agent_version: str
    runner: str | None
    environment: dict[str, Any]
    strikes: int
    canary_failures: int
    """Canary runs in a row that were not right, since strikes quarantined it."""
    canary_off: bool
    """An operator wants no canary runs for it: only a release brings it back."""
    created_at: Timestamp
    last_seen_at: Timestamp


class DeviceEventView(View):
    """A line of a device's health history."""

    at: Timestamp
    kind: str
    message: str


class DeviceDetail(DeviceView):
    """A device with its health history, the newest line first."""

    marks: list[DeviceMark]
    """What its newest results say of it together: always noisy, unlike its peers, figures that cannot be."""
    history: list[DeviceEventView]


class EnrolmentTokenCreate(RequestBody):
    """A right to enrol one device."""

    device_class: str | None = Field(default=None, max_length=100, description="Only a device of this class may use it")


class EnrolmentTokenCreated(View):
    """A one-time token, shown this once."""

    token: str
    device_class: str | None
    expires_at: Timestamp


class CanaryChange(RequestBody):
    """Whether the farm may try by itself to bring the device back."""

    enabled: bool


class StateChange(RequestBody):
    """Why."""

    reason: str = Field(default="", max_length=1000)
