"""One statement that adds a row unless it is there: the same work either way, and no race."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.database.models import Base


def insert_if_new(session: Session, kind: type[Base], fields: Mapping[str, Any]) -> None:
    """Add a row with these columns (the rest by default), or leave the one that has its key."""
    connection = session.connection()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(dialect.insert(kind.__table__).values(**fields).on_conflict_do_nothing())
