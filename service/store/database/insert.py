"""Statements that add rows, whether or not they are there: the same work either way, and no race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.store.database.models import Base


def insert_if_new(session: Session, kind: type[Base], fields: Mapping[str, Any]) -> None:
    """Adds a row with these columns (the rest by default), or leaves the one that has its key."""
    session.connection().execute(_dialect(session).insert(kind.__table__).values(**fields).on_conflict_do_nothing())


def keep_higher(
    session: Session, kind: type[Base], rows: Sequence[Mapping[str, Any]], *, key: Sequence[str], higher: str
) -> None:
    """Adds rows, or replaces the row that has the same key, unless that one is higher in this column."""
    table = kind.__table__
    added = _dialect(session).insert(table).values(list(rows))
    new = {column.key: added.excluded[column.key] for column in table.columns if column.key not in key}
    is_higher = added.excluded[higher] >= table.c[higher]
    session.connection().execute(added.on_conflict_do_update(index_elements=list(key), set_=new, where=is_higher))


def _dialect(session: Session) -> Any:
    """Returns the dialect's module: both have the same functions under one name, with types of their own."""
    return sqlite if session.connection().dialect.name == "sqlite" else postgresql
