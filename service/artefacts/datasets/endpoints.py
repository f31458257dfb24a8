"""`/datasets`: npz files by digest."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.artefacts.datasets import service
from service.artefacts.datasets.archive import BadData
from service.artefacts.datasets.form import DATASET_BODY, DatasetFormDep
from service.artefacts.datasets.inspection import InspectionLimits, inspect_confined
from service.artefacts.datasets.names import notices_of
from service.artefacts.datasets.schemas import DatasetSent, DatasetView, dataset_sent, dataset_view
from service.base.pagination import Cursor, Limit, Page
from service.base.problems import Invalid
from service.base.schemas import DigestText
from service.base.settings import Settings
from service.people.access import FarmDep, PrincipalDep
from service.people.holdings import service as holdings
from service.people.holdings.keeping import removed_if_refused, store_within
from service.people.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.store.files import BINARY, file_response

router = APIRouter(prefix="/datasets", tags=["datasets"])


@router.post("", status_code=201, response_model=DatasetSent, openapi_extra={"requestBody": DATASET_BODY})
def send_dataset(form: DatasetFormDep, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Send a data set. It is read whole and checked: types, shapes, finite numbers. The same bytes: the same digest.

    A name chooses nothing; `warnings` say if another data set has it, or if these bytes have another.
    """
    settings = farm.settings
    try:
        arrays = inspect_confined(form.file, _limits(settings))
    except BadData as error:
        raise Invalid(error.code, error.message, where=error.where, hint=error.hint) from None
    form.file.seek(0)
    stored = form.stored or store_within(farm, form.file, limit_bytes=settings.dataset_limit_bytes, what="file")

    def keep() -> Answer:
        held = service.keep(session, stored, arrays, name=form.name, settings=settings)
        warnings = notices_of(session, held, asked_name=form.name)
        body = dataset_sent(held, warnings).model_dump(mode="json")
        return Answer(201, body, {"Location": f"/datasets/{stored.digest}"})

    payload = fingerprint("POST /datasets", stored.digest)
    with removed_if_refused(farm, stored), farm.database.transaction() as session:
        answer = once(
            session, api_key_id=principal.key_id, key=key, payload=payload, lifetime_s=settings.idempotency_s, act=keep
        )
    return answer.response()


def _limits(settings: Settings) -> InspectionLimits:
    return InspectionLimits(
        settings.dataset_unpacked_limit_bytes,
        settings.dataset_memory_bytes,
        settings.dataset_cpu_s,
        wall_s=4.0 * settings.dataset_cpu_s,
    )


@router.get("")
def list_datasets(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[DatasetView]:
    """Data sets, the newest first."""
    with farm.database.read() as session:
        rows, following = service.newest(session, limit=limit, cursor=cursor)
        return Page(items=[dataset_view(row) for row in rows], next=following)


@router.get("/{digest}")
def show_dataset(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> DatasetView:
    """Returns a data set: its arrays."""
    with farm.database.read() as session:
        return dataset_view(service.find(session, digest))


@router.get("/{digest}/download", response_class=Response, responses=BINARY)  # type: ignore[arg-type]
def download_dataset(digest: DigestText, request: Request, farm: FarmDep, _: PrincipalDep) -> Response:
    """The npz itself."""
    with farm.database.read() as session:
        service.find(session, digest)
        holdings.refuse_taken(session, "dataset", digest, where="digest")
    return file_response(request, farm, digest, filename=f"{digest.removeprefix('sha256:')[:12]}.npz")
