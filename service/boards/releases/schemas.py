"""Bodies of the release endpoints."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.base.schemas import DigestText, RequestBody, Timestamp, View

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, description="Of the devices that could take it now")]
Count = Annotated[int, Field(ge=1, le=1_000_000, description="So many devices")]


class Stage(RequestBody):
    """How far a release goes for now: to a share or a number of devices; if neither is given, to all."""

    share: Share | None = None
    count: Count | None = None

    @model_validator(mode="after")
    def check_one(self) -> Self:
        """Raises: ValueError."""
        if self.share is not None and self.count is not None:
            raise ValueError("count: a share or a count, not both")
        return self


class ReleaseCreate(Stage):
    """A release of the farm's own agent, or of a file that was published before."""

    digest: DigestText | None = Field(default=None, description="Of an earlier release; null: the farm's own agent")
    where: list[Annotated[str, Field(max_length=200)]] = Field(
        default=[], max_length=20, description="Tags that a device must have: `key` or `key=value`"
    )
    rollback: bool = Field(default=False, description="Meant also for devices that run a newer version")
    most_failures: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="The failure that halts it; null: the first of fewer than ten devices, else a tenth of them",
    )


class ReleaseView(View):
    """A release and how far it is."""

    id: str
    sequence: int
    version: str
    digest: str
    size_bytes: int
    oldest_python: str
    is_rollback: bool
    conditions: list[str]
    state: Literal["offered", "halted"]
    share: float | None
    most_devices: int | None
    """Most devices that may have it now; null: all."""
    most_failures: int | None
    halt_reason: str
    halted_at: Timestamp | None
    created_at: Timestamp
    given: int
    """Devices that have it and have not said what came of it."""
    done: int
    failed: int


class UpdateView(View):
    """The outcome of a release on one device."""

    device_id: str
    name: str
    state: Literal["given", "done", "failed"]
    reason: str
    given_at: Timestamp
    ended_at: Timestamp | None


class ReleaseDetail(ReleaseView):
    """A release with its devices, those that failed first."""

    updates: list[UpdateView]


class HaltRequest(RequestBody):
    """Why."""

    reason: str = Field(default="", max_length=1000)
