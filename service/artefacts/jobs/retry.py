"""The same compile once more, of what the farm keeps of it: model, plan, spec and target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session

from compiler.errors import CompileError
from compiler.spec.documents import SparsePlan, TrainingSpec
from service.artefacts.jobs import service
from service.artefacts.jobs.request import CompileRequest, compiler_version
from service.base.problems import Invalid
from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.store.database.models import Job

Parsed = TypeVar("Parsed", SparsePlan, TrainingSpec)


def submit_again(session: Session, job_id: str, *, api_key_id: str, settings: Settings) -> Job:
    """The job for it, by the compiler and the measured schedules of now; as `service.submit`, the one that is open or
    has succeeded, if nothing differs. A compile that measures schedules is made of its bundle once more.

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
