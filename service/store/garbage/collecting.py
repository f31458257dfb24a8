"""Removes stored files that nothing refers to, one by one, each in a transaction of its own.

A file stays while a row refers to it (`references.py`), while it is younger than the grace age, and until it has been
seen without a reference for that long. It is deleted under the lock that new references take (`holding.py`), and the
row that says so commits after it: a crash in between leaves a file less that nothing needed, or changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from compiler.errors import ModelError
from compiler.external import MAX_LISTING_BYTES, Listing
from service.base.incremental import IncrementalTask
from service.base.settings import Settings
from service.store.database.engine import Database
from service.store.database.models import Bundle, FileUse, Job, ListedFile, Upload
from service.store.garbage.noting import note_listing, note_use
from service.store.garbage.references import referred
from service.store.storage import MissingFile, Storage

LOG = logging.getLogger(__name__)
BATCH = 200
HALF_WRITTEN_S = 3600.0
"""Time without growth after which an unfinished file, whatever the grace, belongs to a process that died."""
FORGET_REMOVED_S = 30 * 24 * 3600.0
"""A note that a file was removed is kept so long: no transaction that began before the removal lives longer."""


@dataclass(slots=True)
class Collected:
    """The findings and deeds of a pass; in a dry run, `removed` and `unfinished` are what would go."""

    files: int = 0
    removed: list[tuple[str, int]] = field(default_factory=list)
    """Digests and bytes."""
    unfinished: list[str] = field(default_factory=list)
    """Names of growing files that belong to no upload."""

    @property
    def removed_bytes(self) -> int:
        """Room that was made."""
        return sum(size_bytes for _, size_bytes in self.removed)


@dataclass(slots=True)
class Collection:
    """A pass of the collection. `steps` may be left at any point, and another pass begun."""

    database: Database
    storage: Storage
    grace_s: float
    dry_run: bool = False
    totals: Collected = field(default_factory=Collected)

    def run(self) -> Collected:
        """Runs the whole pass."""
        for _ in self.steps():
            pass
        return self.totals

    def say(self) -> None:
        """Logs what it did."""
        totals = self.totals
        if totals.removed or totals.unfinished:
            LOG.info(
                "removed %d stored files (%d bytes) and %d unfinished ones of %d",
                len(totals.removed),
                totals.removed_bytes,
                len(totals.unfinished),
                totals.files,
            )

    def steps(self) -> Iterator[None]:
        """Runs the pass, and yields after each step, which takes little time."""
        yield from self._learn_listings()
        before = time.time() - self.grace_s
        stored = self.storage.stored()
        while batch := list(islice(stored, BATCH)):
            self.totals.files += len(batch)
            sizes = {digest: size_bytes for digest, size_bytes, changed_at in batch if changed_at <= before}
            with self.database.read() as session:
                referenced = referred(session, sizes) if sizes else set()
            yield
            for digest in sorted(sizes.keys() - referenced):
                if self._remove(digest, before):
                    self.totals.removed.append((digest, sizes[digest]))
                yield
        yield from self._discard_unfinished(before)
        if not self.dry_run:
            self._forget_removed()

    def _learn_listings(self) -> Iterator[None]:
        """Records what the listings among the models name, for those that were stored before such records were made."""
        for column in (Job.model_digest, Bundle.model_digest):
            with self.database.read() as session:
                listed = select(ListedFile.listing).where(ListedFile.listing == column)
                unknown = list(session.scalars(select(column).where(~listed.exists()).distinct()))
            for digest in unknown:
                with self.database.transaction() as session:
                    note_listing(session, digest, self._members(digest))
                yield

    def _members(self, digest: str) -> set[str]:
        if (self.storage.size(digest) or MAX_LISTING_BYTES + 1) > MAX_LISTING_BYTES:
            return set()
        try:
            listing = Listing.parse(b"".join(self.storage.read(digest)))
        except (ModelError, MissingFile):
            return set()
        return set() if listing is None else {listing.model, *listing.external.values()}

    def _remove(self, digest: str, before: float) -> bool:
        """Removes the file, if it is still true that nothing needs it."""
        with self.database.transaction() as session:
            use = _use_of(session, digest)
            if use is None:
                if not self.dry_run:
                    note_use(session, digest)  # seen for the first time: its grace begins now
                return False
            if use.used_at > before or referred(session, [digest]):
                return False
            if not self.dry_run:
                _delete(session, self.storage, use)
            return True

    def _discard_unfinished(self, before: float) -> Iterator[None]:
        old = [name for name, grew_at in self.storage.growing() if grew_at <= before]
        with self.database.read() as session:
            live = set(session.scalars(select(Upload.id).where(Upload.id.in_(old)))) if old else set()
        for name in sorted(set(old) - live):
            self.totals.unfinished.append(name)
            if not self.dry_run:
                self.storage.discard(name)
            yield
        if not self.dry_run:
            self.storage.tidy(min(before, time.time() - HALF_WRITTEN_S))

    def _forget_removed(self) -> None:
        with self.database.transaction() as session:
            session.execute(delete(FileUse).where(FileUse.removed_at < time.time() - FORGET_REMOVED_S))


def remove_unneeded(database: Database, storage: Storage, digest: str) -> bool:
    """Removes a file that was stored for nothing, whatever its age, unless something refers to it. Returns whether it
    was removed.
    """
    with database.transaction() as session:
        note_use(session, digest)
        use = _use_of(session, digest)
        if use is None or referred(session, [digest]):
            return False
        _delete(session, storage, use)
        return True


def _use_of(session: Session, digest: str) -> FileUse | None:
    return session.scalar(select(FileUse).where(FileUse.digest == digest).with_for_update())


def _delete(session: Session, storage: Storage, use: FileUse) -> None:
    """Deletes the file. The caller holds the row, and nothing refers to the file."""
    use.removed_at = time.time()
    session.flush()
    storage.delete(use.digest)
    LOG.info("removed stored file %s: nothing refers to it", use.digest)


class GarbageTask(IncrementalTask):
    """Collects garbage every `gc_s` seconds."""

    def __init__(self, database: Database, storage: Storage, settings: Settings) -> None:
        super().__init__(lambda: Collection(database, storage, settings.gc_grace_s), every_s=settings.gc_s)
