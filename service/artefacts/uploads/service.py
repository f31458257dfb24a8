"""Uploads in the database: begun within what a key and the disk allow, gone on with, finished, forgotten.

What was declared takes no room: bytes do, as they come, within the share of their organisation and the disk's reserve.
The row says how much has come. Bytes are on disk before the row says so, so a crash loses nothing that was confirmed.
"""

from __future__ import annotations

import time

from sqlalchemy import delete, func, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from service.artefacts.uploads.knowledge import note_sent
from service.artefacts.uploads.schemas import UploadCreate
from service.base.problems import Conflict, Forbidden, Full, Invalid, NotFound, TooLarge, TooMany, WrongOffset
from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.people.keys.service import Principal
from service.people.quotas import limits as quotas
from service.store.database.models import Upload
from service.store.farm import Farm
from service.store.garbage.collecting import remove_unneeded
from service.store.storage import DigestMismatch, MissingFile

RETRY_AFTER_S = 60


def limit_bytes(settings: Settings, kind: str) -> int:
    """Returns the size limit of a file of that kind."""
    limits = {
        "model": settings.model_limit_bytes,
        "data": settings.external_limit_bytes,
        "dataset": settings.dataset_limit_bytes,
    }
    return limits[kind]


def begin(session: Session, farm: Farm, principal: Principal, body: UploadCreate) -> Upload:
    """Begins a new upload, or returns the open one of the same file that this key began before.

    Raises: TooLarge, TooMany (files or bytes under way of this key or its organisation), Forbidden (it would not fit
    into what the organisation's files may still take), Full (it would not fit onto the disk as it is now).
    """
    settings = farm.settings
    most_bytes = limit_bytes(settings, body.kind)
    if body.size_bytes > most_bytes:
        raise TooLarge(
            "limits.upload",
            f"{body.size_bytes:,} bytes, a {body.kind} file may have {most_bytes:,}",
            where="size_bytes",
            hint="send less, or ask the farm's operator for more",
        )
    current = _same(session, principal, body)
    if current is not None:
        return current
    _check_quota(session, principal, body, settings)
    quotas.check(session, settings, "open_uploads")
    quotas.check(session, settings, "storage_bytes", more=body.size_bytes)
    _check_room(farm, body.size_bytes)
    upload = Upload(
        api_key_id=principal.key_id,
        kind=body.kind,
        size_bytes=body.size_bytes,
        declared_digest=body.digest,
        expires_at=time.time() + settings.upload_s,
    )
    session.add(upload)
    session.flush()
    return upload


def _same(session: Session, principal: Principal, body: UploadCreate) -> Upload | None:
    if body.digest is None:
        return None
    return session.scalars(
        select(Upload)
        .where(
            Upload.api_key_id == principal.key_id,
            Upload.declared_digest == body.digest,
            Upload.kind == body.kind,
            Upload.size_bytes == body.size_bytes,
            Upload.finished_at.is_(None),
            Upload.expires_at > time.time(),
        )
        .order_by(Upload.received_bytes.desc())
        .limit(1)
    ).first()


def _check_quota(session: Session, principal: Principal, body: UploadCreate, settings: Settings) -> None:
    is_mine = (Upload.api_key_id == principal.key_id, Upload.finished_at.is_(None))
    sizes = func.coalesce(func.sum(Upload.size_bytes), 0)
    count, total_bytes = session.execute(select(func.count(), sizes).where(*is_mine)).one()
    hint = "finish or delete some of them; one that gets no bytes is forgotten by itself"
    if count >= settings.open_uploads_per_key:
        raise TooMany(
            "limits.open-uploads",
            f"this key has {count} open uploads, the limit is {settings.open_uploads_per_key}",
            retry_after_s=RETRY_AFTER_S,
            hint=hint,
        )
    if total_bytes + body.size_bytes > settings.open_upload_bytes_per_key:
        raise TooMany(
            "limits.open-upload-bytes",
            f"this key's open uploads are {total_bytes:,} bytes, with this one "
            f"more than {settings.open_upload_bytes_per_key:,}",
            where="size_bytes",
            retry_after_s=RETRY_AFTER_S,
            hint=hint,
        )


def _check_room(farm: Farm, size_bytes: int) -> None:
    free_bytes = farm.storage.free_bytes()
    if free_bytes is not None and free_bytes - size_bytes < farm.settings.disk_reserve_bytes:
        raise Full("storage")


def find(session: Session, upload_id: str) -> Upload:
    """Returns an upload of the session's organisation. Raises: NotFound, also for another's."""
    upload = session.get(Upload, upload_id)
    if upload is None:
        raise NotFound(
            "upload.unknown",
            f"no upload {upload_id!r:.60}",
            where="upload_id",
            hint="begin one with POST /uploads; one that got no bytes for long was forgotten",
        )
    return upload


def check_continues(upload: Upload, start: int) -> None:
    """Raises: WrongOffset unless a piece that begins at `start` goes on where the upload stands; Conflict if it is
    finished."""
    if upload.finished_at is not None:
        raise Conflict("upload.finished", "this upload is finished", hint="use it by its digest")
    if start != upload.received_bytes:
        raise WrongOffset(upload.received_bytes)


