"""Audit entries as an organisation reads them. There is nothing here that changes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.base.schemas import columns
from service.people.audit.schemas import AuditView
from service.people.query import check_value
from service.store.database.engine import Database
from service.store.database.models import ApiKey, AuditEntry, User
from service.store.database.paging import newest_first

BATCH = 500
OUTCOMES = ("done", "refused", "failed")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter of audit entries; what is empty does not restrict."""

    action: str = ""
    """Method and path: `POST /runs`."""
    outcome: str = ""
    key: str = ""
    user: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        """Raises: Invalid for an outcome that no entry can have."""
        check_value("outcome", self.outcome, OUTCOMES)

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the filter as conditions on `AuditEntry`."""
        pairs = (
            (AuditEntry.action, self.action),
            (AuditEntry.outcome, self.outcome),
            (AuditEntry.key_id, self.key),
            (AuditEntry.user_id, self.user),
            (AuditEntry.subject, self.subject),
        )
        return [column == value for column, value in pairs if value]


def newest(
    session: Session, chosen: AuditFilter, *, limit: int, cursor: str | None
) -> tuple[list[AuditView], str | None]:
    """Returns a page of entries, the newest first, and the next cursor."""
    query = select(AuditEntry).where(*chosen.conditions())
    rows, following = newest_first(session, query, AuditEntry.id, limit=limit, cursor=cursor)
    keys = _names(session, ApiKey, {row.key_id for row in rows if row.key_id})
    users = _names(session, User, {row.user_id for row in rows if row.user_id})
    views = [_view(row, keys.get(row.key_id or ""), users.get(row.user_id or "")) for row in rows]
    return views, following


def everything(database: Database, chosen: AuditFilter) -> Iterator[AuditView]:
    """Yields every entry, the newest first, read in batches, each in a session of its own."""
    cursor: str | None = None
    while True:
        with database.read() as session:
            rows, cursor = newest(session, chosen, limit=BATCH, cursor=cursor)
        yield from rows
        if cursor is None:
            return


def _names(session: Session, kind: type[ApiKey | User], ids: set[str]) -> dict[str, str]:
    rows = session.execute(select(kind.id, kind.name).where(kind.id.in_(ids)))
    return {row_id: name for row_id, name in rows}  # noqa: C416 (rows are no tuples to the type checker)


def _view(row: AuditEntry, key_name: str | None, user_name: str | None) -> AuditView:
    plain = columns(AuditView, row)
    return AuditView(**plain, key_name=key_name, user_name=user_name)
