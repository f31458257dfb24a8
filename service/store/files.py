"""Stored files as HTTP answers, and uploads into the store."""

from __future__ import annotations

import tempfile
from typing import BinaryIO

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from service.base.problems import Invalid, NotFound, Problem, TooLarge
from service.store.farm import Farm
from service.store.storage import DigestMismatch, FileTooLarge, MissingFile, Storage, StoredFile

BINARY = {
    200: {
        "description": "The file's bytes",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def file_response(request: Request, farm: Farm, digest: str, *, filename: str) -> Response:
    """Returns the bytes of a stored file. They never change, so a client that has them gets 304."""
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=31536000, immutable"}
    if f'"{digest}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    size_bytes = farm.storage.size(digest)
    if size_bytes is None:
        raise NotFound(
            "file.missing",
            f"the farm's storage has no file {digest}",
            cause="infra",
            hint="it was removed from the storage; build or upload it again",
        )
    try:
        chunks = farm.storage.read(digest)
    except MissingFile:
        raise NotFound("file.missing", f"the farm's storage has no file {digest}", cause="infra") from None
    headers |= {"Content-Length": str(size_bytes), "Content-Disposition": f'attachment; filename="{filename}"'}
    return StreamingResponse(chunks, headers=headers, media_type="application/octet-stream")


async def read_form(request: Request, *, max_files: int, max_fields: int, field_bytes: int) -> FormData:
    """Returns the multipart body; files of more than a megabyte are on disk. Raises: TooLarge, Invalid."""
    try:
        return await request.form(max_files=max_files, max_fields=max_fields, max_part_size=field_bytes)
    except Problem:
        raise
    except HTTPException as error:  # what Starlette makes of any body that it cannot take
        if "exceeded maximum size" in str(error.detail):
            raise TooLarge(
                "limits.field",
                f"a field has more than {field_bytes:,} bytes",
                where="body",
                hint="send it as a file, if it is one",
            ) from None
        raise Invalid(
            "request.form", f"not a readable form: {error.detail}", where="body", hint="send multipart/form-data"
        ) from None


def store_upload(
    storage: Storage, stream: BinaryIO, *, limit_bytes: int, what: str, digest: str | None = None
) -> StoredFile:
    """Stores an uploaded stream. Raises: TooLarge; Invalid if it is empty or does not have the given `digest`."""
    try:
        stored = storage.put(stream, limit_bytes=limit_bytes, digest=digest)
    except FileTooLarge:
        raise TooLarge("limits.upload", f"more than {limit_bytes:,} bytes", where=what) from None
    except DigestMismatch as error:
        raise Invalid("upload.digest", str(error), where=what, hint="send it again") from None
    if stored.size_bytes == 0:
        raise Invalid("upload.empty", "0 bytes", where=what, hint="send the file's bytes")
    return stored


async def store_body(
    request: Request, storage: Storage, *, limit_bytes: int, what: str, digest: str | None = None
) -> StoredFile:
    """Stores a raw request body, of which no more than the limit is read."""
    with tempfile.TemporaryFile() as spool:
        left_bytes = limit_bytes
        async for chunk in request.stream():
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise TooLarge("limits.upload", f"more than {limit_bytes:,} bytes", where=what)
            await run_in_threadpool(spool.write, chunk)
        spool.seek(0)
        return await run_in_threadpool(store_upload, storage, spool, limit_bytes=limit_bytes, what=what, digest=digest)
