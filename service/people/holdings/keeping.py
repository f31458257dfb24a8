"""Files that come with requests: stored only if their sender has room for them, and not left behind if it has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from service.base.problems import Forbidden, Problem
from service.people.holdings import service as holdings
from service.store.farm import Farm
from service.store.files import store_upload
from service.store.garbage.collecting import remove_unneeded
from service.store.storage import StoredFile
from service.store.storage.files import digest_of
from service.store.storage.store import CHUNK_BYTES


def store_within(farm: Farm, stream: BinaryIO, *, limit_bytes: int, what: str) -> StoredFile:
    """Calls `store_upload` if the caller's organisation has room for the file or holds it. Raises: Forbidden, TooLarge,
    Invalid.

    Whoever then notes that it is held asks again (`removed_if_refused`): others may have taken the room meanwhile.
    """
    size_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    if size_bytes <= limit_bytes:
        _check_room(farm, stream, size_bytes)
    return store_upload(farm.storage, stream, limit_bytes=limit_bytes, what=what)


def _check_room(farm: Farm, stream: BinaryIO, size_bytes: int) -> None:
    try:
        with farm.database.transaction() as session:
            holdings.check_room(session, farm.settings, "", more_bytes=size_bytes, is_stored=False)
    except Forbidden:
        digest = digest_of(
            iter(lambda: stream.read(CHUNK_BYTES), b"")
        )  # read only where it decides, and with no transaction open
        stream.seek(0)
        with farm.database.read() as session:
            if holdings.find(session, holdings.KINDS, digest) is None:
                raise


@contextmanager
def removed_if_refused(farm: Farm, stored: StoredFile) -> Iterator[None]:
    """Removes the stored file if the block refuses it, unless something else refers to it."""
    try:
        yield
    except Problem:
        remove_unneeded(farm.database, farm.storage, stored.digest)
        raise
