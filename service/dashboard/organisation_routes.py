"""The addresses of one organisation's page: of the caller's own, and of the farm's tenants with what changes them."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.base.problems import NotFound, Problem
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.forms import Typed, TypedDep
from service.dashboard.pages.admin.organisation import limits_change, name_change, organisation_page, stays_change
from service.dashboard.pages.admin.part import path
from service.operations.organisations import endpoints
from service.operations.organisations.schemas import OrganisationChange
from service.people.access import FarmDep, PrincipalDep, WholeFarmDep
from service.people.keys.service import Principal
from service.store.farm import Farm

router = APIRouter(prefix=f"{addresses.ROOT}/admin", dependencies=[Depends(visitors.meet)], include_in_schema=False)


@router.get("/organisation")
def show_own(farm: FarmDep, principal: PrincipalDep) -> Response:
    """Shows the caller's organisation."""
    with farm.database.read() as session:
        page = organisation_page(session, farm.settings, principal.organisation_id, is_own=True)
    return render.page("admin_organisation.html", page=page, section="admin")


@router.get("/organisations/{organisation_id}")
def show_organisation(organisation_id: str, farm: WholeFarmDep) -> Response:
    """Shows one of the farm's tenants."""
    with farm.database.read() as session:
        page = organisation_page(session, farm.settings, organisation_id)
    return render.page("admin_organisation.html", page=page, section="admin")


@router.post("/organisations/{organisation_id}/name")
def rename_organisation(organisation_id: str, typed: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Renames an organisation."""
    return _changed(farm, principal, organisation_id, typed, name_change, "change-name")


@router.post("/organisations/{organisation_id}/limits")
def set_limits(organisation_id: str, typed: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Sets limits of an organisation."""
    return _changed(farm, principal, organisation_id, typed, limits_change, "change-limits")


@router.post("/organisations/{organisation_id}/stays")
def set_stays(organisation_id: str, typed: TypedDep, farm: WholeFarmDep, principal: PrincipalDep) -> Response:
    """Sets how long an organisation's data is retained."""
    return _changed(farm, principal, organisation_id, typed, stays_change, "change-stays")


def _changed(
    farm: Farm,
    principal: Principal,
    organisation_id: str,
    typed: Typed,
    change: Callable[[Typed], OrganisationChange],
    form_id: str,
) -> Response:
    """Does what a form asks for; on a refusal, shows the page again with the form as it was typed."""
    try:
        changed = endpoints.change_organisation(organisation_id, change(typed), farm, principal)
    except NotFound:
        raise
    except Problem as problem:
        return _refused(farm, organisation_id, typed, problem, form_id)
    messages = {
        "change-name": f"It is called {changed.name} now",
        "change-limits": f"The limits of {changed.name} are set",
        "change-stays": f"How long things of {changed.name} stay is set",
    }
    return forms.redirect_with_notice(path("organisations", organisation_id), messages[form_id])


def _refused(farm: Farm, organisation_id: str, typed: Typed, problem: Problem, form_id: str) -> Response:
    with farm.database.read() as session:
        fresh = organisation_page(session, farm.settings, organisation_id)
        form = next(candidate for candidate in fresh.forms if candidate.id == form_id).refused(typed, problem)
        page = organisation_page(session, farm.settings, organisation_id, refused=form)
    return render.page("admin_organisation.html", problem.status_code, page=page, section="admin")
