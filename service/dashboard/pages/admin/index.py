"""The parts of the administration that the visitor may open."""

from __future__ import annotations

from dataclasses import dataclass

from service.dashboard import addresses
from service.dashboard.extensions import AdminEntry, Extensions
from service.dashboard.pages.admin.part import path
from service.dashboard.visitors import Visitor
from service.people.permissions import Permissions, Rule
from service.store.farm import Farm


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the administration."""

    title: str
    words: str
    href: str


PAGES = (
    AdminEntry("enrolment", "Enrol a board", "Make a token, and get the one line to paste on the board."),
    AdminEntry("keys", "API keys", "Who and what may call the farm, with which rights, until when."),
    AdminEntry("people", "People", "To whom keys belong; removing one ends all of their keys."),
    AdminEntry(
        "organisation", "Your organisation", "Its limits, what it uses of them, and how long what it has stays."
    ),
    AdminEntry("windows", "Maintenance windows", "Times in which devices get nothing new."),
    AdminEntry("releases", "Agent releases", "Which agent the farm offers to its devices, and how far each has come."),
    AdminEntry("organisations", "Organisations", "Tenants of this farm: founded, closed, with limits of their own."),
)


def entries(visitor: Visitor, farm: Farm) -> tuple[Entry, ...]:
    """Returns the pages that the visitor may open."""
    pages = (*PAGES, *farm.part(Extensions).admin_pages)
    permissions = farm.part(Permissions)
    open_pages = [
        Entry(page.title, page.description, path(page.name))
        for page in pages
        if is_open(visitor, permissions.rule_of(f"GET {path(page.name)}"))
    ]
    if visitor.may("admin"):
        open_pages.append(
            Entry(
                "Audit log",
                "Every request that changed something: by whom, and what came of it.",
                addresses.page("audit"),
            )
        )
    return tuple(open_pages)


def is_open(visitor: Visitor, rule: Rule) -> bool:
    """Whether a page with this rule lets the visitor in."""
    return rule.scope is not None and visitor.may(rule.scope) and (visitor.is_home or not rule.is_farms)
