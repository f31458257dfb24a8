"""API keys: made with what they may do and until when, shown once, revoked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.dashboard import format as fmt
from service.dashboard import forms
from service.dashboard.actions import Action
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery, page_of
from service.dashboard.pages.admin.part import SHOWN, AdminPart, CreationNotice, path, standing
from service.dashboard.tables import Column, Row, table
from service.people.keys.schemas import KeyCreate, KeyCreated, KeyView, key_view
from service.people.permissions import SCOPES, Scope
from service.store.database.models import ApiKey, User

NAME = "keys"
GRANTS: dict[str, tuple[str, tuple[Scope, ...]]] = {
    "read": ("Read: sees jobs, runs, devices", ("read",)),
    "submit": ("Submit: also sends models, data and runs", ("read", "submit")),
    "operate": ("Operate: also looks after devices", ("read", "submit", "operate")),
    "admin": ("Administer: also people and keys", SCOPES),
}
DAY_S = 86400.0
COLUMNS = (
    Column("name", "Key", primary=True),
    Column("standing", "Standing", "state"),
    Column("scopes", "May", wrap=True, wide_only=True),
    Column("person", "Whose", wide_only=True),
    Column("expires_at", "Expires", "time", "UTC", wide_only=True),
    Column("last_used_at", "Last used", "time", "UTC", wide_only=True),
    Column("created_at", "Made", "time", "UTC", wide_only=True),
    Column("id", "Its id", "code", wide_only=True),
)


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with the organisation's keys."""
    listing = page_of(session, ApiKey, ApiKey.id, query, names=(ApiKey.name,))
    names = _names(session, [key.user_id for key in listing.rows])
    rows = [_row(key_view(key), names) for key in listing.rows]
    keys = table(NAME, "API keys, newest first", COLUMNS, rows)
    lead = "What programs and people call the farm with. A secret is shown once, when the key is made; the farm keeps \
none. Give each program its own, with no more rights than it needs."
    return AdminPart(
        NAME,
        "API keys",
        lead,
        keys,
        "No key yet: make one below.",
        (form or blank(session),),
        created,
        listing.message("API key"),
        **asdict(listing.links(NAME)),
    )


def _names(session: Session, ids: Sequence[str | None]) -> dict[str, str]:
    """Returns the names of people, by their ids."""
    distinct = {user_id for user_id in ids if user_id is not None}
    return dict(session.execute(select(User.id, User.name).where(User.id.in_(distinct))).all())


def blank(session: Session) -> Form:
    """Returns the form for a new one."""
    still = select(User).where(User.removed_at.is_(None)).order_by(User.name)
    people = session.scalars(still.limit(SHOWN + 1)).all()
    fields = [
        Field(
            "name", "Name", required=True, hint="What uses it, so that you know what to revoke, such as ci on build-3"
        ),
        Field("may", "May", "select", "submit", tuple((name, words) for name, (words, _) in GRANTS.items())),
        Field("days", "Days until it expires", "number", "90", hint="Empty: it never does", max_length=12),
    ]
    if people:
        choices = (("", "nobody's: a program's"), *((person.id, person.name) for person in people[:SHOWN]))
        hint = f"The first {SHOWN} by name; POST /keys takes the id of anybody" if len(people) > SHOWN else ""
        fields.append(Field("user", "Whose", "select", options=choices, hint=hint))
    return Form("new-key", "Make a key", path(NAME), "Make the key", tuple(fields))


def body(typed: Typed) -> KeyCreate:
    """Reads the request out of the form. Raises: Invalid."""
    grant = GRANTS.get(typed.text("may"), GRANTS["read"])
    values = {"name": typed.text("name"), "scopes": list(grant[1]), **typed.given("user")}
    lifetime_s = forms.number(typed, "days", times=DAY_S)
    return forms.body_of(KeyCreate, values | ({} if lifetime_s is None else {"lifetime_s": lifetime_s}))


def creation_notice(key: KeyCreated) -> CreationNotice:
    """Returns the notice with the secret that its maker must keep now."""
    until = f"It expires on {fmt.clock(key.expires_at)} UTC." if key.expires_at else "It never expires."
    return CreationNotice(
        f"The key {key.name} is made",
        (("Its secret", key.secret), ("Use it in a shell", f"export POCKFARM_API_KEY={key.secret}")),
        f"{until} Copy the secret now: no page and no answer shows it again.",
    )


def _row(key: KeyView, names: dict[str, str]) -> Row:
    is_over = key.expires_at is not None and key.expires_at <= time.time()
    now = standing(ended=key.revoked_at is not None, expired=is_over)
    if now == "in force" and key.unconfirmed_at is not None:
        now = "unconfirmed"
    values = {
        "name": key.name,
        "standing": now,
        "scopes": ", ".join(key.scopes),
        "person": names.get(key.user_id or ""),
        "expires_at": fmt.iso(key.expires_at),
        "last_used_at": fmt.iso(key.last_used_at),
        "created_at": fmt.iso(key.created_at),
        "id": key.id,
    }
    sure = "It stops working at once, and so does every dashboard that was opened with it. It cannot be brought back."
    revoke = Action(path(NAME, key.id, "revoke"), "Revoke", sure=sure, of=key.name, is_grave=True)
    return Row(
        values, anchor=key.id, dimmed=now != "in force", actions=(revoke,) if now in ("in force", "unconfirmed") else ()
    )
