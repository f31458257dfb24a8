"""Bodies of the endpoints of timed canaries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.base.schemas import RequestBody, Timestamp, View


class BesideChange(View):
    """Something that changed where the times did, or near."""

    what: str
    """`compiler`, `commit`, `bundle`, or something that the device said of itself."""
    before: str
    after: str
    away: int
    """How many runs later than the change of the times this change came; negative: earlier."""


class ChangeView(View):
    """A change of a device's times of one canary by more than the device's noise."""

    id: str
    device_id: str
    series: str
    canary: str
    target: str
    state: Literal["open", "acknowledged", "over", "faster"]
    """`open`: slower, still so, and nobody has said that it is known. `over`: another change came since."""
    message: str
    """`1.052x slower (1.046 to 1.058x)`."""
    ratio: float
    """Ratio of the time after it to the time before, with its 95% interval."""
    ratio_low: float
    ratio_high: float
    deviation: float
    """Relative deviation of one run from the next: the device's noise, which the change exceeds."""
    before_run_id: str
    after_run_id: str
    differences: list[BesideChange]
    """Other changes at that point: no proof that they are the cause."""
    explains: str
    """The differences in words."""
    found_at: Timestamp
    acknowledged_at: Timestamp | None
    acknowledgement: str


class CanaryTimeView(View):
    """A timed canary run."""

    run_id: str
    at: Timestamp
    median_us: float
    verdict: str
    """Only what is valid is judged."""
    compiler: str
    commit: str
    bundle: str


class CanarySeriesView(View):
    """The times of one model, trained by one plan on one target, on a device, again and again."""

    series: str
    canary: str
    target: str
    model: str
    plan: str
    spec: str
    deviation: float | None
    """Relative deviation of one run from the next, between changes; null: too few valid runs."""
    runs: list[CanaryTimeView]
    """The newest, in order."""
    changes: list[ChangeView]
    """The newest first."""


class CanaryHistory(View):
    """A device's timed canaries."""

    device_id: str
    next_at: Timestamp | None
    """When the next ones are due; null: none are planned."""
    series: list[CanarySeriesView]


class Acknowledgement(RequestBody):
    """An acknowledgement that a device has become slower."""

    reason: str = Field(default="", max_length=1000, description="For people: why it is so, or what will be done")
