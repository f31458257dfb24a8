"""Bodies of the group endpoints."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from service.base.schemas import Timestamp, View
from service.work.runs.schemas import RunCreate, RunView

MOST_DEVICES = 500


class GroupCreate(RunCreate):
    """A run on each of several devices: of the class, with the tags and data that it asks for."""

    count: int | None = Field(
        default=None, ge=1, le=MOST_DEVICES, description="On so many of them, each once; null: on all of them"
    )
    name: str = Field(default="", max_length=200, description="For people")

    @model_validator(mode="after")
    def check_place(self) -> Self:
        """Raises: ValueError."""
        if self.device is not None:
            raise ValueError("device: a group is for several devices; POST /runs sends one run to one device")
        return self

    def run_for(self, device_id: str) -> RunCreate:
        """Returns the request for one of the devices."""
        fields = {name: getattr(self, name) for name in RunCreate.model_fields if name in self.model_fields_set}
        return RunCreate(**{**fields, "device": device_id})


class GroupView(View):
    """A group and how far it is."""

    id: str
    name: str
    created_at: Timestamp
    states: dict[str, int]
    """Runs by their state."""
    is_open: bool
    """Whether some of its runs have not ended."""


class GroupDetail(GroupView):
    """A group with its runs, by device."""

    runs: list[RunView]
    device_names: dict[str, str]
    """Names of the runs' devices, by id."""
