"""Writes and reads events. Whoever adds one holds the row of its subject (updated in the same transaction), so that
events of one subject become visible in the order of their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.models import Event


def add(session: Session, subject: str, kind: str, **body: Any) -> None:
    """Record that something happened to the job or run `subject`."""
    session.add(Event(subject=subject, kind=kind, body=body))


def add_many(session: Session, subject: str, events: Sequence[tuple[float, str, Mapping[str, Any]]]) -> None:
    """Record several (at, kind, body), in order."""
    session.add_all([Event(subject=subject, at=at, kind=kind, body=dict(body)) for at, kind, body in events])


def after(session: Session, subject: str, last_id: int, *, limit: int = 500) -> Sequence[Event]:
    """Events of `subject` after the event `last_id`, in order."""
    query = select(Event).where(Event.subject == subject, Event.id > last_id)
    return session.scalars(query.order_by(Event.id).limit(limit)).all()
