"""`GET /tunings`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.access import FarmDep, PrincipalDep
from service.tunings import service
from service.tunings.schemas import TuningTable, table_view

router = APIRouter(tags=["tunings"])


@router.get("/tunings")
def show_tunings(farm: FarmDep, _: PrincipalDep, target: Annotated[str, Query(max_length=100)]) -> TuningTable:
    """The schedules that measurements chose for a target, as compiles get them; empty where nothing was measured."""
    with farm.database.read() as session:
        return table_view(service.newest(session, target))
