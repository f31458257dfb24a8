"""`GET /tunings`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.artefacts.tunings import service
from service.artefacts.tunings.schemas import TuningTable, table_view
from service.people.access import FarmDep, PrincipalDep

router = APIRouter(tags=["tunings"])


@router.get("/tunings")
def show_tunings(farm: FarmDep, _: PrincipalDep, target: Annotated[str, Query(max_length=100)]) -> TuningTable:
    """Returns the schedules that measurements chose for a target, as compiles get them; empty where nothing was
    measured.
    """
    with farm.database.read() as session:
        return table_view(service.newest(session, target))
