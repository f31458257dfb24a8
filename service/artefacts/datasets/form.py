"""Reads the multipart body of `POST /datasets`, after the caller's key was checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

from fastapi import Depends, Request
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from service.artefacts.uploads.knowledge import find_sent
from service.base.identifiers import DIGEST, clean_name
from service.base.problems import Invalid, NotFound
from service.people.access import FarmDep, PrincipalDep
from service.store.farm import Farm
from service.store.files import read_form
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
    """The form's fields. Raises: Invalid, NotFound."""
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
