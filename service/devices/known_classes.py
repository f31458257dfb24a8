"""Whether a device class is one that there is, or a slip: a board under a misspelt class gets no runs of its class."""

from __future__ import annotations

import difflib

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire.classes import DEVICE_CLASSES
from service.base.problems import Forbidden, Invalid
from service.people.query import suggestion
from service.store.database.models import Device

SLIP = 0.85
"""Similarity of two names (`difflib`) from which one is taken for the other, misspelt."""


def known_classes(session: Session) -> list[str]:
    """Returns the classes of this release, and those that the organisation's devices have."""
    there = session.scalars(select(Device.device_class).where(Device.state != "removed").distinct())
    return sorted({*DEVICE_CLASSES, *there})


def check_asked(session: Session, device_class: str | None, *, is_new: bool) -> None:
    """Checks the device class of a token. Raises: Invalid for an unknown class, unless it is said to be new."""
    classes = known_classes(session)
    if device_class is None or is_new or device_class in classes:
        return
    otherwise = f"there are: {', '.join(classes)}; for a kind of board of your own say `new_class` (--new-class)"
    raise Invalid(
        "enrol.device-class-unknown",
        f"no device class is called {device_class!r:.100}",
        where="device_class",
        hint=suggestion(device_class, classes, otherwise),
    )


def check_said(session: Session, device_class: str) -> None:
    """Checks the class of a board that enrols by a token for any class. Raises: Forbidden for a class that is a known
    one, misspelt.
    """
    classes = known_classes(session)
    near = [] if device_class in classes else difflib.get_close_matches(device_class, classes, n=1, cutoff=SLIP)
    if near:
        raise Forbidden(
            "enrol.device-class-unknown",
            f"no device class is called {device_class!r:.100}",
            where="device_class",
            hint=f"did you mean {near[0]!r}? Start the agent with --class {near[0]}; "
            f"or, if it is another kind of board, enrol it by a token for {device_class:.100}",
        )
