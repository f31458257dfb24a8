"""A board's disk that is full while a run goes on."""

from __future__ import annotations

import contextlib
import errno

from tests.chaos.faults.fault import Wound, after
from tests.chaos.field import Field
from tests.chaos.victims import Victim

SECONDS = 10.0


def fill(field: Field, victim: Victim) -> Wound | None:
    """Write until there is no room left, and take it back after a while."""
    ballast = field.topology.agent_state(victim.part) / "ballast"
    if victim.part not in field.small_disks or not victim.is_in_flight():
        return None
    is_full = False
    try:
        with ballast.open("wb", buffering=0) as file:
            for block in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * block):
                        pass
            try:
                file.write(b"x")
            except OSError as error:
                is_full = error.errno == errno.ENOSPC
        field.stopping.wait(SECONDS)
    finally:
        ballast.unlink(missing_ok=True)
    return after(field, victim, {}) if is_full else None
