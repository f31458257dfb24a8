"""The lists of the administration in pages: the newest first, found by part of their names, with how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.pages.admin.part import path
from service.store.database.models import Base
from service.store.database.paging import newest_first

PAGE_ROWS = 50
Entry = TypeVar("Entry", bound=Base)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A choice of a list's entries; what is empty does not restrict."""

    find: str = ""
    """Part of a name."""
    before: str = ""
    """The last entry of the page before."""


FIRST = ListQuery()


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Entry]):
    """A page of a list."""

    rows: Sequence[Entry]
    total: int
    """Number of entries on all pages."""
    query: ListQuery
    last: str = ""
    """Where the next page begins; empty: there is none."""

    def links(self, name: str) -> Links:
        """Returns the links to the other pages."""
        find = ("find", self.query.find)
        return Links(
            self.query.find,
            addresses.with_query(path(name), (find, ("before", self.last))) if self.last else "",
            addresses.with_query(path(name), (find,)) if self.query.before else "",
        )

    def message(self, noun: str, many: str | None = None) -> str:
        """Says how many entries there are, with `noun` or `many` as their name."""
        count = fmt.plural(self.total, noun, many)
        matching = f" with “{self.query.find}”"
        some = f"; {len(self.rows)} on this page" if len(self.rows) < self.total else ""
        return f"{count}{matching if self.query.find else ''}{some}."


@dataclass(frozen=True, slots=True)
class Links:
    """The search text of a page of a list, and the addresses of the other pages."""

    find: str = ""
    older: str = ""
    newest: str = ""


def page_of(
    session: Session,
    kind: type[Entry],
    key: InstrumentedAttribute[Any],
    query: ListQuery,
    *,
    names: Sequence[InstrumentedAttribute[Any]],
    only: Sequence[ColumnElement[bool]] = (),
    most: int = PAGE_ROWS,
) -> ListPage[Entry]:
    """Returns a page of the rows of a table. `key`: the column by which they are sorted; `names`: the columns that are
    searched; `only`: conditions on the rows.
    """
    where = [*only, *([or_(*(name.icontains(query.find, autoescape=True) for name in names))] if query.find else [])]
    total = session.scalar(select(func.count()).select_from(kind).where(*where)) or 0
    rows, last = newest_first(session, select(kind).where(*where), key, limit=most, cursor=query.before or None)
    return ListPage(rows, total, query, last or "")
