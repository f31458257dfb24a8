"""The addresses of the queue, and of what may be called off."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from service.artefacts.jobs import endpoints as job_endpoints
from service.dashboard import addresses, forms, render, visitors
from service.dashboard.forms import TypedDep
from service.dashboard.pages.queue import queue_page
from service.dashboard.query_values import check_names, name_in
from service.people.access import FarmDep, PrincipalDep
from service.store.database.models import Lane
from service.store.database.scope import organisation_of
from service.work.runs import endpoints as run_endpoints

router = APIRouter(prefix=addresses.ROOT, dependencies=[Depends(visitors.meet)], include_in_schema=False)
OVER = "has ended before; nothing is changed"


@router.get("/queue")
def show_queue(farm: FarmDep, lane: Annotated[str, Query(max_length=64)] = "") -> Response:
    """Shows the work that waits; `lane`: for the same devices."""
    with farm.database.read() as session:
        is_own = Lane.organisation_id == organisation_of(session)
        check_names(session, [name_in("lane", lane, Lane.id, is_own, is_told=False)])
        return render.page("queue.html", page=queue_page(session, farm.settings, lane), section="queue")


@router.post("/runs/{run_id}/cancel")
def cancel_run(run_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Asks a run to stop."""
    run = run_endpoints.cancel_run(run_id, farm, principal)
    outcomes = {"cancelled": "is cancelled", "leased": "is asked to stop", "running": "is asked to stop"}
    return forms.redirect_with_notice(
        forms.back(typed, addresses.run(run_id)), f"The run {run_id} {outcomes.get(run.state, OVER)}"
    )


@router.post("/jobs/{job_id}/cancel")
def cancel_job(job_id: str, typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Asks a compile to stop."""
    job = job_endpoints.cancel_job(job_id, farm, principal)
    outcomes = {"cancelled": "is cancelled", "compiling": "is asked to stop"}
    return forms.redirect_with_notice(
        forms.back(typed, addresses.job(job_id)), f"The compile {job_id} {outcomes.get(job.state, OVER)}"
    )


@router.post("/jobs/{job_id}/retry")
def compile_again(job_id: str, farm: FarmDep, principal: PrincipalDep, _: TypedDep) -> Response:
    """Compiles the same once more, and leads to that job."""
    answer = job_endpoints.compile_again(job_id, farm, principal)
    new_job_id = answer.headers["location"].rpartition("/")[2]
    outcome = (
        "is the same, and stands: nothing has changed since" if new_job_id == job_id else "compiles the same once more"
    )
    return forms.redirect_with_notice(addresses.job(new_job_id), f"The compile {new_job_id} {outcome}")
