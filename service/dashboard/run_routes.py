"""The forms of a run's page, each with the endpoint of the API that does it."""

from __future__ import annotations

import json

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.base.problems import NotFound, Problem
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.forms import Form, TypedDep
from service.dashboard.pages.run import run_page
from service.dashboard.pages.run_actions import ABOUT, about_form
from service.people.access import FarmDep, PrincipalDep
from service.store.farm import Farm
from service.work.runs import endpoints
from service.work.runs.about import RunAbout
from service.work.runs.tags import typed_tags

router = APIRouter(prefix=f"{addresses.ROOT}/runs", dependencies=[Depends(visitors.meet)])


def show(
    farm: Farm, run_id: str, sort: str = "", *, find: str = "", form: Form | None = None, status: int = 200
) -> Response:
    """Shows the page of a run. Raises: NotFound."""
    with farm.database.read() as session:
        page = run_page(session, farm.settings, run_id, sort, find=find, form=form)
    if page is None:
        raise NotFound("run.unknown", f"There is no run {run_id!r}.")
    return render.page("run.html", status, page=page, section="runs")


@router.post("/{run_id}/retry")
def run_again(run_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Queues the same run once more; a form that is sent twice makes one run."""
    once = typed.text("once")[:100] or None
    created = json.loads(bytes(endpoints.run_again(run_id, farm, principal, key=once).body))
    return forms.redirect_with_notice(
        addresses.run(created["id"]), "Queued: the same bundle, data, weights, settings and device"
    )


@router.post("/{run_id}/about")
def describe_run(run_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Sets a run's name, its tags and its note."""
    fields = {"name": typed.text("name"), "note": typed.text("note"), "tags": typed_tags(typed.text("tags"))}
    try:
        endpoints.describe_run(run_id, forms.body_of(RunAbout, fields), farm, principal)
    except Problem as problem:
        if isinstance(problem, NotFound):
            raise
        return _refused(farm, run_id, typed, problem)
    return forms.redirect_with_notice(f"{addresses.run(run_id)}#{ABOUT}", "Name, tags and note are saved")


def _refused(farm: Farm, run_id: str, typed: forms.Typed, problem: Problem) -> Response:
    with farm.database.read() as session:
        page = run_page(session, farm.settings, run_id)
        form = about_form(page.run) if page else None
    refused = form.refused(typed, problem) if form else None
    return show(farm, run_id, form=refused, status=problem.status_code)
