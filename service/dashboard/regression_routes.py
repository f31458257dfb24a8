"""The addresses of regressions, and of saying that one is known."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from service.base.problems import Invalid
from service.boards.canary import endpoints as canary_endpoints
from service.boards.canary.schemas import Acknowledgement
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.forms import TypedDep
from service.dashboard.pages.regressions import acknowledgement, regressions_page
from service.people.access import FarmDep, PrincipalDep

router = APIRouter(prefix=addresses.ROOT, dependencies=[Depends(visitors.meet)], include_in_schema=False)


@router.get("/regressions")
def show_regressions(farm: FarmDep, of: Annotated[str, Query(max_length=64)] = "") -> Response:
    """Shows where times became slower. `of`: adds the history of the work that this run did."""
    with farm.database.read() as session:
        page = regressions_page(session, of)
    if of and page.chosen is None:
        raise Invalid(
            "query.value",
            f"there is no history of a run {of!r}: no such run, or it measured nothing",
            where="of",
            hint="take a run from the list of work, or leave of out",
        )
    return render.page("regressions.html", page=page, section="regressions")


@router.post("/devices/{device_id}/canaries/{change_id}/acknowledge")
def acknowledge(device_id: str, change_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Acknowledges that a device has become slower."""
    try:
        body = forms.body_of(Acknowledgement, typed.given("reason"))
    except Invalid as problem:
        form = acknowledgement(device_id, change_id).refused(typed, problem)
        with farm.database.read() as session:
            page = regressions_page(session, refused=form)
        return render.page("regressions.html", problem.status_code, page=page, section="regressions")
    change = canary_endpoints.acknowledge_regression(device_id, change_id, body, farm, principal)
    return forms.redirect_with_notice(
        addresses.page("regressions"), f"{change.canary} on {change.target} is known of: {change.message}"
    )
