"""`POST /compile` and `/jobs`.

The same compile once more, of what the farm keeps of it: model, plan, spec and target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from compiler.errors import CompileError
from compiler.spec.documents import SparsePlan, TrainingSpec
from service.artefacts.bundles.warnings import warnings_of
from service.artefacts.jobs import service
from service.artefacts.jobs.filter import JobFilter
from service.artefacts.jobs.form import COMPILE_BODY, CompileForm
from service.artefacts.jobs.request import CompileRequest, compiler_version
from service.artefacts.jobs.schemas import JobCancelled, JobView, TuneCreate, job_view
from service.artefacts.jobs.why import JobWhy, why
from service.base.pagination import Cursor, Limit, Page
from service.base.problems import Invalid
from service.base.settings import Settings
from service.people.access import FarmDep, PrincipalDep
from service.people.holdings import service as holdings
from service.people.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.people.streaming.events import EVENT_STREAM, After, LastEventId, refuse_taken_events, respond
from service.people.streaming.long_poll import Wait, watch
from service.store.database.models import OPEN_JOB_STATES, Job
from service.store.states import effect_of

Parsed = TypeVar("Parsed", SparsePlan, TrainingSpec)


def submit_again(session: Session, job_id: str, *, api_key_id: str, settings: Settings) -> Job:
    """Submits a job again, by the current compiler and measured schedules. Like `service.submit`, it returns the job
    that is open or has succeeded if nothing differs. A compile that measures schedules is made of its bundle once more.

    Raises: NotFound, Gone (retention took its model), Invalid (this farm no longer takes its plan or spec), TooMany.
    """
    job = service.find(session, job_id)
    session.refresh(job, with_for_update={"read": True})  # retention takes no model of it before this ends
    if job.source_digest is not None:
        return service.submit_tuning(session, job.source_digest, api_key_id=api_key_id, settings=settings)
    if job.files_removed_at is not None:
        raise holdings.gone_file("model", job.model_digest, job.files_removed_at, where="job_id")
    holdings.use(session, "model", job.model_digest, where="job_id")
    request = CompileRequest(
        model_digest=job.model_digest,
        model_bytes=job.model_bytes,
        model_name=job.model_name,
        plan=_parsed("plan", SparsePlan.parse, job.plan_json),
        spec=_parsed("spec", TrainingSpec.parse, job.spec_json),
        target=job.target,
        compiler_version=compiler_version(settings),
    )
    return service.submit(session, request, api_key_id=api_key_id, settings=settings)


def _parsed(name: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except CompileError as error:
        raise Invalid(
            error.code,
            f"kept by an earlier release, and not taken now: {error.message}",
            where=name,
            hint="send the compile itself again: POST /compile",
            cause=error.cause,
        ) from None


router = APIRouter(tags=["jobs"])


def _view(session: Session, job: Job) -> JobView:
    return job_view(job, warnings_of(session, [job.bundle_digest]).get(job.bundle_digest or "", ()))


def _answer(session: Session, job: Job) -> Answer:
    status = 200 if job.state == "succeeded" else 202
    return Answer(status, _view(session, job).model_dump(mode="json"), {"Location": f"/jobs/{job.id}"})


@router.post(
    "/compile",
    status_code=202,
    response_model=JobView,
    openapi_extra={"requestBody": COMPILE_BODY},
    responses={200: {"model": JobView, "description": "Built before: the bundle is there"}},
)
def compile_model(form: CompileForm, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Compiles a model and a sparse plan into a training bundle for one target.

    202 and the job's `Location`. The same model, plan, spec and target again: the same job (200 once it succeeded).
    """
    with farm.database.transaction() as session:
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=fingerprint("POST /compile", form.digest),
            lifetime_s=farm.settings.idempotency_s,
            act=lambda: _answer(
                session, service.submit(session, form, api_key_id=principal.key_id, settings=farm.settings)
            ),
        )
    return answer.response()


