"""A disk that is full while work goes on: a board's, that of the stored files, or the database's."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from tests.thorough.chaos.faults.fault import Wound, after
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.victims import Victim

SECONDS = 8.0
FELT_WITHIN_S = 20.0


def fill(field: Field, victim: Victim) -> Wound | None:
    """A board: write until there is no room left, and take it back after a while."""
    ballast = field.small_disks[victim.part] / "ballast"
    if not victim.is_in_flight():
        return None
    try:
        is_full = _fill(ballast)
        field.stopping.wait(SECONDS)
    finally:
        ballast.unlink(missing_ok=True)
    return after(field, victim, {}) if is_full else None


def fill_farm(field: Field, victim: Victim) -> Wound | None:
    """A disk of the farm: it counts if somebody was told that there is no room."""
    ballast, before = field.small_disks[victim.part] / "ballast", field.no_room()
    if not victim.is_in_flight():
        return None
    try:
        is_full = _fill(ballast)
        is_felt = until(lambda: field.no_room() > before or field.stopping.is_set(), FELT_WITHIN_S)
        field.stopping.wait(SECONDS)
        _fill(ballast)
    finally:
        ballast.unlink(missing_ok=True)
    told = field.no_room() - before
    wound = after(field, victim, {})
    evidence = f"{victim.evidence}; {told} requests refused"
    return Wound(evidence, wound.ended_at, wound.has_recovered, wound.note) if is_full and is_felt else None


def _fill(ballast: Path) -> bool:
    """Whether not one byte more can be written."""
    with ballast.open("ab", buffering=0) as file:
        for block in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * block):
                    pass
        try:
            file.write(b"x")
        except OSError as error:
            return error.errno == errno.ENOSPC
    return False
