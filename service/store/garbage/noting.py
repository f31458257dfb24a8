"""Rows that say when a file was last needed, and what a model's listing names; written by whoever comes first."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database.insert import insert_if_new
from service.store.database.models import FileUse, ListedFile


def note_listing(session: Session, listing: str, members: Iterable[str]) -> None:
    """Records what a model's listing names; a file that is no listing is recorded under its own digest."""
    for digest in sorted({listing, *members}):
        insert_if_new(session, ListedFile, {"listing": listing, "digest": digest})


def note_use(session: Session, digest: str) -> None:
    """Begins to count how long nothing has referred to a file."""
    insert_if_new(session, FileUse, {"digest": digest, "used_at": time.time()})


def lock_files(session: Session, digest: str) -> list[str]:
    """Returns the file, and what it names if it is a listing: nobody begins to refer to them, or removes them, before
    the transaction ends.
    """
    listed = session.scalars(select(ListedFile.digest).where(ListedFile.listing == digest))
    files = sorted({digest, *listed})
    for file_digest in files:  # in the order in which references take them
        note_use(session, file_digest)
        session.execute(select(FileUse.digest).where(FileUse.digest == file_digest).with_for_update())
    return files
