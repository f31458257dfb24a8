"""The effect of a request to cancel, in words that follow an id: a second one, and one that is late, say so."""

from __future__ import annotations

from service.store.database.models import OPEN_JOB_STATES, OPEN_RUN_STATES, Job, Run

OPEN = frozenset((*OPEN_RUN_STATES, *OPEN_JOB_STATES))


def effect_of(row: Run | Job) -> str:
    """Describes the effect on a row that nobody has touched yet."""
    if row.state == "cancelled":
        return "was cancelled before"
    if row.state not in OPEN:
        return f"had ended before: {row.state}"
    if row.cancel_requested:
        return "was asked to stop before, and does when whoever works on it hears of it"
    return "is cancelled" if row.state == "queued" else "is asked to stop"
