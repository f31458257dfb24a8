"""Finds the lanes in which something is queued that may be for certain devices, by the index of queued runs alone.

Each queued run lies there under the rarest of its wishes. A search hops from lane to lane under what the devices offer:
it meets no lane that is empty, and none that asks first of all for something else, however many there are
(decision 68).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import cache

from sqlalchemy import JSON, ColumnElement, ScalarSelect, Select, Text, bindparam, cast, func, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.selectable import TableValuedAlias

from service.store.database.models import Run, while_queued

_OFFERED = "offered"
_AT_ONCE = 1000


def waiting_lanes(session: Session, wishes: Collection[str]) -> list[str]:
    """Returns the ids of lanes with queued runs, of any organisation, whose rarest wish is one of these."""
    query = _waiting_lanes(session.get_bind().dialect.name)
    return list(dict.fromkeys(session.scalars(query, {_OFFERED: json.dumps(sorted(wishes))})))


def in_parts(lane_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields the lanes in parts of as many as a statement of either database accepts."""
    for start in range(0, len(lane_ids), _AT_ONCE):
        yield lane_ids[start : start + _AT_ONCE]


@cache
def _waiting_lanes(dialect: str) -> Select[str]:
    """Returns the statement, which is made once. It is separate, since PostgreSQL would not know that it returns few
    lanes, and would join all that there are.
    """
    wish = _elements(dialect).c.value
    first = select(wish.label("wish"), _next_lane(wish).label("lane_id")).cte("waiting", recursive=True)
    after = select(first.c.wish, _next_lane(first.c.wish, after=first.c.lane_id))
    lane_ids = first.union_all(after.where(first.c.lane_id.is_not(None)))
    return select(lane_ids.c.lane_id).where(lane_ids.c.lane_id.is_not(None))


def _elements(dialect: str) -> TableValuedAlias:
    """Returns a row for each text of the parameter, which is one JSON list: a statement for however many there are."""
    texts = bindparam(_OFFERED, type_=Text)
    if dialect == "sqlite":
        return func.json_each(texts).table_valued("value")
    return func.json_array_elements_text(cast(texts, JSON)).table_valued("value")


def _next_lane(wish: ColumnElement[str], after: ColumnElement[str] | None = None) -> ScalarSelect[str]:
    """Reads one entry of the index: the first lane under a wish that comes after another."""
    queued = Run.__table__.alias()
    query = select(queued.c.lane_id).where(while_queued(queued.c.state, queued.c.rarest_wish) == wish)
    if after is not None:
        query = query.where(queued.c.lane_id > after)
    return query.order_by(queued.c.lane_id).limit(1).scalar_subquery()
