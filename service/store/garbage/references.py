"""The references to a stored file: every column of every table that holds a digest, but those that are named here.

A new column is a reference by itself. One that points to another table's row needs not be looked at: that row is the
reference, and it cannot go before. Rows whose `files_removed_at` is set (by retention) refer to nothing any more. A
model's listing refers to the files that it names. Of a file that retention has released, what is only a record of it
(`RECORDS`) is no reference either.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from sqlalchemy import Column, String, Table, select
from sqlalchemy.orm import Session

from service.store.database.models import Base, FileUse, ListedFile
from service.store.database.models.base import Digest

NO_REFERENCES = {
    "jobs.request_digest": "names a request, not a file",
    "jobs.plan_digest": "names a text that is in the row",
    "jobs.spec_digest": "names a text that is in the row",
    "bundles.plan_digest": "names a text that is in the job's row",
    "bundles.spec_digest": "names a text that is in the job's row",
    "results.digest": "names a text that is in the row",
    "uploads.declared_digest": "names what is still to come",
    "devices.agent_digest": "is what an agent says; releases keep their files",
    "file_uses.digest": "is what tells that nothing refers to it",
    "listed_files.listing": "counts as long as something refers to the listing",
    "listed_files.digest": "counts as long as something refers to the listing",
}
REMOVED = "files_removed_at"
RECORDS = frozenset(
    {
        "bundles.digest",
        "bundles.model_digest",
        "datasets.digest",
        "runs.weights_digest",
        "runs.trained_weights_digest",
        "attempts.weights_digest",
    }
)
"""Columns of records. Whoever holds the files that these name has rows for them (`holdings`); the records stay when the
last holding is removed.
"""


def holds_digest(column: Column[object]) -> bool:
    """Whether the column's type is that of digests."""
    return isinstance(column.type, String) and column.type.length == Digest.length


@cache
def referring_columns() -> tuple[Column[object], ...]:
    """Returns every column whose values protect files from removal."""
    columns: list[Column[object]] = []
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if holds_digest(column) and not column.foreign_keys and str(column) not in NO_REFERENCES:
                columns.append(column)
    return tuple(columns)


def referred(session: Session, digests: Iterable[str]) -> set[str]:
    """Returns those of the digests to which something refers, directly or through a listing."""
    requested = set(digests)
    listed = session.execute(
        select(ListedFile.digest, ListedFile.listing).where(
            ListedFile.digest.in_(requested), ListedFile.listing != ListedFile.digest
        )
    ).all()
    direct = _named(session, requested | {listing for _, listing in listed})
    return {digest for digest in requested if digest in direct} | {
        digest for digest, listing in listed if listing in direct
    }


def _named(session: Session, digests: set[str]) -> set[str]:
    named: set[str] = set()
    unreleased = digests - released(session, digests)
    for column in referring_columns():
        table = column.table
        assert isinstance(table, Table)
        candidates = unreleased if str(column) in RECORDS else digests
        query = select(column).where(column.in_(candidates)).distinct()
        if REMOVED in table.columns:
            query = query.where(table.columns[REMOVED].is_(None))
        named |= {str(digest) for digest in session.scalars(query)}
    return named


def released(session: Session, digests: Iterable[str]) -> set[str]:
    """Returns those of the digests that retention took from their last holder and that nobody has named since."""
    query = select(FileUse.digest).where(FileUse.digest.in_(set(digests)), FileUse.released_at.is_not(None))
    return set(session.scalars(query))
