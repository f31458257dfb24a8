"""`/agent-releases`: which agent the farm offers to which of its devices. A new file comes in on the farm's own machine
only (`service.admin agent-release FILE`): an API key that is stolen publishes nothing that was not here."""

from __future__ import annotations

from fastapi import APIRouter

from service.base.pagination import Cursor, Limit, Page
from service.boards.releases import publishing
from service.boards.releases.schemas import HaltRequest, ReleaseCreate, ReleaseDetail, ReleaseView, Stage
from service.people.access import FarmDep, PrincipalDep
from service.people.idempotency import EVERY_TIME, RepeatsDep

router = APIRouter(prefix="/agent-releases", tags=["devices"])


@router.post("", status_code=201)
def create_release(
    body: ReleaseCreate, farm: FarmDep, _: PrincipalDep, repeats: RepeatsDep = EVERY_TIME
) -> ReleaseView:
    """Offers the farm's agent, or a file that was published before, to devices that update themselves."""

    def create() -> ReleaseView:
        if body.digest is None:
            release = publishing.publish_own(session, farm.storage, body)
        else:
            release = publishing.publish_again(session, body)
        return publishing.view(session, release)

    with farm.database.transaction() as session:
        return repeats.once(session, body, ReleaseView, create)


@router.get("")
def list_releases(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[ReleaseView]:
    """Lists releases of the agent, the newest first, and how far each has come."""
    with farm.database.read() as session:
        rows, following = publishing.listed(session, limit=limit, cursor=cursor)
        return Page(items=[publishing.view(session, row) for row in rows], next=following)


@router.get("/{release_id}")
def show_release(release_id: str, farm: FarmDep, _: PrincipalDep) -> ReleaseDetail:
    """Returns a release, and its outcome on each device."""
    with farm.database.read() as session:
        return publishing.detail(session, publishing.find(session, release_id))


@router.patch("/{release_id}")
def widen_release(release_id: str, body: Stage, farm: FarmDep, _: PrincipalDep) -> ReleaseView:
    """Offers the release to more devices: to a larger share or count, or, if neither is given, to all."""
    with farm.database.transaction() as session:
        return publishing.view(session, publishing.widen(session, release_id, body))


@router.post("/{release_id}/halt")
def halt_release(release_id: str, body: HaltRequest, farm: FarmDep, _: PrincipalDep) -> ReleaseView:
    """Halts a release: it is offered to no more devices. Those that have it keep it; publish the older file as a
    rollback to go back.
    """
    with farm.database.transaction() as session:
        release = publishing.find(session, release_id)
        publishing.halt(session, release, body.reason)
        return publishing.view(session, release)
