"""SIGKILL: the process is gone in the middle of what it did."""

from __future__ import annotations

import signal

from tests.thorough.chaos.faults.fault import Wound, after, freeze
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.processes import send
from tests.thorough.chaos.victims import Victim


def kill(field: Field, victim: Victim) -> Wound | None:
    """Stop it, see that its work is still in flight, kill it."""
    if freeze(victim) is None:
        return None
    send(victim.pids, signal.SIGKILL)
    old = {victim.part: field.pid(victim.part)} if victim.is_part else {}
    return after(field, victim, old)
