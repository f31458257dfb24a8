"""Parts of the dashboard that optional features add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs attention: all cases of one cause."""

    count: int
    title: str
    detail: str
    """The cause as far as it is known, and the next step."""
    href: str
    """Address of a page that lists the cases."""
    icon: str = "warning"


ConcernFinder = Callable[[Session], Sequence[Concern]]
"""Finds concerns of the visitor's organisation (`visitors.current`)."""


@dataclass(frozen=True, slots=True)
class AdminEntry:
    """A page of the administration. `name`: the last part of its address, below `/dashboard/admin`."""

    name: str
    title: str
    description: str


@dataclass(frozen=True, slots=True)
class Extensions:
    """Additions of all features to the dashboard: the farm's part of this class (`Farm.part`)."""

    admin_pages: tuple[AdminEntry, ...] = ()
    concerns: tuple[ConcernFinder, ...] = ()