@router.post(
    "/tune",
    status_code=202,
    response_model=JobView,
    responses={200: {"model": JobView, "description": "Built before: the bundle is there"}},
)
def tune_bundle(body: TuneCreate, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Makes the bundle that measures the schedules of another bundle's kernels. A run of mode tune runs it.

    202 and the job's `Location`. The same bundle again: the same job (200 once it succeeded).
    """
    with farm.database.transaction() as session:
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=fingerprint("POST /tune", body.bundle),
            lifetime_s=farm.settings.idempotency_s,
            act=lambda: _answer(
                session,
                service.submit_tuning(session, body.bundle, api_key_id=principal.key_id, settings=farm.settings),
            ),
        )
    return answer.response()


@router.get("/jobs")
def list_jobs(
    farm: FarmDep, _: PrincipalDep, chosen: Annotated[JobFilter, Depends()], limit: Limit = 50, cursor: Cursor = None
) -> Page[JobView]:
    """Lists jobs, the newest first; `model` and `plan` are names."""
    with farm.database.read() as session:
        rows, following = service.newest_jobs(session, chosen, limit=limit, cursor=cursor)
        warnings = warnings_of(session, [row.bundle_digest for row in rows])
        return Page(items=[job_view(row, warnings.get(row.bundle_digest or "", ())) for row in rows], next=following)


@router.get("/jobs/{job_id}", response_model=JobView)
async def show_job(job_id: str, request: Request, farm: FarmDep, _: PrincipalDep, wait: Wait = 0) -> Response:
    """Returns a job. With `If-None-Match` and `wait`, the answer comes when the job has changed, or 304."""

    def look(session: Session) -> tuple[str, JobView]:
        job = service.find(session, job_id)
        return f"{job.id}.{job.version}", _view(session, job)

    return await watch(request, farm, job_id, look, wait_s=wait)


@router.get("/jobs/{job_id}/why")
def explain_job(job_id: str, farm: FarmDep, _: PrincipalDep) -> JobWhy:
    """Why a job is where it is: its tries and what followed, what it waits for, when it may start."""
    with farm.database.read() as session:
        return why(session, farm.settings, service.find(session, job_id))


@router.post("/jobs/{job_id}/cancel", status_code=202)
def cancel_job(job_id: str, farm: FarmDep, _: PrincipalDep) -> JobCancelled:
    """Asks a job to stop. A job that has ended stays as it is, and `says` reports that."""
    with farm.database.transaction() as session:
        message = effect_of(service.find(session, job_id))
        job = service.cancel(session, job_id)
        session.flush()
        session.refresh(job)
        return JobCancelled(**_view(session, job).model_dump(), message=message)


@router.post(
    "/jobs/{job_id}/retry",
    status_code=202,
    response_model=JobView,
    responses={200: {"model": JobView, "description": "Built before: the bundle is there"}},
)
def compile_again(job_id: str, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Compiles the same once more: model, plan, spec and target, by the farm's current compiler and measured schedules.

    202 and a new job's `Location`; the same job if it is open, or has succeeded (200) and nothing differs.
    """
    with farm.database.transaction() as session:
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=fingerprint(f"POST /jobs/{job_id}/retry", ""),
            lifetime_s=farm.settings.idempotency_s,
            act=lambda: _answer(
                session, submit_again(session, job_id, api_key_id=principal.key_id, settings=farm.settings)
            ),
        )
    return answer.response()


@router.get("/jobs/{job_id}/events", response_class=Response, responses=EVENT_STREAM)
async def job_events(
    job_id: str, request: Request, farm: FarmDep, _: PrincipalDep, last_event_id: LastEventId = None, after: After = 0
) -> Response:
    """Streams a job's states and progress as they come, from the first one; the stream ends with the job."""

    def is_over(session: Session) -> bool:
        job = service.find(session, job_id)
        refuse_taken_events(job.events_removed_at, "job")
        return job.state not in OPEN_JOB_STATES

    return await respond(request, farm, job_id, is_over, last_event_id=last_event_id, after=after)
