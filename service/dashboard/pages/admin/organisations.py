"""Tenants of the farm: founded with a first key, closed. For the farm's own administrators."""

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
from service.operations.organisations.schemas import OrganisationCreate
from service.people.keys.schemas import KeyCreated
from service.store.database.models import HOME, Organisation

NAME = "organisations"
COLUMNS = (
    Column("name", "Organisation", primary=True),
    Column("standing", "Standing", "state"),
    Column("limits", "Limits of its own", wrap=True, wide_only=True),
    Column("created_at", "Founded", "time", "UTC", wide_only=True),
    Column("id", "Id", "code", wide_only=True),
)


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with every tenant and the form for another."""
    listing = page_of(session, Organisation, Organisation.id, query, names=(Organisation.name,))
    organisations = table(
        NAME, "Organisations, newest first", COLUMNS, [_row(organisation) for organisation in listing.rows]
    )
    lead = "Each has its own people, keys, models, data and runs, and sees nothing of the others. The page of one has \
its limits, what it uses of them, and how long what it has stays."
    return AdminPart(
        NAME,
        "Organisations",
        lead,
        organisations,
        "Only the farm's own so far.",
        (form or blank(),),
        created,
        listing.message("organisation"),
        **asdict(listing.links(NAME)),
    )


def blank() -> Form:
    """Returns the form for a new one."""
    note = "Its first key is an administrator's; it is shown once, for you to hand on."
    fields = (Field("name", "Name", required=True),)
    return Form(
        "new-organisation", "Found an organisation", path(NAME), "Found it and make its first key", fields, note
    )


def body(typed: Typed) -> OrganisationCreate:
    """Reads the request out of the form. Raises: Invalid."""
    return forms.body_of(OrganisationCreate, {"name": typed.text("name")})


def creation_notice(name: str, key: KeyCreated) -> CreationNotice:
    """Returns the notice with the first key, to be handed on."""
    note = "Hand it to their administrator: it makes all other keys. No page and no answer shows it again."
    return CreationNotice(f"The organisation {name} is founded", (("Its administrator's key", key.secret),), note)


def _row(organisation: Organisation) -> Row:
    is_closed = organisation.closed_at is not None
    limits = ", ".join(
        f"{name} {'none' if most is None else f'{most:g}'}" for name, most in organisation.quotas.items()
    )
    values = {
        "name": organisation.name,
        "standing": standing(ended=is_closed, expired=False, words="closed"),
        "limits": limits or None,
        "created_at": fmt.iso(organisation.created_at),
        "id": organisation.id,
    }
    sure = (
        "None of its keys works from then on, and its devices are removed; what it began on others goes on. "
        "It cannot be opened again here."
    )
    close = Action(path(NAME, organisation.id, "close"), "Close", sure=sure, of=organisation.name, is_grave=True)
    links = {"name": path(NAME, organisation.id)}
    return Row(
        values,
        links,
        anchor=organisation.id,
        dimmed=is_closed,
        actions=() if is_closed or organisation.id == HOME else (close,),
    )
