"""The addresses of `/dashboard/admin`. Each form calls the endpoint of the API that does what it asks for."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from sqlalchemy.orm import Session

from service.access import FarmDep
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.forms import Form, Typed, TypedDep
from service.dashboard.pages.admin import keys
from service.dashboard.pages.admin.part import AdminPart, Made, path
from service.farm import Farm
from service.keys import endpoints as key_endpoints
from service.problems import Problem

router = APIRouter(prefix=f"{addresses.ROOT}/admin", dependencies=[Depends(visitors.meet)])
Part = Callable[[Session, Form | None, Made | None], AdminPart]


def _page(farm: Farm, part: Part, form: Form | None = None, made: Made | None = None, status: int = 200) -> Response:
    with farm.database.read() as session:
        return render.page("admin_part.html", status, page=part(session, form, made), section="admin")


def _refused(farm: Farm, part: Part, typed: Typed, problem: Problem, place: int = 0) -> Response:
    """The page again, with what was typed into its form of that place, and why it was not taken."""
    with farm.database.read() as session:
        form = part(session, None, None).forms[place].refused(typed, problem)
    return _page(farm, part, form, status=problem.status_code)


@router.get("/keys")
def show_keys(farm: FarmDep) -> Response:
    """API keys of the organisation."""
    return _page(farm, keys.part)


@router.post("/keys")
def make_key(typed: TypedDep, farm: FarmDep) -> Response:
    """Make one: the answer shows its secret, and nothing else ever does."""
    try:
        made = key_endpoints.create_key(keys.body(typed), farm)
    except Problem as problem:
        return _refused(farm, keys.part, typed, problem)
    return _page(farm, keys.part, made=keys.made(made), status=201)


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: str, _: TypedDep, farm: FarmDep) -> Response:
    """Revoke one."""
    revoked = key_endpoints.revoke_key(key_id, farm)
    return forms.done(path("keys"), f"The key {revoked.name} is revoked: it stopped working")
