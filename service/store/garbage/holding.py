"""A new reference to a stored file, and the removal of that file, cannot pass each other.

Every flush of rows that refer to files writes `file_uses` first, in the transaction of the reference, for those files
and for what listings among them name. A removal locks the same row, looks for references, and deletes the file before
it commits. So either the removal sees the reference, or the reference sees that the file is gone: then the transaction
fails with `FileGone`, and whoever has the bytes puts them again.

It is hooked into the sessions (`Database.holder`): code that adds or changes rows needs not think of it. A reference
that is written by a statement instead says so itself (`hold_files`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from sqlalchemy import Table, inspect, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.base.problems import Unavailable
from service.store.database.engine import HOLDER
from service.store.database.models import Base, FileUse, ListedFile
from service.store.garbage.references import REMOVED, referring_columns
from service.store.storage import Storage


class FileGone(Unavailable):
    """The file was removed just before this reference to it."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            "infra.file-removed",
            f"the file {digest} was removed from the storage a moment ago: nothing referred to it",
            hint="send it again",
            headers={"Retry-After": "1"},
        )


@cache
def _attributes() -> dict[type[Base], tuple[str, ...]]:
    """Returns the names of the attributes that refer to files, by mapped class."""
    columns = set(referring_columns())
    attributes: dict[type[Base], tuple[str, ...]] = {}
    for mapper in Base.registry.mappers:
        table = mapper.local_table
        assert isinstance(table, Table)
        names = tuple(mapper.get_property_by_column(column).key for column in table.columns if column in columns)
        if names:
            attributes[mapper.class_] = names
    return attributes


def new_references(session: Session) -> set[str]:
    """Returns the digests that the session's new and changed rows are about to refer to."""
    digests: set[str] = set()
    for row in session.new:
        if getattr(row, REMOVED, None) is not None:
            continue
        digests |= {value for name in _attributes().get(type(row), ()) if (value := getattr(row, name))}
    for row in session.dirty:
        names = _attributes().get(type(row), ())
        if names:
            state = inspect(row)
            is_back = REMOVED in state.attrs and state.attrs[REMOVED].history.has_changes()
            digests |= {
                value
                for name in names
                if (value := getattr(row, name)) and (is_back or state.attrs[name].history.added)
            }
    return digests


@dataclass(frozen=True, slots=True)
class Holder:
    """Notes new references, with the storage at hand."""

    storage: Storage

    def __call__(self, session: Session) -> None:
        """Protects the files that the session's rows refer to; called before each flush. Raises: FileGone."""
        digests = new_references(session)
        if digests:
            self.hold(session, digests)

    def hold(self, session: Session, digests: Iterable[str]) -> None:
        """Protects these files, and what listings among them name, from removal before this transaction ends.

        Raises: FileGone for one that has been removed.
        """
        files = set(digests)
        connection = session.connection()
        listed = select(ListedFile.digest).where(ListedFile.listing.in_(files))
        files |= set(connection.scalars(listed))
        kind = sqlite if connection.dialect.name == "sqlite" else postgresql
        for digest in sorted(files):  # in one order: two transactions do not wait for each other
            new = kind.insert(FileUse.__table__).values(digest=digest, used_at=time.time())
            used = new.on_conflict_do_update(
                index_elements=["digest"], set_={"used_at": new.excluded.used_at, "released_at": None}
            )
            removed_at = connection.scalar(used.returning(FileUse.removed_at))
            if removed_at is None:
                continue
            if self.storage.size(digest) is None:
                raise FileGone(digest)
            connection.execute(update(FileUse).where(FileUse.digest == digest).values(removed_at=None))


def hold_files(session: Session, digests: Iterable[str]) -> None:
    """Protects these files for this transaction, which is about to refer to them by a statement of its own. Raises:
    FileGone.
    """
    holder = session.info.get(HOLDER)
    if isinstance(holder, Holder):
        holder.hold(session, digests)
