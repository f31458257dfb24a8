"""Bodies of the device endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from service.base.schemas import RequestBody, Timestamp, View
from service.boards.fleet.marks import DeviceMark
from service.devices.health import Health


class OwnArrayView(View):
    """An array of a data set; the first extent is samples."""

    name: str
    dtype: str
    shape: list[int]


class OwnDatasetView(View):
    """A device's description of a data set that stays on it."""

    name: str
    digest: str
    size_bytes: int
    samples: int
    arrays: list[OwnArrayView]
    label_counts: list[int] | None
    """Samples of each class, if the labels are class numbers."""
    weights_stay: bool
    """Whether weights that are trained on it stay there too."""


class TagsChange(RequestBody):
    """Tags to set (a value may be empty) and to take away."""

    set: dict[str, str] = Field(default={}, max_length=64)
    remove: list[str] = Field(default=[], max_length=64)


class DeviceView(View):
    """A device as its agent describes it, and what the farm thinks of it."""

    id: str
    name: str
    told_name: str
    """Name that its agent gives: another one, where an operator has renamed the device."""
    is_shared: bool
    """Everybody's runs may come to it; else those of your organisation only."""
    state: Literal["active", "quarantined", "removed"]
    """State that was decided for it; `health` says how it is."""
    state_reason: str
    health: Health
    """offline: its agent has not been heard of for 90 s; draining: it finishes its run and takes nothing new."""
    notice: str
    """Hint for its owner to look at its page, in a few words; empty: nothing urgent."""
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
    agent_updates: Literal["on", "off", "installed", "trial", ""]
    """Whether its agent updates itself; `installed`: it runs from no file of its own; empty: it is older than that."""
    agent_digest: str
    """Digest of the file that its agent runs from."""
    runner: str | None
    environment: dict[str, Any]
    strikes: int
    canary_failures: int
    """Canary runs in a row that were not right, since strikes quarantined it."""
    canary_off: bool
    """An operator wants no canary runs for it: only a release brings it back."""
    drained_at: Timestamp | None
    """Since when an operator wants nothing new on it."""
    drain_reason: str
    tags: dict[str, str]
    modes: list[str]
    """Modes of runs that it takes beside profile, train, eval and tune."""
    own_datasets: list[OwnDatasetView]
    """Data sets that stay on it, and that its operator lets runs use (`dataset: device:NAME`)."""
    unconfirmed_at: Timestamp | None
    """Since when, after a restore, it waits for whoever runs the farm to say that it is still a device of it."""
    created_at: Timestamp
    last_seen_at: Timestamp


class DeviceEventView(View):
    """A line of a device's health history."""

    at: Timestamp
    kind: str
    message: str


class HoldView(View):
    """The reason that keeps new work from a device because its operators say so."""

    code: Literal["drained", "maintenance"]
    message: str
    until: Timestamp | None


class ConditionView(View):
    """A device's condition as its agent reported it last. Null: the agent did not report that value."""

    storage_total_bytes: int | None
    """Size of the file system where its agent keeps its work."""
    storage_free_bytes: int | None
    storage_is_nearly_full: bool
    """Less than 1 GiB is free, or less than a twentieth where that is less than 4 GiB."""
    kept_bytes: int | None
    """Bytes that the agent's own files take there: results to be sent, checkpoints, programs."""
    temperature_c: float | None
    """Temperature of its hottest processor zone."""
    problem: str
    """Why what it told was not taken; empty: it was."""
    at: Timestamp


class DeviceDetail(DeviceView):
    """A device with its health history, the newest line first."""

    marks: list[DeviceMark]
    """Marks from its newest results together: always noisy, unlike its peers, figures that cannot be."""
    history: list[DeviceEventView]
    working_on: str | None
    """The run that it has now; a drained device without one is done."""
    condition: ConditionView | None
    """The device's condition, shown to its owner only; null if its agent is too old to report it."""
    hold: HoldView | None
    """Reason that keeps new work from it now: an operator's drain, or a maintenance window; null: no such reason."""


class DeviceChange(RequestBody):
    """A change of a device's name."""

    name: str = Field(max_length=200, description="1-100 letters, digits, spaces and ._:@+-, as at enrolment")


class EnrolmentTokenCreate(RequestBody):
    """A right to enrol a device, or several."""

    device_class: str | None = Field(default=None, max_length=100, description="Only devices of this class may use it")
    new_class: bool = Field(default=False, description="The class is of a kind of board that nobody knows yet")
    targets: list[Annotated[str, Field(max_length=100)]] | None = Field(
        default=None, min_length=1, max_length=50, description="Only devices that run none but these may use it"
    )
    uses: int = Field(default=1, ge=1, le=10_000, description="How many devices may use it")
    lifetime_s: float | None = Field(
        default=None, ge=10, allow_inf_nan=False, description="How long it is good, in seconds; null: 15 minutes"
    )
    name: str = Field(default="", max_length=200, description="For people")
    shared: bool | None = Field(
        default=None, description="Whether everybody's runs may come to them; null: if they are the farm's own"
    )


class EnrolmentTokenView(View):
    """A token without its secret."""

    id: str
    name: str
    device_class: str | None
    targets: list[str] | None
    uses: int
    max_uses: int
    created_at: Timestamp
    expires_at: Timestamp
    revoked_at: Timestamp | None


class EnrolmentTokenCreated(EnrolmentTokenView):
    """A token with its secret, shown this once."""

    token: str


class EnrolmentUseView(View):
    """A device that used a token."""

    device_id: str
    name: str
    device_class: str
    state: str
    at: Timestamp


class EnrolmentTokenDetail(EnrolmentTokenView):
    """A token with the devices that used it, the first one first."""

    used_by: list[EnrolmentUseView]


class CanaryChange(RequestBody):
    """Whether the farm may try by itself to bring the device back."""

    enabled: bool


class StateChange(RequestBody):
    """Why."""

    reason: str = Field(default="", max_length=1000)
