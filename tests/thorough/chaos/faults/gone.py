"""A board that never comes back: killed in the middle of a run, and not started again for as long as it takes."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import replace

from tests.thorough.chaos.faults.fault import Wound, freeze
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.processes import send
from tests.thorough.chaos.victims import Victim, goes_on, work_of


def vanish(field: Field, victim: Victim) -> Wound | None:
    """Its run must be on another board within the lease and some seconds."""
    held = field.topology.held(victim.part)
    held.touch()
    if freeze(victim) is None:
        held.unlink()
        return None
    send(victim.pids, signal.SIGKILL)
    ended_at, before = time.monotonic(), work_of(field, victim.work[0])
    if before is not None:
        before = replace(before, done=math.inf)  # what the dead board had sent is no recovery, another attempt is

    def has_recovered() -> bool:
        if before is not None and goes_on(field, before):
            held.unlink(missing_ok=True)
            return True
        return False

    return Wound(victim.evidence, ended_at, has_recovered)
