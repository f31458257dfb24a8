"""`/devices/{id}/canaries`, `/regressions`: what the farm's own models take on devices, and where that changed."""

from __future__ import annotations

from fastapi import APIRouter

from service.base.pagination import Cursor, Limit, Page
from service.boards.canary import service
from service.boards.canary.schemas import Acknowledgement, CanaryHistory, ChangeView
from service.people.access import FarmDep, PrincipalDep

router = APIRouter(tags=["devices"])


@router.get("/devices/{device_id}/canaries")
def show_canaries(device_id: str, farm: FarmDep, _: PrincipalDep) -> CanaryHistory:
    """Returns the times of the device's timed canaries, and the points where they changed by more than their noise; its
    owner sees it.
    """
    with farm.database.read() as session:
        return service.history_of(session, device_id)


@router.post("/devices/{device_id}/canaries/{change_id}/acknowledge")
def acknowledge_regression(
    device_id: str, change_id: str, body: Acknowledgement, farm: FarmDep, _: PrincipalDep
) -> ChangeView:
    """Acknowledges that a device has become slower. The change is then no longer an open regression."""
    with farm.database.transaction() as session:
        return service.acknowledge(session, device_id, change_id, body.reason)


@router.get("/regressions")
def list_regressions(
    farm: FarmDep, _: PrincipalDep, device: str | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[ChangeView]:
    """Lists the open regressions of the caller's devices, the newest first: the device has become slower, still is, and
    nobody has acknowledged it.
    """
    with farm.database.read() as session:
        rows, following = service.regressions(session, device, limit=limit, cursor=cursor)
        return Page(items=[service.change_view(row) for row in rows], next=following)
