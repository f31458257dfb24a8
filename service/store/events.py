"""Writes and reads events. Whoever adds one holds the row of its subject (updated in the same transaction), so that
events of one subject become visible in the order of their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database.models import Event


def add(session: Session, subject: str, kind: str, **body: Any) -> None:
    """Records that something happened to the job or run `subject`."""
    session.add(Event(subject=subject, kind=kind, body=body))


def add_many(session: Session, subject: str, events: Sequence[tuple[float, str, Mapping[str, Any]]]) -> None:
    """Records several (at, kind, body), in order."""
    session.add_all([Event(subject=subject, at=at, kind=kind, body=dict(body)) for at, kind, body in events])


def newest_body(session: Session, subject: str) -> dict[str, Any] | None:
    """Returns the body of the subject's last event; None if it has none."""
    newest = select(Event.body).where(Event.subject == subject).order_by(Event.id.desc()).limit(1)
    return session.scalar(newest)


@dataclass(slots=True)
class Reader:
    """Events of one subject in order, from the `seen`-th on.

    To readers an event's id is its number within its subject: ids of rows count what happens on the whole farm.
    """

    subject: str
    position: int
    _row: int | None = None
    """Id of the last row seen."""

    def next(self, session: Session, *, limit: int = 500) -> list[tuple[int, Event]]:
        """Returns the events that follow, with their numbers; a number that the subject has not reached begins anew."""
        if self._row is None:
            self._row = self._place(session)
        query = select(Event).where(Event.subject == self.subject, Event.id > self._row)
        rows = session.scalars(query.order_by(Event.id).limit(limit)).all()
        numbered = list(enumerate(rows, self.position + 1))
        if rows:
            self.position, self._row = self.position + len(rows), rows[-1].id
        return numbered

    def _place(self, session: Session) -> int:
        ids = select(Event.id).where(Event.subject == self.subject).order_by(Event.id)
        if self.position:
            row = session.scalar(ids.offset(self.position - 1).limit(1))
            if row is not None:
                return row
            self.position = 0
        return 0
