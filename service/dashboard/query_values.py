"""The query fields of pages: anything that a page does not know is refused, with what there is.

A field of a query has fixed values (`Among`), or goes on from a row (`OfRow`), or holds a name that rows of the
caller's organisation have (`Name`). Which fields a page has is told by its function, and asked by
`service/people/query.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.base.problems import Invalid
from service.dashboard import format as fmt
from service.dashboard.tables import Column
from service.people.query import LONGEST, check_value, suggestion

MOST_TOLD = 20
"""Names that a refusal lists."""
NO_SUCH_NAME = "leave it out, or take one from a link of the page"


class Checked(ABC):
    """A value of a field that is looked at before the page is made."""

    @abstractmethod
    def check(self, given: str) -> str:
        """Returns the value. Raises: Invalid."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema for pydantic: the value is checked as the type says, then by `check`."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True)
class Among(Checked):
    """A value that is one of these, or nothing."""

    field: str
    choices: tuple[str, ...]

    def check(self, given: str) -> str:
        """Returns the value. Raises: Invalid."""
        check_value(self.field, given, self.choices)
        return given


@dataclass(frozen=True)
class OfRow(Checked):
    """The id of the row that a later page of a list begins after, or nothing."""

    field: str
    kind: str

    def check(self, given: str) -> str:
        """Returns the value. Raises: Invalid."""
        if given and re.fullmatch(rf"{self.kind}_[0-9a-z]+", given) is None:
            raise Invalid(
                "query.value",
                f"no page begins {self.field} {given[:LONGEST]!r}",
                where=self.field,
                hint=f"ids here begin with {self.kind}_; leave {self.field} out for the newest",
            )
        return given


def sorts(columns: Iterable[Column]) -> tuple[str, ...]:
    """Returns the values that a table may be sorted by."""
    return tuple(f"{sign}{column.key}" for column in columns if column.sortable for sign in ("", "-"))


@dataclass(frozen=True, slots=True)
class Name:
    """The value of a query field, which must be the name of some row."""

    field: str
    value: str
    is_there: Callable[[Session], bool]
    alternatives: Callable[[Session], Sequence[str]]
    """Values that there are instead; empty: ids, which say nothing."""


def name_in(
    field: str, value: str, column: InstrumentedAttribute[Any], *conditions: ColumnElement[bool], is_told: bool = True
) -> Name:
    """Returns a name in a column. `is_told`: others are listed where it is not there."""
    there = select(column).where(*conditions)

    def is_there(session: Session) -> bool:
        return session.execute(there.where(column == value).limit(1)).first() is not None

    def alternatives(session: Session) -> Sequence[str]:
        listed = there.where(column.is_not(None)).distinct().order_by(column)
        return [str(name) for name in session.scalars(listed)] if is_told else []

    return Name(field, value, is_there, alternatives)


def check_names(session: Session, names: Iterable[Name]) -> None:
    """Raises: Invalid for a name that no row has."""
    for name in names:
        if name.value and not name.is_there(session):
            alternatives = name.alternatives(session)
            there = f"there are: {fmt.some(alternatives, MOST_TOLD)}" if alternatives else NO_SUCH_NAME
            raise Invalid(
                "query.value",
                f"nothing here has the {name.field} {name.value[:LONGEST]!r}",
                where=name.field,
                hint=suggestion(name.value, alternatives, there),
            )
