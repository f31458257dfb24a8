"""`/datasets`: npz files by digest.

Bodies of the data set endpoints.

Reads the multipart body of `POST /datasets`, after the caller's key was checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from service.artefacts.datasets import service
from service.artefacts.datasets.archive import BadData
from service.artefacts.datasets.inspection import InspectionLimits, inspect_confined
from service.artefacts.datasets.names import Notice, notices_of
from service.artefacts.datasets.service import HeldDataset
from service.artefacts.uploads.knowledge import find_sent
from service.base.identifiers import DIGEST, clean_name
from service.base.pagination import Cursor, Limit, Page
from service.base.problems import Invalid, NotFound
from service.base.schemas import DigestText, Timestamp, View
from service.base.settings import Settings
from service.people.access import FarmDep, PrincipalDep
from service.people.holdings import service as holdings
from service.people.holdings.keeping import removed_if_refused, store_within
from service.people.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.store.farm import Farm
from service.store.files import BINARY, file_response, read_form
from service.store.storage import StoredFile

DATASET_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {
                        "description": "npz with `y` and `x` (or arrays named after the model's inputs); or, as text, "
                        "the digest of one that your organisation has sent with POST /uploads",
                        "oneOf": [{"type": "string", "format": "binary"}, {"type": "string"}],
                    },
                    "name": {"description": "For people; default: the file's", "type": "string"},
                },
            }
        }
    },
}


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """The file, open (on disk if it is large), its name, and what it is in the storage if it was sent before."""

    file: BinaryIO
    name: str
    stored: StoredFile | None = None


async def dataset_form(request: Request, farm: FarmDep, _: PrincipalDep) -> AsyncIterator[DatasetForm]:
    """Yields the form's fields. Raises: Invalid, NotFound."""
    form = await read_form(request, max_files=1, max_fields=2, field_bytes=farm.settings.text_limit_bytes)
    try:
        upload, name = form.get("file"), form.get("name", "")
        chosen_name = clean_name(name if isinstance(name, str) else "")
        if isinstance(upload, UploadFile):
            file_name = (upload.filename or "").rpartition("/")[2].removesuffix(".npz")
            yield DatasetForm(upload.file, chosen_name or clean_name(file_name) or "data")
            return
        stored = await run_in_threadpool(_sent, farm, upload)
        async with contextmanager_in_threadpool(farm.storage.local(stored.digest)) as path:
            with path.open("rb") as file:
                yield DatasetForm(file, chosen_name or stored.digest.removeprefix("sha256:")[:12], stored)
    finally:
        await form.close()


def _sent(farm: Farm, digest: str | None) -> StoredFile:
    if digest is None or not DIGEST.fullmatch(digest.strip()):
        raise Invalid(
            "request.missing-field",
            "expected a file, or the digest (sha256:…) of one sent before",
            where="file",
            hint="with curl: -F file=@data.npz",
        )
    stored = find_sent(farm, digest.strip())
    if stored is None:
        raise NotFound(
            "file.unknown",
            f"no file {digest.strip()} was sent by your organisation",
            where="file",
            hint="send it with POST /uploads, or in this request",
        )
    return stored


DatasetFormDep = Annotated[DatasetForm, Depends(dataset_form)]


class ArrayView(View):
    """An array of a data set."""

    dtype: str
    shape: list[int]
    low: float | None = None
    """The smallest number; of whole numbers but for -100, which losses pass over. Null: an older release read it."""
    high: float | None = None
    is_whole: bool | None = None
    """Whether every number is whole."""


class DatasetView(View):
    """A checked data set."""

    digest: str
    name: str
    size_bytes: int
    samples: int
    arrays: dict[str, ArrayView]
    created_at: Timestamp
    pinned_at: Timestamp | None
    """Retention leaves it alone."""
    removed_at: Timestamp | None
    """When retention took its file."""


class DatasetWarning(View):
    """A warning to the sender of a data set that was accepted."""

    code: str
    where: str
    message: str
    hint: str


class DatasetSent(DatasetView):
    """A data set that was just sent."""

    warnings: list[DatasetWarning]
    """Warnings that another data set has the same name, or that this one was already there under another name. Empty if
    nothing is odd.
    """


def dataset_sent(dataset: HeldDataset, notices: list[Notice]) -> DatasetSent:
    """Returns the answer to the sender."""
    warnings = [
        DatasetWarning(code=notice.code, where=notice.where, message=notice.message, hint=notice.hint)
        for notice in notices
    ]
    return DatasetSent(**dataset_view(dataset).model_dump(), warnings=warnings)


def dataset_view(dataset: HeldDataset) -> DatasetView:
    """Returns a data set as its holder sees it."""
    named = {
        "name": dataset.holding.name,
        "created_at": dataset.holding.created_at,
        "pinned_at": dataset.holding.pinned_at,
        "removed_at": dataset.holding.files_removed_at,
    }
    plain = {name: getattr(dataset.dataset, name) for name in DatasetView.model_fields if name not in named}
    return DatasetView.model_validate(plain | named)


router = APIRouter(prefix="/datasets", tags=["datasets"])


@router.post("", status_code=201, response_model=DatasetSent, openapi_extra={"requestBody": DATASET_BODY})
def send_dataset(form: DatasetFormDep, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Accepts a data set. It is read whole and checked: types, shapes, finite numbers. The same bytes have the same
    digest.

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
        dataset = service.keep(session, stored, arrays, name=form.name, settings=settings)
        warnings = notices_of(session, dataset, asked_name=form.name)
        body = dataset_sent(dataset, warnings).model_dump(mode="json")
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
    """Lists data sets, the newest first."""
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
    """Returns the npz file."""
    with farm.database.read() as session:
        service.find(session, digest)
        holdings.refuse_taken(session, "dataset", digest, where="digest")
    return file_response(request, farm, digest, filename=f"{digest.removeprefix('sha256:')[:12]}.npz")
