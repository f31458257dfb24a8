"""The names of devices: an agent gives the name as it enrols, and an operator may give another."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import DEVICE_NAME, DEVICE_NAME_WORDS
from service.base.problems import Conflict, Invalid
from service.devices.blame import note
from service.devices.service import owned_device
from service.store.database.models import Device, Organisation
from service.store.database.scope import EVERYONES

LIKE_IDS = ("dev_", "local")
"""Beginnings of what names a device by its id."""


def rename(session: Session, device_id: str, name: str) -> Device:
    """Gives a device another name. Raises: NotFound, Forbidden (another's), Invalid (no name), Conflict (removed,
    taken, or its name already).
    """
    name = name.strip()
    check_name(name)
    device = owned_device(session, device_id)
    if device.state == "removed":
        raise Conflict("device.removed", "this device was removed", hint="enrol it again with a new token")
    if name == device.name:
        raise Conflict(
            "device.name-same", f"{device.id} is called {name!r} already", where="name", hint="there is nothing to do"
        )
    check_free(session, device.organisation_id, name, but=device.id)
    note(session, device.id, "renamed", f"from {device.name} to {name}")
    device.given_name = None if name == device.told_name else name
    session.flush()
    return device


def check_name(name: str) -> None:
    """Checks that it is a device name, and that nobody would read it as an id. Raises: Invalid."""
    if not DEVICE_NAME.fullmatch(name):
        raise Invalid(
            "device.name",
            f"{name!r:.120} is no name of a device",
            where="name",
            hint=f"{DEVICE_NAME_WORDS}; a letter or digit first",
        )
    if name.startswith(LIKE_IDS[0]) or name == LIKE_IDS[1]:
        raise Invalid(
            "device.name",
            f"{name!r:.120} would be read as an id",
            where="name",
            hint="choose a name that does not begin with dev_, and is not local",
        )


def check_free(session: Session, organisation_id: str, name: str, *, but: str = "") -> None:
    """Checks that a device may have this name, and that no other device of the organisation has it.

    The organisation's row is held: of two who want a name one gets it. Raises: Invalid, Conflict.
    """
    check_name(name)
    whose = select(Organisation.id).where(Organisation.id == organisation_id).with_for_update()
    session.execute(whose, execution_options=dict(EVERYONES))
    namesake = who_is_called(session, organisation_id, name, but=but)
    if namesake is not None:
        raise Conflict(
            "device.name-taken",
            f"{namesake} is called {name!r}",
            where="name",
            hint="choose another name, or rename that one first",
        )


def who_is_called(session: Session, organisation_id: str, name: str, *, but: str = "") -> str | None:
    """Returns the id of another device of the organisation that has the name."""
    query = select(Device.id).where(
        Device.organisation_id == organisation_id, Device.state != "removed", Device.id != but, Device.name == name
    )
    return session.scalar(query.order_by(Device.id).limit(1))
