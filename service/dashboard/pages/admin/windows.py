"""Maintenance windows: times in which devices get nothing new."""

from __future__ import annotations

import time
from dataclasses import asdict

from sqlalchemy.orm import Session

from service.dashboard import addresses, forms, queries, visitors
from service.dashboard import format as fmt
from service.dashboard.actions import Action
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery, page_of
from service.dashboard.pages.admin.part import SHOWN, AdminPart, CreationNotice, path
from service.dashboard.tables import Column, Row, table
from service.devices.maintenance import service
from service.devices.maintenance.schemas import WindowCreate, WindowView
from service.store.database.models import MaintenanceWindow

NAME = "windows"
COLUMNS = (
    Column("about", "For", primary=True),
    Column("standing", "Standing", "state"),
    Column("starts_at", "Starts", "time", "UTC", wide_only=True),
    Column("ends_at", "Ends", "time", "UTC", wide_only=True),
    Column("weekly", "Every week", wide_only=True),
    Column("reason", "Why", wrap=True, wide_only=True),
    Column("id", "Its id", "code", wide_only=True),
)
EMPTY = "No window is planned. Plan one before you move or update boards: what runs goes on, nothing new starts."


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with the windows and, for operators, the form for another."""
    listing = page_of(
        session,
        MaintenanceWindow,
        MaintenanceWindow.id,
        query,
        names=(MaintenanceWindow.reason, MaintenanceWindow.device_class),
    )
    names = dict(queries.device_choices(session))
    rows = [_row(service.view(row), names) for row in listing.rows]
    lead = "In a window a device, a class of devices or all of them get no new work. What runs goes on, and nothing \
starts that could reach into it."
    offered = (form or blank(tuple(names.items())),) if visitors.current().may("operate") else ()
    windows = table(NAME, "Maintenance windows, newest first", COLUMNS, rows)
    return AdminPart(
        NAME,
        "Maintenance windows",
        lead,
        windows,
        EMPTY,
        offered,
        created,
        listing.message("window"),
        found_by="class or why",
        **asdict(listing.links(NAME)),
    )


def blank(devices: tuple[tuple[str, str], ...]) -> Form:
    """Returns the form for a new one."""
    now = time.time()
    fields = (
        Field("starts_at", "Starts, UTC", "moment", _minute(now + 3600), required=True),
        Field("ends_at", "Ends, UTC", "moment", _minute(now + 3 * 3600), required=True),
        Field("weekly", "Every week from then on", "check"),
        Field(
            "device",
            "Only this device",
            "select",
            options=(("", "all of them"), *devices[:SHOWN]),
            hint=f"The first {SHOWN} by name; POST /maintenance takes the id of any" if len(devices) > SHOWN else "",
        ),
        Field("device_class", "Only devices of class", hint="Such as raspberry-pi-4; not together with a device"),
        Field("reason", "Why", "area", max_length=1000, hint="For people: it stands where a run waits for it"),
    )
    return Form("new-window", "Plan a window", path(NAME), "Plan it", fields)


def body(typed: Typed) -> WindowCreate:
    """Reads the request out of the form. Raises: Invalid."""
    times = {name: _zoned(typed.text(name)) for name in ("starts_at", "ends_at")}
    fields = typed.given("device", "device_class", "reason")
    return forms.body_of(WindowCreate, times | fields | {"weekly": bool(typed.text("weekly"))})


def _zoned(text: str) -> str:
    """Adds the zone to a time from a browser's field, such as `2026-12-01T02:00`, which has none. The page says that
    times are in UTC.
    """
    return text if text.endswith("Z") or "+" in text else f"{text}:00Z" if len(text) == 16 else f"{text}Z"


def _minute(at: float) -> str:
    return (fmt.iso(at) or "")[:16]


def _row(window: WindowView, names: dict[str, str]) -> Row:
    now = "over" if window.next_starts_at is None else "on" if window.next_starts_at <= time.time() else "planned"
    about = names.get(window.device_id or "") or (f"class {window.device_class}" if window.device_class else "")
    values = {
        "about": about or "all devices",
        "standing": now,
        "starts_at": fmt.iso(window.next_starts_at or window.starts_at),
        "ends_at": fmt.iso(window.next_ends_at or window.ends_at),
        "weekly": "yes" if window.weekly else "no",
        "reason": window.reason or None,
        "id": window.id,
    }
    links = {"about": addresses.device(window.device_id)} if window.device_id else {}
    remove = Action(path(NAME, window.id, "remove"), "Remove", of=str(values["about"]))
    actions = (remove,) if visitors.current().may("operate") else ()
    return Row(values, links, anchor=window.id, dimmed=now == "over", actions=actions)
