"""`/maintenance`: times in which devices get no new work."""

from __future__ import annotations

from fastapi import APIRouter

from service.base.pagination import Cursor, Limit, Page
from service.devices.maintenance import service
from service.devices.maintenance.schemas import WindowCreate, WindowView
from service.people.access import FarmDep, PrincipalDep
from service.people.idempotency import EVERY_TIME, RepeatsDep

router = APIRouter(prefix="/maintenance", tags=["devices"])


@router.post("", status_code=201)
def create_window(body: WindowCreate, farm: FarmDep, _: PrincipalDep, repeats: RepeatsDep = EVERY_TIME) -> WindowView:
    """Plans a time without new work. Runs that are under way then go on; none starts that could reach into it."""

    def create() -> WindowView:
        return service.view(service.create(session, body))

    with farm.database.transaction() as session:
        return repeats.once(session, body, WindowView, create)


@router.get("")
def list_windows(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[WindowView]:
    """Lists maintenance windows, the newest first; those that are over too."""
    with farm.database.read() as session:
        rows, following = service.listed(session, limit=limit, cursor=cursor)
        return Page(items=[service.view(row) for row in rows], next=following)


@router.delete("/{window_id}")
def remove_window(window_id: str, farm: FarmDep, _: PrincipalDep) -> WindowView:
    """Removes a maintenance window."""
    with farm.database.transaction() as session:
        return service.view(service.remove(session, window_id))
