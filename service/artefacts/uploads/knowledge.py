"""Decides which stored files a caller may name by their digest: those that its organisation has sent, and no others.

To others a file that the farm has is one that it does not have. What is held is asked for first, and the storage only
after it: what is not there and what is another's take the same time.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.store.database.models import Upload
from service.store.farm import Farm
from service.store.storage import StoredFile

KINDS: tuple[holdings.Kind, ...] = (*holdings.SENT, "dataset")


def may_know(session: Session, digest: str) -> bool:
    """Whether the session's organisation has sent this file before."""
    return holdings.find(session, KINDS, digest) is not None


def find_sent(farm: Farm, digest: str) -> StoredFile | None:
    """Returns the file, if the caller's organisation has sent it before and the farm still has it."""
    with farm.database.read() as session:
        if not may_know(session, digest):
            return None
    size_bytes = farm.storage.size(digest)
    return None if size_bytes is None else StoredFile(digest, size_bytes)


def note_sent(session: Session, settings: Settings, upload: Upload, digest: str) -> None:
    """Records that the upload's organisation may name its file from now on. A data set counts as one only when it has
    been checked.

    Raises: Forbidden (no more room).
    """
    kind: holdings.Kind = "model" if upload.kind == "model" else "data"
    holdings.hold_within(session, settings, kind, digest, size_bytes=upload.size_bytes)
