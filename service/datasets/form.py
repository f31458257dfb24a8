"""Reads the multipart body of `POST /datasets`, after the caller's key was checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

from fastapi import Depends, Request
from starlette.datastructures import UploadFile

from service.access import FarmDep, PrincipalDep
from service.files import read_form
from service.identifiers import clean_text
from service.problems import Invalid

DATASET_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {
                        "description": "npz with `y` and `x` (or arrays named after the model's inputs)",
                        "type": "string",
                        "format": "binary",
                    },
                    "name": {"description": "For people; default: the file's", "type": "string"},
                },
            }
        }
    },
}


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """The upload, on disk if it is large, and its name."""

    file: BinaryIO
    name: str


async def dataset_form(request: Request, farm: FarmDep, _: PrincipalDep) -> AsyncIterator[DatasetForm]:
    """The form's fields. Raises: Invalid."""
    form = await read_form(request, max_files=1, max_fields=2, field_bytes=farm.settings.text_limit_bytes)
    try:
        upload, name = form.get("file"), form.get("name", "")
        if not isinstance(upload, UploadFile):
            raise Invalid("request.missing-field", "expected a file", where="file", hint="with curl: -F file=@data.npz")
        file_name = (upload.filename or "").rpartition("/")[2].removesuffix(".npz")
        yield DatasetForm(upload.file, clean_text((name if isinstance(name, str) else "") or file_name) or "data")
    finally:
        await form.close()


DatasetFormDep = Annotated[DatasetForm, Depends(dataset_form)]
