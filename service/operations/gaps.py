"""Times that ran out while nobody looked: the farm was off, or its clock was set forward or back.

A board that could not be heard is not to blame, and nothing has waited for as long as the clock says. So what ran out
in a gap runs on, operators read of it in the audit log, and nothing is deleted for a while: the clock may be wrong.
Every sweeper looks for itself; what one has put right, another leaves alone.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from sqlalchemy import ColumnElement, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.base.settings import Settings
from service.people.audit.command_entries import add_entry
from service.store.database.models import HOME, LIVE_ATTEMPT_STATES, Attempt, Job, Run, Upload
from service.store.farm import Farm
from service.store.signs_of_life import GAP_S, newest

LOG = logging.getLogger(__name__)
REST_S = 3600.0
"""A longer gap keeps back for so long what deletes: time to set a clock right."""


class Gaps:
    """The gaps that a sweeper has noticed."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._looked_at: float | None = None
        self._rests_until = 0.0

    @property
    def may_delete(self) -> bool:
        """Whether no long gap has just been noticed."""
        return time.monotonic() >= self._rests_until

    def look(self) -> None:
        """Repairs what ran out since the last look. Raises: the driver's errors; then the next look tries again."""
        now = time.time()
        before = self._looked_at
        if before is None:
            with self._farm.database.read() as session:
                before = newest(session, "sweeper") or now
        if abs(now - before) > GAP_S:
            self._bridge(before, now)
        self._looked_at = now

    def _bridge(self, before: float, now: float) -> None:
        jump_s = now - before
        if abs(jump_s) > REST_S:
            self._rests_until = time.monotonic() + REST_S
        side = "on" if jump_s > 0 else "back"
        why = (
            "the farm was off or stood still, or its clock was set; what ran out meanwhile runs on"
            if jump_s > 0
            else "it was set"
        )
        rests = "" if self.may_delete else "; nothing is deleted for an hour"
        detail = f"the clock went {abs(jump_s):,.0f} s {side} since the last look: {why}{rests}. Check the clock (NTP)"
        LOG.error("%s", detail)
        with self._farm.database.transaction() as session:
            (_forward if jump_s > 0 else _back)(session, self._farm.settings, now, abs(jump_s))
            add_entry(session, HOME, "farm clock jumped", detail=detail)


def _forward(session: Session, settings: Settings, now: float, jump_s: float) -> None:
    def ran_out(column: InstrumentedAttribute[Any], grace_s: float = 0.0) -> ColumnElement[bool]:
        return column.between(now - jump_s - grace_s, now)

    is_live = Attempt.state.in_(LIVE_ATTEMPT_STATES)
    for change in (
        update(Attempt)
        .where(is_live, ran_out(Attempt.lease_expires_at))
        .values(lease_expires_at=now + settings.lease_s),
        update(Attempt)
        .where(is_live, ran_out(Attempt.deadline_at, settings.lease_s))
        .values(deadline_at=Attempt.deadline_at + jump_s + settings.lease_s),
        update(Job)
        .where(Job.state == "compiling", ran_out(Job.lease_expires_at))
        .values(lease_expires_at=now + settings.compile_lease_s),
        update(Job)
        .where(Job.state == "queued", ran_out(Job.queue_deadline_at))
        .values(queue_deadline_at=Job.queue_deadline_at + jump_s),
        update(Run)
        .where(Run.state == "queued", ran_out(Run.queue_deadline_at))
        .values(queue_deadline_at=Run.queue_deadline_at + jump_s),
        update(Upload).where(ran_out(Upload.expires_at)).values(expires_at=Upload.expires_at + jump_s),
    ):
        session.execute(change)


def _back(session: Session, settings: Settings, now: float, jump_s: float) -> None:
    is_live = Attempt.state.in_(LIVE_ATTEMPT_STATES)
    for change in (
        update(Attempt)
        .where(is_live, Attempt.lease_expires_at > now + settings.lease_s)
        .values(lease_expires_at=now + settings.lease_s),
        update(Attempt)
        .where(is_live, Attempt.created_at > now)
        .values(created_at=Attempt.created_at - jump_s, deadline_at=Attempt.deadline_at - jump_s),
        update(Job)
        .where(Job.state == "compiling", Job.lease_expires_at > now + settings.compile_lease_s)
        .values(lease_expires_at=now + settings.compile_lease_s),
    ):
        session.execute(change)
