"""`/runs`: bundles on devices: what to do with them there, and what came of it."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from service.artefacts.bundles import service as bundles
from service.base.pagination import Cursor, Limit, Page
from service.base.problems import NotFound
from service.people.access import FarmDep, PrincipalDep
from service.people.holdings import service as holdings
from service.people.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.people.streaming.events import EVENT_STREAM, After, LastEventId, refuse_taken_events, respond
from service.people.streaming.long_poll import Wait, watch
from service.store.database.models import OPEN_RUN_STATES, Holding, Run
from service.store.farm import Farm
from service.store.files import BINARY, file_response
from service.store.states import effect_of
from service.work.runs import about, compared, placement, provenance, remarks, retry, service, sustained
from service.work.runs.about import RunAbout
from service.work.runs.filter import RunFilter
from service.work.runs.intervals import intervals
from service.work.runs.schemas import (
    BesideView,
    ReportView,
    RunAgain,
    RunCancelled,
    RunCreate,
    RunCreated,
    RunDetail,
    RunView,
    run_created,
    run_detail,
    run_view,
)
from service.work.runs.why import RunWhy, why

router = APIRouter(prefix="/runs", tags=["runs"])


def _named(session: Session, run: Run) -> Holding:
    """Returns the run's organisation's name of its bundle."""
    return session.get_one(Holding, (run.organisation_id, "bundle", run.bundle_digest))


def _create(session: Session, farm: Farm, body: RunCreate, key_id: str) -> Answer:
    bundle = bundles.held_bundle(session, body.bundle, where="bundle", hint="POST /compile makes one")
    run = service.create(session, body, bundle.bundle, api_key_id=key_id, limits=farm.settings, storage=farm.storage)
    notes = (*remarks.of_settings(body), *remarks.of_run(session, run))
    warnings = [*notes, *placement.warnings_of(session, farm.settings, run)]
    created = run_created(run, bundle.holding, warnings)
    return Answer(202, created.model_dump(mode="json"), {"Location": f"/runs/{run.id}"})


@router.post("", status_code=202, response_model=RunCreated)
def create_run(body: RunCreate, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Queues a run. What does not fit the bundle (data, weights, device) is refused now, not on the device.

    So is a device class that the farm does not have, unless `allow_waiting`; `warnings` say what a run waits for.
    """

    def act() -> Answer:
        return _create(session, farm, body, principal.key_id)

    with farm.database.transaction() as session:
        payload = fingerprint("POST /runs", body.model_dump_json())
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
def list_runs(
    farm: FarmDep,
    _: PrincipalDep,
    chosen: Annotated[RunFilter, Depends()],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RunView]:
    """Lists runs, the newest first; `model` and `plan` are names."""
    with farm.database.read() as session:
        rows, following = service.newest_runs(session, chosen, limit=limit, cursor=cursor)
        names = holdings.of_digests(session, "bundle", (row.bundle_digest for row in rows))
        run_intervals = intervals(session, rows)
        items = [run_view(row, names[row.bundle_digest], run_intervals.get(row.id)) for row in rows]
        return Page(items=items, next=following)


@router.get("/{run_id}", response_model=RunDetail)
async def show_run(run_id: str, request: Request, farm: FarmDep, _: PrincipalDep, wait: Wait = 0) -> Response:
    """Returns a run. With `If-None-Match` and `wait`, the answer comes when the run has changed, or 304."""

    def look(session: Session) -> tuple[str, RunDetail]:
        run = service.find(session, run_id)
        named, tries = _named(session, run), service.attempts_of(session, run_id)
        return f"{run.id}.{run.version}", run_detail(run, named, tries, intervals(session, [run]).get(run_id))

    return await watch(request, farm, run_id, look, wait_s=wait)


@router.patch("/{run_id}")
def describe_run(run_id: str, body: RunAbout, farm: FarmDep, _: PrincipalDep) -> RunView:
    """Gives a run a name, a note, and tags by which to find it. What it is and what came of it stays as it is."""
    with farm.database.transaction() as session:
        run = about.change(session, run_id, body)
        session.flush()
        session.refresh(run)
        return run_view(run, _named(session, run))