def check_room(farm: Farm, more_bytes: int) -> None:
    """Checks that the caller's organisation has room for so many more bytes. Raises: Forbidden."""
    with farm.database.transaction() as session:
        quotas.check(session, farm.settings, "storage_bytes", more=more_bytes)


def advance(farm: Farm, upload_id: str, start: int, end: int) -> None:
    """Records that the bytes from `start` to `end` are on disk. They count against the organisation's room from now on.

    Raises: Conflict if another request has gone on with it, Forbidden if others have taken the room meanwhile; the
    upload stands where it stood then.
    """
    with farm.database.transaction() as session:
        quotas.check(session, farm.settings, "storage_bytes", more=end - start, is_stored=True)
        stands = (Upload.id == upload_id, Upload.received_bytes == start, Upload.finished_at.is_(None))
        moved = session.execute(
            update(Upload).where(*stands).values(received_bytes=end, expires_at=time.time() + farm.settings.upload_s)
        )
        if _count(moved) == 0:
            raise Conflict(
                "upload.elsewhere",
                "another request has gone on with this upload, or has ended it",
                hint="HEAD tells how far it has come: go on from there",
            )


def finish(farm: Farm, upload_id: str, digest: str) -> Upload:
    """Finishes an upload and returns it: its file is in the storage under `digest`, and its sender may name it.

    Raises: Conflict (bytes are missing), Invalid (they are others; the upload is forgotten), Forbidden (the
    organisation has no more room; the upload stays, unless its bytes came to the storage first).
    """
    with farm.database.transaction() as session:
        upload = _settle_digest(session, farm, find(session, upload_id), digest)
    if upload.finished_at is not None and upload.digest == digest:
        return upload
    if upload.finished_at is not None:
        raise Conflict("upload.finished", f"this upload is finished, and its digest is {upload.digest}", where="digest")
    if upload.received_bytes < upload.size_bytes:
        raise Conflict(
            "upload.incomplete",
            f"{upload.received_bytes:,} of {upload.size_bytes:,} bytes have come",
            headers={"Upload-Offset": str(upload.received_bytes)},
            hint="send the rest",
        )
    _adopt(farm, upload, digest)
    try:
        with farm.database.transaction() as session:
            finished = find(session, upload_id)
            finished.digest, finished.finished_at = digest, time.time()
            finished.expires_at = time.time() + farm.settings.upload_s
            session.flush()  # it counts as what is held from now on
            note_sent(session, farm.settings, finished, digest)
            return finished
    except Forbidden:
        forget(farm, upload_id)
        remove_unneeded(farm.database, farm.storage, digest)
        raise


def _settle_digest(session: Session, farm: Farm, upload: Upload, digest: str) -> Upload:
    """Settles an upload's digest, the first that was named. If its bytes are gone because they were adopted, they have
    that digest, and not what another request names meanwhile. Raises: Invalid, Forbidden.
    """
    if upload.finished_at is not None or upload.received_bytes < upload.size_bytes:
        return upload
    first = update(Upload).where(Upload.id == upload.id, Upload.declared_digest.is_(None))
    session.execute(first.values(declared_digest=digest))
    session.refresh(upload)
    if upload.declared_digest != digest:
        raise Invalid(
            "upload.digest",
            f"this upload is of {upload.declared_digest}, as was said before",
            where="digest",
            hint="finish it with that, or begin another",
        )
    upload.expires_at = time.time() + farm.settings.upload_s  # so that it counts
    session.flush()
    holdings.check_room(session, farm.settings, digest, more_bytes=0)
    return upload


def _adopt(farm: Farm, upload: Upload, digest: str) -> None:
    try:
        farm.storage.adopt(upload.id, size_bytes=upload.size_bytes, digest=digest)
    except DigestMismatch as error:
        forget(farm, upload.id)
        raise Invalid(
            "upload.digest",
            f"{error}; the upload is forgotten",
            where="digest",
            hint="see that the file does not change meanwhile, and send it again",
        ) from None
    except MissingFile:
        if farm.storage.size(digest) == upload.size_bytes:
            return  # it was adopted before, by a request that did not live to say so
        forget(farm, upload.id)
        raise Conflict(
            "upload.lost",
            "bytes of this upload are gone from the farm's storage",
            cause="infra",
            hint="send it again from the beginning",
        ) from None


def forget(farm: Farm, upload_id: str) -> None:
    """Deletes an upload and what has come of it; a finished one's file stays in the storage."""
    with farm.database.transaction() as session:
        session.execute(delete(Upload).where(Upload.id == upload_id))
    farm.storage.discard(upload_id)


def forget_expired(farm: Farm, *, most: int = 100) -> None:
    """Deletes uploads that got nothing for too long."""
    is_stale = Upload.expires_at < time.time()
    with farm.database.read() as session:
        ids = list(session.scalars(select(Upload.id).where(is_stale).limit(most)))
    for upload_id in ids:
        with farm.database.transaction() as session:
            gone = session.execute(delete(Upload).where(Upload.id == upload_id, is_stale))
        if _count(gone):
            farm.storage.discard(upload_id)


def _count(result: object) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount
