"""The people of an organisation, to whom keys may belong."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy.orm import Session

from service.dashboard import format as fmt
from service.dashboard import forms
from service.dashboard.actions import Action
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery, page_of
from service.dashboard.pages.admin.part import AdminPart, CreationNotice, path, standing
from service.dashboard.tables import Column, Row, table
from service.people.users.schemas import UserCreate
from service.store.database.models import User

NAME = "people"
COLUMNS = (
    Column("name", "Person", primary=True),
    Column("standing", "Standing", "state"),
    Column("created_at", "Added", "time", "UTC", wide_only=True),
    Column("id", "Id", "code", wide_only=True),
)


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with everybody, and the form for one more."""
    listing = page_of(session, User, User.id, query, names=(User.name,))
    people = table(NAME, "People, newest first", COLUMNS, [_row(user) for user in listing.rows])
    lead = "Keys may belong to a person; when one leaves, removing the person ends all of those keys at once."
    return AdminPart(
        NAME,
        "People",
        lead,
        people,
        "Nobody yet: add a person below, then make keys for them.",
        (form or blank(),),
        created,
        listing.message("person", "people"),
        **asdict(listing.links(NAME)),
    )


def blank() -> Form:
    """Returns the form for a new one."""
    return Form("new-person", "Add a person", path(NAME), "Add", (Field("name", "Name", required=True),))


def body(typed: Typed) -> UserCreate:
    """Reads the request out of the form. Raises: Invalid."""
    return forms.body_of(UserCreate, {"name": typed.text("name")})


def _row(user: User) -> Row:
    is_gone = bool(user.removed_at)
    values = {
        "name": user.name,
        "standing": standing(ended=is_gone, expired=False, words="removed"),
        "created_at": fmt.iso(user.created_at),
        "id": user.id,
    }
    sure = "None of their keys works from then on. What they sent stays."
    remove = Action(path(NAME, user.id, "remove"), "Remove", sure=sure, of=user.name, is_grave=True)
    return Row(values, anchor=user.id, dimmed=is_gone, actions=() if is_gone else (remove,))