@router.get("/{run_id}/why")
def explain_run(run_id: str, farm: FarmDep, _: PrincipalDep) -> RunWhy:
    """Why a run is where it is: its attempts and what followed, what it waits for, when it may start."""
    with farm.database.read() as session:
        return why(session, farm.settings, service.find(session, run_id))


@router.post("/{run_id}/cancel", status_code=202)
def cancel_run(run_id: str, farm: FarmDep, _: PrincipalDep) -> RunCancelled:
    """Asks a run to stop. A run that has ended stays as it is, and `says` reports that."""
    with farm.database.transaction() as session:
        message = effect_of(service.find(session, run_id))
        run = service.cancel(session, run_id)
        session.flush()
        session.refresh(run)
        return RunCancelled(**run_view(run, _named(session, run)).model_dump(), message=message)


@router.get("/{run_id}/events", response_class=Response, responses=EVENT_STREAM)
async def run_events(
    run_id: str, request: Request, farm: FarmDep, _: PrincipalDep, last_event_id: LastEventId = None, after: After = 0
) -> Response:
    """Streams a run's states, phases, steps and losses as they come, from the first one; the stream ends with the
    run.
    """

    def is_over(session: Session) -> bool:
        run = service.find(session, run_id)
        refuse_taken_events(run.events_removed_at, "run")
        return run.state not in OPEN_RUN_STATES

    return await respond(request, farm, run_id, is_over, last_event_id=last_event_id, after=after)


@router.get("/{run_id}/report")
def show_report(run_id: str, farm: FarmDep, _: PrincipalDep) -> ReportView:
    """Returns the report that counts: measurement, kernels, losses, memory, energy, verdict (see
    `docs/protocol.md`).
    """
    with farm.database.read() as session:
        run = service.find(session, run_id)
        result = service.result_of(session, run)
        return ReportView(
            run_id=run.id,
            digest=result.digest,
            recorded_at=result.recorded_at,
            report=result.report,
            comparison=compared.view(session, run, result),
            sustained=sustained.view_in(result.report),
            provenance=provenance.of(session, run, result, now=time.time()),
            warnings=remarks.of_run(session, run),
        )


@router.post("/{run_id}/retry", status_code=202, response_model=RunCreated)
def run_again(
    run_id: str, farm: FarmDep, principal: PrincipalDep, body: RunAgain | None = None, key: IdempotencyKey = None
) -> Response:
    """Queues the same run once more: bundle, data, weights and settings, on the device that made it or another one."""
    where = body or RunAgain()

    def act() -> Answer:
        return _create(session, farm, retry.request_of(service.find(session, run_id), where), principal.key_id)

    with farm.database.transaction() as session:
        payload = fingerprint(f"POST /runs/{run_id}/retry", where.model_dump_json())
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=payload,
            lifetime_s=farm.settings.idempotency_s,
            act=act,
        )
    return answer.response()


@router.get("/{run_id}/compare/{other_id}")
def show_beside(run_id: str, other_id: str, farm: FarmDep, _: PrincipalDep) -> BesideView:
    """Whether another run says what this one says, and what explains a difference."""
    with farm.database.read() as session:
        return retry.beside(session, service.find(session, run_id), service.find(session, other_id), now=time.time())


@router.get("/{run_id}/weights", response_class=Response, responses=BINARY)  # type: ignore[arg-type]
def download_weights(run_id: str, request: Request, farm: FarmDep, _: PrincipalDep) -> Response:
    """Returns the trained weights (safetensors)."""
    with farm.database.read() as session:
        run = service.find(session, run_id)
        if run.trained_weights_digest is None:
            raise NotFound(
                "run.no-weights", "this run has left no weights", hint="a run of mode train does, at its end"
            )
        holdings.refuse_taken(session, "weights", run.trained_weights_digest)
    return file_response(request, farm, run.trained_weights_digest, filename=f"{run_id}.safetensors")
