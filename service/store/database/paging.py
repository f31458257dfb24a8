"""Cursor pages: ids sort by age, so a cursor is the last id seen and pages never shift under new rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.base.problems import Invalid

Row = TypeVar("Row")
_CURSOR = re.compile(r"[a-z]+_[0-9a-zA-Z]+")
"""An id."""


def newest_first(
    session: Session, query: Select[Row], key: InstrumentedAttribute[str], *, limit: int, cursor: str | None
) -> tuple[Sequence[Row], str | None]:
    """Returns a page of `query` in falling order of `key`, and the next cursor (None: this is the last page).

    Raises: Invalid for a cursor that no page has given.
    """
    if cursor is not None:
        if not _CURSOR.fullmatch(cursor):
            raise Invalid(
                "query.cursor",
                f"no page has given the cursor {cursor!r:.60}",
                where="query.cursor",
                hint="take `next` of the page before, or leave it out for the first",
            )
        query = query.where(key < cursor)
    rows: Sequence[Row] = session.scalars(query.order_by(key.desc()).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], str(getattr(rows[limit - 1], key.key))
