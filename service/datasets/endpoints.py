"""`/datasets`: npz files by digest."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response

from service.access import FarmDep, PrincipalDep
from service.datasets import service
from service.datasets.npz import BadData, inspect_npz
from service.datasets.schemas import DatasetView
from service.files import BINARY, file_response, store_upload
from service.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.identifiers import clean_text
from service.pages import Cursor, Limit, Page
from service.problems import Invalid
from service.schemas import DigestText

router = APIRouter(prefix="/datasets", tags=["datasets"])


@router.post("", status_code=201, response_model=DatasetView)
def send_dataset(
    file: Annotated[UploadFile, File(description="npz with `y` and `x` (or arrays named after the model's inputs)")],
    farm: FarmDep,
    principal: PrincipalDep,
    name: Annotated[str, Form(max_length=200)] = "",
    key: IdempotencyKey = None,
) -> Response:
    """Send a data set. It is read whole and checked: types, shapes, finite numbers. The same bytes: the same digest."""
    settings = farm.settings
    try:
        arrays = inspect_npz(file.file, unpacked_limit_bytes=settings.dataset_unpacked_limit_bytes)
    except BadData as error:
        raise Invalid(error.code, error.message, where=error.where, hint=error.hint) from None
    file.file.seek(0)
    stored = store_upload(farm.storage, file.file, limit_bytes=settings.dataset_limit_bytes, what="file")
    shown_name = clean_text(name or (file.filename or "").rpartition("/")[2].removesuffix(".npz")) or "data"

    def keep() -> Answer:
        dataset = service.keep(session, stored, arrays, name=shown_name)
        body = DatasetView.model_validate(dataset).model_dump(mode="json")
        return Answer(201, body, {"Location": f"/datasets/{dataset.digest}"})

    with farm.database.transaction() as session:
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=fingerprint("POST /datasets", stored.digest),
            lifetime_s=settings.idempotency_s,
            act=keep,
        )
    return answer.response()


@router.get("")
def list_datasets(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[DatasetView]:
    """Data sets, the newest first."""
    with farm.database.read() as session:
        rows, following = service.newest(session, limit=limit, cursor=cursor)
        return Page(items=[DatasetView.model_validate(row) for row in rows], next=following)


@router.get("/{digest}")
def show_dataset(digest: DigestText, farm: FarmDep, _: PrincipalDep) -> DatasetView:
    """One data set: its arrays."""
    with farm.database.read() as session:
        return DatasetView.model_validate(service.find(session, digest))


@router.get("/{digest}/download", response_class=Response, responses=BINARY)  # type: ignore[arg-type]
def download_dataset(digest: DigestText, request: Request, farm: FarmDep, _: PrincipalDep) -> Response:
    """The npz itself."""
    with farm.database.read() as session:
        service.find(session, digest)
    return file_response(request, farm, digest, filename=f"{digest.removeprefix('sha256:')[:12]}.npz")
