"""Bodies of `/uploads`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.base.schemas import DigestText, RequestBody, Timestamp, View
from service.store.database.models import Upload

Kind = Literal["model", "data", "dataset"]


class UploadCreate(RequestBody):
    """A file to be sent in pieces."""

    kind: Kind
    """Intended use: a model, a data file of one, or a data set; its limit follows from it."""
    size_bytes: int = Field(ge=1, le=1 << 50)
    digest: DigestText | None = None
    """Digest of the whole file, if its sender knows it: an upload of the same file is resumed, and a file that the farm
    has from the same sender is not sent again.
    """


class UploadView(View):
    """How far an upload has come."""

    id: str
    state: Literal["open", "finished"]
    kind: Kind
    size_bytes: int
    received_bytes: int
    digest: str | None
    created_at: Timestamp
    expires_at: Timestamp
    """When the upload is dropped unless another piece arrives."""


class FileView(View):
    """A stored file that the caller may name by its digest."""

    digest: DigestText
    size_bytes: int


def upload_view(upload: Upload) -> UploadView:
    """Returns the view of a row."""
    columns = {name: getattr(upload, name) for name in UploadView.model_fields if name not in ("state", "digest")}
    state = "open" if upload.finished_at is None else "finished"
    return UploadView.model_validate({**columns, "state": state, "digest": upload.digest or upload.declared_digest})
