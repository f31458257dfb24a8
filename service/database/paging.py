"""Cursor pages: ids sort by age, so a cursor is the last id seen and pages never shift under new rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

Row = TypeVar("Row")


def newest_first(
    session: Session, query: Select[Row], key: InstrumentedAttribute[str], *, limit: int, cursor: str | None
) -> tuple[Sequence[Row], str | None]:
    """One page of `query` in falling order of `key`, and the next cursor (None: this is the last page)."""
    if cursor is not None:
        query = query.where(key < cursor)
    rows: Sequence[Row] = session.scalars(query.order_by(key.desc()).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], str(getattr(rows[limit - 1], key.key))
