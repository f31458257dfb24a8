"""SIGSTOP: the process is there and does nothing. For good, until a watchdog ends it; or for a while (`paused`)."""

from __future__ import annotations

import signal
import time

from tests.chaos.faults.fault import Wound, after
from tests.chaos.field import Field
from tests.chaos.links import until
from tests.chaos.processes import send, state_of
from tests.chaos.victims import Victim

NOTICED_WITHIN_S = 40.0
PAUSE_S = 8.0
"""Shorter than any watchdog's patience: nothing may be restarted."""


def stop(field: Field, victim: Victim) -> Wound | None:
    """Stop it and leave it so. The fault is over when somebody has noticed and killed it."""
    if not _stop(victim):
        return None
    began, old = time.monotonic(), {victim.part: field.pid(victim.part)} if victim.is_part else {}
    ended = until(lambda: all(state_of(pid) != "T" for pid in victim.pids), NOTICED_WITHIN_S)
    wound = after(field, victim, old, note=f"noticed after {time.monotonic() - began:.1f} s" if ended else "unnoticed")
    if not ended:
        send(victim.pids, signal.SIGCONT)
    return wound


def pause(field: Field, victim: Victim) -> Wound | None:
    """Stop it for a while and let it go on."""
    if not _stop(victim):
        return None
    field.stopping.wait(PAUSE_S)
    is_there = all(state_of(pid) == "T" for pid in victim.pids)
    send(victim.pids, signal.SIGCONT)
    return after(field, victim, {}, note="" if is_there else "restarted in vain")


def _stop(victim: Victim) -> bool:
    send(victim.pids, signal.SIGSTOP)
    until(lambda: all(state_of(pid) in ("T", "") for pid in victim.pids), 2, pause_s=0.01)  # delivered
    if victim.is_in_flight():
        return True
    send(victim.pids, signal.SIGCONT)
    return False
