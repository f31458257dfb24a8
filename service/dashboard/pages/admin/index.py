"""What there is to administer, as far as the visitor may."""

from __future__ import annotations

from dataclasses import dataclass

from service.dashboard import addresses
from service.dashboard.pages.admin.part import path
from service.dashboard.visitors import Visitor
from service.people.permissions import Rule, rule_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One page of the administration."""

    title: str
    words: str
    href: str


PAGES = (
    ("enrolment", "Enrol a board", "Make a token, and get the one line to paste on the board."),
    ("keys", "API keys", "Who and what may call the farm, with which rights, until when."),
    ("people", "People", "To whom keys belong; removing one ends all of their keys."),
    ("webhooks", "Webhooks", "Who is told when something ends, and how that goes."),
    ("organisation", "Your organisation", "Its limits, what it uses of them, and how long what it has stays."),
    ("windows", "Maintenance windows", "Times in which devices get nothing new."),
    ("releases", "Agent releases", "Which agent the farm offers to its devices, and how far each has come."),
    ("organisations", "Organisations", "Tenants of this farm: founded, closed, with limits of their own."),
)


def entries(visitor: Visitor) -> tuple[Entry, ...]:
    """Those that the visitor may open."""
    found = [Entry(title, words, path(name)) for name, title, words in PAGES if is_open(visitor, name)]
    if visitor.may("admin"):
        found.append(
            Entry(
                "Audit log",
                "Every request that changed something: by whom, and what came of it.",
                addresses.page("audit"),
            )
        )
    return tuple(found)


def is_open(visitor: Visitor, name: str) -> bool:
    """Whether its page of that name lets the visitor in."""
    rule: Rule = rule_of(f"GET {path(name)}")
    return rule.scope is not None and visitor.may(rule.scope) and (visitor.is_home or not rule.is_farms)
