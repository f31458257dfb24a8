"""SIGSTOP: the process is there and does nothing. For good, until a watchdog ends it; or for a while (`pause`)."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from tests.thorough.chaos.faults.fault import Harm, Wound, after, freeze
from tests.thorough.chaos.field import Field
from tests.thorough.chaos.links import until
from tests.thorough.chaos.processes import send, state_of
from tests.thorough.chaos.victims import Victim, Work, work_of

NOTICED_WITHIN_S = 40.0
UNNOTICED = "unnoticed"
PAUSE_S, LONG_PAUSE_S = 8.0, 12.0
MAY_BE_RESTARTED_S = 13.0
"""A watchdog's patience (15 s) less what may pass between two signs (2 s): nothing that was stopped for a shorter time,
from SIGSTOP to SIGCONT, may be restarted."""
WATCHED_S = 6.0
"""After the pause: two looks of any watcher."""
IN_VAIN = "restarted in vain"


def stop(field: Field, victim: Victim) -> Wound | None:
    """Stop it and leave it so. The fault is over when somebody has noticed and killed it."""
    old = {victim.part: field.pid(victim.part)} if victim.is_part else {}
    began = freeze(victim)
    if began is None:
        return None
    ended = until(lambda: all(state_of(pid) != "T" for pid in victim.pids), NOTICED_WITHIN_S)
    wound = after(field, victim, old, note=f"noticed after {time.monotonic() - began:.1f} s" if ended else UNNOTICED)
    if not ended:
        send(victim.pids, signal.SIGCONT)
    return wound


def pause(seconds: float = PAUSE_S, *, is_of_work: bool = True) -> Harm:
    """Stop it for a while and let it go on: the same process and, if it does that work alone, at the same attempt.

    `is_of_work`: False for a part that serves all while other faults go on: they may hit the same work meanwhile.
    """

    def harm(field: Field, victim: Victim) -> Wound | None:
        part = field.pid(victim.part)
        before = [work_of(field, one) for one in victim.work if is_of_work]
        stopped_at = freeze(victim)
        if stopped_at is None:
            return None
        field.stopping.wait(max(0.0, stopped_at + seconds - time.monotonic()))
        was_there = all(state_of(pid) == "T" for pid in victim.pids)
        send(victim.pids, signal.SIGCONT)
        lasted_s = time.monotonic() - stopped_at

        seen: list[str] = []

        def is_replaced() -> bool:
            # What serves one run goes with it: the rest of that may be shorter than the pause.
            is_missed = not was_there and (victim.is_part or victim.is_in_flight())
            signs = (
                ("it did not stay stopped", is_missed),
                ("another part", field.pid(victim.part) != part),
                ("another process", victim.is_replaced()),
                ("its work began anew", _anew(field, before)),
            )
            seen[:] = [what for what, is_so in signs if is_so]
            return bool(seen)

        def afterwards() -> str:
            left_s = wound.ended_at + WATCHED_S - time.monotonic()
            said = verdict(lasted_s, is_replaced=until(is_replaced, left_s, pause_s=0.5))
            return f"{said} ({', '.join(seen)})" if said else ""

        wound = after(field, victim, {}, note=f"paused for {lasted_s:.1f} s")
        return replace(wound, afterwards=afterwards)

    return harm


def verdict(lasted_s: float, *, is_replaced: bool) -> str:
    """What to say of a pause."""
    if not is_replaced:
        return ""
    return IN_VAIN if lasted_s < MAY_BE_RESTARTED_S else "restarted"


def _anew(field: Field, before: list[Work | None]) -> bool:
    """Whether work has begun once more, for its process is not the same."""
    now = [work_of(field, one.id) for one in before if one]
    return any(work.attempts > one.attempts for work, one in zip(now, filter(None, before), strict=True) if work)
