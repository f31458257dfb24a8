"""`/run-groups`: one request, a run on each of many devices."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy.orm import Session

from service.base.pagination import Cursor, Limit, Page
from service.people.access import FarmDep, PrincipalDep, charge
from service.people.holdings import service as holdings
from service.people.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.people.quotas.rates import RUN_COST
from service.store.database.models import RunGroup
from service.work.groups import service
from service.work.groups.schemas import GroupCreate, GroupDetail, GroupView
from service.work.runs.schemas import run_view

router = APIRouter(prefix="/run-groups", tags=["runs"])


def _detail(session: Session, group: RunGroup) -> GroupDetail:
    rows = service.runs_of(session, group)
    names = holdings.of_digests(session, "bundle", {run.bundle_digest for run, _ in rows})
    return GroupDetail(
        **service.view(session, group).model_dump(),
        runs=[run_view(run, names[run.bundle_digest]) for run, _ in rows],
        device_names={run.wanted_device_id or "": name for run, name in rows},
    )


@router.post("", status_code=202, response_model=GroupDetail)
def create_group(body: GroupCreate, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Queues a run on every device that may take it, or on `count` of them; all are queued, or none."""

    def act() -> Answer:
        group = service.create(session, farm, body, api_key_id=principal.key_id)
        session.flush()
        detail = _detail(session, group)
        charge(farm, principal, RUN_COST * len(detail.runs), session=session)
        return Answer(202, detail.model_dump(mode="json"), {"Location": f"/run-groups/{group.id}"})

    with farm.database.transaction() as session:
        payload = fingerprint("POST /run-groups", body.model_dump_json())
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=payload,
            lifetime_s=farm.settings.idempotency_s,
            act=act,
        )
    return answer.response()


@router.get("")
def list_groups(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[GroupView]:
    """Lists groups, the newest first, and how far each has come."""
    with farm.database.read() as session:
        rows, following = service.listed(session, limit=limit, cursor=cursor)
        return Page(items=[service.view(session, row) for row in rows], next=following)


@router.get("/{group_id}")
def show_group(group_id: str, farm: FarmDep, _: PrincipalDep) -> GroupDetail:
    """Returns a group with its runs, by the names of their devices."""
    with farm.database.read() as session:
        return _detail(session, service.find(session, group_id))


@router.post("/{group_id}/cancel")
def cancel_group(group_id: str, farm: FarmDep, _: PrincipalDep) -> GroupDetail:
    """Asks every run of a group that has not ended to stop."""
    with farm.database.transaction() as session:
        group = service.cancel(session, group_id)
        session.flush()
        return _detail(session, group)
