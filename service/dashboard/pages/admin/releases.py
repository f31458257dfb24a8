"""Releases of the agent: what the farm offers to devices that update themselves, widened or halted."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy.orm import Session

from service.boards.releases import publishing
from service.boards.releases.schemas import ReleaseCreate, ReleaseView
from service.dashboard import format as fmt
from service.dashboard import forms
from service.dashboard.actions import Action
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery, page_of
from service.dashboard.pages.admin.part import AdminPart, CreationNotice, path
from service.dashboard.tables import Column, Row, Value, table
from service.store.database.models import AgentRelease

NAME = "releases"
MOST = 30
"""Most releases on a page: the devices of each are counted."""
COLUMNS = (
    Column("version", "Agent", primary=True),
    Column("standing", "Standing", "state"),
    Column("done", "Devices on it", "number", wide_only=True),
    Column("given", "Under way", "number", wide_only=True),
    Column("failed", "Failed", "number", wide_only=True),
    Column("reach", "For", wrap=True, wide_only=True),
    Column("why", "Halted because", wrap=True, wide_only=True),
    Column("created_at", "Offered", "time", "UTC", wide_only=True),
    Column("id", "Its id", "code", wide_only=True),
)


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with the newest releases, and the form that offers the farm's agent."""
    listing = page_of(session, AgentRelease, AgentRelease.id, query, names=(AgentRelease.version,), most=MOST)
    releases = table(
        NAME, "Releases, newest first", COLUMNS, [_row(publishing.view(session, row)) for row in listing.rows]
    )
    lead = "Devices that update themselves take the newest release that is for them, try it, and go back if it fails. \
The first failures halt a release by themselves."
    return AdminPart(
        NAME,
        "Agent releases",
        lead,
        releases,
        "No release yet: offer the farm's own agent below.",
        (form or blank(),),
        created,
        listing.message("release"),
        found_by="version",
        **asdict(listing.links(NAME)),
    )


def blank() -> Form:
    """Returns the form for a new one."""
    fields = (
        Field("count", "To so many devices at first", "number", "1", max_length=8, hint="Empty: to all at once"),
        Field("where", "Only to devices with the tag", hint="KEY or KEY=VALUE; empty: to any"),
    )
    return Form("new-release", "Offer the farm's own agent", path(NAME), "Offer it", fields)


def body(typed: Typed) -> ReleaseCreate:
    """Reads the request out of the form. Raises: Invalid."""
    where = {"where": [typed.text("where")]} if typed.text("where") else {}
    return forms.body_of(ReleaseCreate, {**typed.given("count"), **where})


def _row(release: ReleaseView) -> Row:
    reach = "all devices" if release.most_devices is None else fmt.plural(release.most_devices, "device")
    values: dict[str, Value] = {
        "version": release.version,
        "standing": release.state,
        "done": release.done,
        "given": release.given,
        "failed": release.failed,
        "reach": " with ".join([reach, *release.conditions]),
        "why": release.halt_reason or None,
        "created_at": fmt.iso(release.created_at),
        "id": release.id,
    }
    is_halted = release.state == "halted"
    widen = Action(path(NAME, release.id, "widen"), "Offer to all", of=release.version)
    halt = Action(
        path(NAME, release.id, "halt"),
        "Halt",
        of=release.version,
        is_grave=True,
        sure="No more devices get it; those that have it keep it.",
    )
    actions = () if is_halted else (widen, halt) if release.most_devices is not None else (halt,)
    return Row(values, anchor=release.id, dimmed=is_halted, actions=actions)
