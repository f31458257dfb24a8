"""The common parts of the administration's pages: a list, its form, and what was just made."""

from __future__ import annotations

from dataclasses import dataclass

from service.dashboard import addresses
from service.dashboard.forms import Form
from service.dashboard.tables import Table, Value

SHOWN = 200
"""Entries of a field that chooses one."""


@dataclass(frozen=True, slots=True)
class CreationNotice:
    """Something new whose secret this one answer shows."""

    title: str
    secrets: tuple[tuple[str, str], ...]
    """(what it is, the text to copy)."""
    note: str


@dataclass(frozen=True, slots=True)
class AdminPart:
    """A page of the administration."""

    name: str
    """The last part of its address."""
    title: str
    lead: str
    table: Table
    empty: str
    """First step to take, where the list has nothing."""
    forms: tuple[Form, ...] = ()
    """Forms that the visitor may send."""
    created: CreationNotice | None = None
    count: str = ""
    """Number of entries, in words."""
    find: str = ""
    """Search text that the names of the shown entries contain."""
    older: str = ""
    newest: str = ""
    found_by: str = "name"

    @property
    def address(self) -> str:
        """Address of the part's page."""
        return path(self.name)


def path(name: str, *rest: str) -> str:
    """Returns the address of a page of the administration, or of a form on it."""
    return addresses.page("/".join(("admin", name, *rest)))


def standing(*, ended: bool, expired: bool, words: str = "revoked") -> Value:
    """Returns the state of an entry: `in force`, `expired`, or `words` if somebody ended it."""
    return words if ended else "expired" if expired else "in force"
