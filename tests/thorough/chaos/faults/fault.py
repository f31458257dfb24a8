"""What every kind of fault gives back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.processes import send, state_of
from tests.thorough.chaos.victims import Victim, Work, goes_on, work_of


@dataclass(frozen=True)
class Wound:
    """A confirmed fault, once it is over."""

    evidence: str
    ended_at: float
    """Monotonic."""
    has_recovered: Callable[[], bool]
    note: str = ""
    afterwards: Callable[[], str] = str
    """What else there is to say, once it has recovered; may take some seconds."""


Harm = Callable[[Field, Victim], Wound | None]


def freeze(victim: Victim) -> float | None:
    """Stop it, and see that it is still there and its work in flight; when it was sent SIGSTOP, monotonic.

    None: it was not so, and goes on. To ask the database may take long, and the victim is stopped meanwhile.
    """
    stopped_at = time.monotonic()
    send(victim.pids, signal.SIGSTOP)
    until(lambda: all(state_of(pid) in ("T", "") for pid in victim.pids), 2, pause_s=0.01)  # delivered, or gone
    if victim.pids and all(state_of(pid) == "T" for pid in victim.pids) and victim.is_in_flight():
        return stopped_at
    send(victim.pids, signal.SIGCONT)
    return None


def after(field: Field, victim: Victim, old: dict[str, int | None], *, note: str = "") -> Wound:
    """The wound of a victim whose fault ends now: its work must go on, and its part must be up."""
    ended_at = time.monotonic()
    work: dict[str, Work | None] = {one: work_of(field, one) for one in victim.work}

    def has_recovered() -> bool:
        for one, before in work.items():
            if before is None:  # the database was away when the fault ended
                work[one] = work_of(field, one)
                return False
        is_back = all(field.is_up(part) and field.pid(part) not in (None, pid) for part, pid in old.items())
        return is_back and all(goes_on(field, before) for before in work.values() if before)

    return Wound(victim.evidence, ended_at, has_recovered, note)
