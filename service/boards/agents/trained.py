"""Weights that attempts send: of each attempt the last ones, within what its bundle can train, and few times over."""

from __future__ import annotations

from sqlalchemy import delete, exists, func, or_, select
from sqlalchemy.orm import Session

from service.base.problems import Invalid
from service.boards.agents.enrolment import Agent
from service.boards.agents.recording import find_attempt, may_still_report, stale
from service.people.holdings import service as holdings
from service.store import events
from service.store.database.models import Attempt, Bundle, Event, Holding, Run
from service.store.garbage.noting import lock_files
from service.store.storage import StoredFile
from service.work.runs import checkpoints

MOST_OTHERS = 4
"""Times that an attempt may send other weights than before: an agent that was cut off may do so, and begin anew."""
_REPLACED = "replaced_weights"
"""Key in the event that reports a replacement."""


def most_bytes(session: Session, agent: Agent, lease_token: str, digest: str) -> int:
    """Returns the size limit of the weights that the attempt is about to send. Raises: Conflict (not the agent's, or
    its result cannot count), Invalid (others, too often).
    """
    attempt = _reporting_attempt(session, agent, lease_token)
    run = session.get_one(Run, attempt.run_id)
    _check_count(session, attempt, digest)
    return checkpoints.most_state_bytes(session.get_one(Bundle, run.bundle_digest))


def take_weights(session: Session, agent: Agent, lease_token: str, stored: StoredFile) -> str | None:
    """Records the weights that the attempt uploaded. Returns the digest of the weights that it sent before, if they are
    to be removed.

    Raises: Conflict, Invalid.
    """
    attempt = _reporting_attempt(session, agent, lease_token)
    _check_count(session, attempt, stored.digest)
    run = session.scalars(select(Run).where(Run.id == attempt.run_id).with_for_update()).one()
    before = attempt.weights_digest if attempt.weights_digest != stored.digest else None
    for digest in sorted({stored.digest, before or stored.digest}):
        lock_files(session, digest)
    attempt.weights_digest, attempt.weights_bytes = stored.digest, stored.size_bytes
    holdings.hold(session, "weights", stored.digest, size_bytes=stored.size_bytes, organisation_id=run.organisation_id)
    session.flush()
    if before is None:
        return None
    message = f"other weights than before were sent: {stored.digest}"
    events.add(session, run.id, "log", message=message, attempt=attempt.n, **{_REPLACED: before})
    return before if _let_go(session, run.organisation_id, before) else None


def _reporting_attempt(session: Session, agent: Agent, lease_token: str) -> Attempt:
    attempt = find_attempt(session, agent, lease_token)
    if not may_still_report(session, attempt):
        raise stale(f"the attempt has ended: {attempt.state}")
    return attempt


def _check_count(session: Session, attempt: Attempt, digest: str) -> None:
    if attempt.weights_digest in (None, digest):
        return
    conditions = (
        Event.subject == attempt.run_id,
        Event.kind == "log",
        Event.body[_REPLACED].as_string().is_not(None),
        Event.body["attempt"].as_integer() == attempt.n,
    )
    count = session.scalar(select(func.count()).select_from(Event).where(*conditions)) or 0
    if count >= MOST_OTHERS:
        raise Invalid(
            "limits.weights",
            f"the attempt has sent other weights {count} times, the limit is {MOST_OTHERS}",
            where="weights",
            cause="device",
            hint="report with those that were sent last",
        )


def _let_go(session: Session, organisation_id: str, digest: str) -> bool:
    """Releases these weights for the organisation, unless another attempt sent them too or a run begins from them.
    Returns whether it did.
    """
    was_sent = exists().where(Attempt.run_id == Run.id, Attempt.weights_digest == digest)
    named = or_(Run.weights_digest == digest, Run.trained_weights_digest == digest, was_sent)
    if session.scalar(select(exists().where(Run.organisation_id == organisation_id, named))):
        return False
    session.execute(
        delete(Holding).where(
            Holding.organisation_id == organisation_id,
            Holding.kind == "weights",
            Holding.digest == digest,
            Holding.pinned_at.is_(None),
        )
    )
    return True
