"""The table of measured schedules as compilers read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import ConfigDict, Field

from service.base.schemas import View
from service.store.database.models import Tuning


class TuningView(View):
    """A kernel's measured winner; `choice` is empty where the default won. Times are of one call."""

    kernel: str
    target: str
    version: str
    threads: int
    choice: str
    default_us: float
    tuned_us: float
    device_class: str


class TuningTable(View):
    """The decisions for one target: a file that `pockfarm build --tuning` reads."""

    model_config = ConfigDict(populate_by_name=True)

    table_schema: Literal["pockfarm.tuning/1"] = Field(default="pockfarm.tuning/1", alias="schema")
    entries: list[TuningView]


def table_view(rows: Iterable[Tuning]) -> TuningTable:
    """Returns the table of these decisions."""
    return TuningTable(entries=[TuningView.model_validate(row) for row in rows])
