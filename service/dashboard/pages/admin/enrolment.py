"""Enrolment tokens: made with the one line to paste on the board, and what became of each."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from service.boards.fleet.schemas import EnrolmentTokenCreate, EnrolmentTokenCreated
from service.dashboard import addresses, forms, visitors
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery, page_of
from service.dashboard.pages.admin.part import AdminPart, CreationNotice, path
from service.dashboard.queries import device_names
from service.dashboard.tables import Column, Row, Value, table
from service.devices.known_classes import known_classes
from service.store.database.models import EnrolmentToken

NAME = "enrolment"
HOUR_S = 3600.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHARED = (("", "as the farm's rule is"), ("yes", "everybody's runs"), ("no", "only this organisation's"))
COLUMNS = (
    Column("name", "Token", primary=True, wrap=True),
    Column("standing", "Standing", "state"),
    Column("used", "Used", "number", wide_only=True),
    Column("for", "For", wrap=True, wide_only=True),
    Column("device", "Used last by", wide_only=True),
    Column("expires_at", "Expires", "time", "UTC", wide_only=True),
    Column("created_at", "Made", "time", "UTC", wide_only=True),
    Column("id", "Its id", "code", wide_only=True),
)
EMPTY = "No board has been let in by a token yet: make one below, and paste its line on the board."


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with the organisation's tokens, and the form for another."""
    has_id = (EnrolmentToken.id.is_not(None),)
    listing = page_of(
        session,
        EnrolmentToken,
        EnrolmentToken.id,
        query,
        only=has_id,
        names=(EnrolmentToken.name, EnrolmentToken.device_class),
    )
    names = device_names(session, [token.device_id for token in listing.rows])
    tokens = table(NAME, "Enrolment tokens, newest first", COLUMNS, [_row(token, names) for token in listing.rows])
    lead = "A token lets a board in, once or as often as it says. Make one, and paste the line that comes with it into \
a shell on the board: it fetches the agent, tries out what the board can do, and enrols it."
    offered = (form or blank(known_classes(session)),)
    return AdminPart(
        NAME,
        "Enrol a board",
        lead,
        tokens,
        EMPTY,
        offered,
        created,
        listing.message("token"),
        **asdict(listing.links(NAME)),
    )


def blank(classes: Sequence[str]) -> Form:
    """Returns the form for a new one."""
    fields = [
        Field("name", "Name of the board", hint="What it is called on these pages, such as shelf-3", max_length=100),
        Field(
            "device_class",
            "Only for devices of class",
            "select",
            options=(("", "any"), *((name, name) for name in classes)),
            hint="For a kind of board that is not listed, see pockfarm devices enrol --help",
        ),
        Field("uses", "How many boards may use it", "number", "1", max_length=6),
        Field("hours", "Hours until it expires", "number", hint="Empty: 15 minutes", max_length=12),
    ]
    if visitors.current().is_home:
        fields.append(Field("shared", "Whose runs may come to it", "select", options=SHARED))
    return Form("new-token", "Make a token", path(NAME), "Make the token and its line", tuple(fields))


def body(typed: Typed) -> EnrolmentTokenCreate:
    """Reads the request out of the form. Raises: Invalid."""
    values: dict[str, object] = {**typed.given("name", "device_class", "uses")}
    lifetime_s = forms.number(typed, "hours", times=HOUR_S)
    if lifetime_s is not None:
        values["lifetime_s"] = lifetime_s
    if typed.text("shared"):
        values["shared"] = typed.text("shared") == "yes"
    return forms.body_of(EnrolmentTokenCreate, values)


def creation_notice(token: EnrolmentTokenCreated, address: str) -> CreationNotice:
    """Returns the notice with the line to paste, which holds the secret."""
    named = f" POCKFARM_NAME={shlex.quote(token.name)}" if token.name and token.max_uses == 1 else ""
    line = f"curl -fsS {shlex.quote(f'{address}/enrol.sh')} | POCKFARM_ENROL_TOKEN={shlex.quote(token.token)}{named} sh"
    uses = "once" if token.max_uses == 1 else f"{token.max_uses} times"
    note = f"Good {uses}, until {fmt.clock(token.expires_at)} UTC. As root, so that the agent stays running after a \
restart. The secret is shown here only."
    if urlsplit(address).hostname in LOOPBACK:
        note += f" A board elsewhere does not reach {address}: open this page under the address that boards use, or \
set POCKFARM_PUBLIC_URL on the farm's machine."
    return CreationNotice("Paste this line into a shell on the board", (("The line", line),), note)


def standing_of(token: EnrolmentToken) -> str:
    """Returns the token's state: `in force`, `used`, `expired` or `revoked`."""
    if token.revoked_at is not None:
        return "revoked"
    if token.uses >= token.max_uses:
        return "used"
    return "expired" if token.expires_at <= time.time() else "in force"


def _row(token: EnrolmentToken, names: Mapping[str, str]) -> Row:
    now = standing_of(token)
    targets = ", ".join(token.targets or ())
    values: dict[str, Value] = {
        "name": token.name or "without a name",
        "standing": now,
        "used": token.uses,
        "for": " · ".join(part for part in (token.device_class or "", targets) if part) or "any board",
        "device": names.get(token.device_id or ""),
        "expires_at": fmt.iso(token.expires_at),
        "created_at": fmt.iso(token.created_at),
        "id": token.id,
    }
    links = {"device": addresses.device(token.device_id)} if token.device_id else {}
    notes = {"used": f"of {token.max_uses}"}
    sure = "No more boards are let in by it; those that are stay."
    revoke = Action(path(NAME, token.id or "", "revoke"), "Revoke", sure=sure, of=token.name or token.id or "")
    actions = (revoke,) if now == "in force" else ()
    return Row(values, links, notes, anchor=token.id or "", dimmed=now != "in force", actions=actions)
