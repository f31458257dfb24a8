"""`/uploads`: files in pieces, as the OCI distribution specification sends them; `HEAD /files/{digest}`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from service.artefacts.uploads import service
from service.artefacts.uploads.knowledge import find_sent
from service.artefacts.uploads.ranges import HEADER, read_span
from service.artefacts.uploads.receiving import receive
from service.artefacts.uploads.schemas import FileView, UploadCreate, UploadView, upload_view
from service.base.problems import NotFound
from service.base.schemas import DigestText
from service.people.access import FarmDep, PrincipalDep, charge
from service.people.idempotency import Answer, IdempotencyKey, fingerprint, once
from service.people.quotas.rates import BYTES_OF_ONE
from service.store.database.models import Upload
from service.store.farm import Farm

router = APIRouter(tags=["uploads"])
OFFSET = "Upload-Offset"
PIECE_BODY = {
    "parameters": [
        {
            "name": HEADER,
            "in": "header",
            "required": True,
            "schema": {"type": "string"},
            "description": "`bytes FIRST-LAST/SIZE` of the piece in the file",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
}


def _headers(upload: Upload) -> dict[str, str]:
    headers = {"Location": f"/uploads/{upload.id}", OFFSET: str(upload.received_bytes)}
    if upload.received_bytes:
        headers["Range"] = f"bytes=0-{upload.received_bytes - 1}"
    return headers


def _response(upload: Upload, status: int) -> Response:
    return JSONResponse(upload_view(upload).model_dump(mode="json"), status, headers=_headers(upload))


@router.post("/uploads", status_code=202, response_model=UploadView)
def begin_upload(body: UploadCreate, farm: FarmDep, principal: PrincipalDep, key: IdempotencyKey = None) -> Response:
    """Begins an upload in pieces. Returns 202 with its `Location`. If this key is already sending a file with that
    digest, that upload is returned.
    """

    def act() -> Answer:
        upload = service.begin(session, farm, principal, body)
        return Answer(202, upload_view(upload).model_dump(mode="json"), _headers(upload))

    payload = fingerprint("POST /uploads", body.model_dump_json())
    with farm.database.transaction() as session:
        answer = once(
            session,
            api_key_id=principal.key_id,
            key=key,
            payload=payload,
            lifetime_s=farm.settings.idempotency_s,
            act=act,
        )
    return answer.response()


@router.patch("/uploads/{upload_id}", status_code=202, response_model=UploadView, openapi_extra=PIECE_BODY)
async def send_piece(upload_id: str, request: Request, farm: FarmDep) -> Response:
    """Accepts the next bytes of a file, as many as you like. 416 with `Upload-Offset` if they do not begin where the
    upload stands; 403 `quota.storage_bytes` or 507 `infra.disk-full` if there is no room for them: the upload stays, to
    go on with later.

    When the connection is cut, what came is kept: HEAD says how much.
    """

    def begin() -> Upload:
        return _find(farm, upload_id)

    upload = await run_in_threadpool(begin)
    span = read_span(request.headers.get(HEADER), size_bytes=upload.size_bytes)
    service.check_continues(upload, span.start)
    await run_in_threadpool(service.check_room, farm, span.end - span.start)
    await receive(request.stream(), farm, upload_id, span)
    return _response(await run_in_threadpool(begin), 202)


def _find(farm: Farm, upload_id: str) -> Upload:
    with farm.database.read() as session:
        return service.find(session, upload_id)


@router.get("/uploads/{upload_id}", response_model=UploadView)
def show_upload(upload_id: str, farm: FarmDep) -> Response:
    """Returns how far an upload has come, also in `Upload-Offset`, which is all that HEAD returns."""
    return _response(_find(farm, upload_id), 200)


@router.head("/uploads/{upload_id}", response_class=Response, include_in_schema=False)
def show_offset(upload_id: str, farm: FarmDep) -> Response:
    """Returns how far an upload has come, in `Upload-Offset`."""
    return Response(headers=_headers(_find(farm, upload_id)))


@router.put("/uploads/{upload_id}", status_code=201, response_model=UploadView)
def finish_upload(
    upload_id: str, digest: Annotated[DigestText, Query()], farm: FarmDep, principal: PrincipalDep
) -> Response:
    """Finishes an upload: the file is whole and has this digest, which the farm checks by reading all of it again. From
    then on requests may name the file by its digest.

    422 `upload.digest` if it is another: the upload is forgotten then.
    """
    upload = _find(farm, upload_id)
    if upload.finished_at is None and upload.received_bytes == upload.size_bytes:
        charge(farm, principal, upload.size_bytes / BYTES_OF_ONE)
    return _response(service.finish(farm, upload_id, digest), 201)


@router.delete("/uploads/{upload_id}", status_code=204)
def forget_upload(upload_id: str, farm: FarmDep) -> Response:
    """Abandons an upload. The file of a finished one stays."""
    service.forget(farm, _find(farm, upload_id).id)
    return Response(status_code=204)


@router.get("/files/{digest}")
def show_file(digest: DigestText, farm: FarmDep) -> FileView:
    """Returns a file that your organisation has sent, if the farm has it: it need not be sent again."""
    stored = find_sent(farm, digest)
    if stored is None:
        raise NotFound(
            "file.unknown", f"no file {digest} was sent by your organisation", where="digest", hint="send it"
        )
    return FileView(digest=digest, size_bytes=stored.size_bytes)


@router.head("/files/{digest}", response_class=Response, include_in_schema=False)
def look_for_file(digest: DigestText, farm: FarmDep) -> Response:
    """Returns the same without a body: the size is in `Upload-Length`."""
    return Response(headers={"Upload-Length": str(show_file(digest, farm).size_bytes)})
