"""Doorbells: written in the transaction of the row they are about, rung after its commit, kept until they are sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.database.engine import Database
from service.store.database.models import Outbox
from service.store.queue import Queue

LOG = logging.getLogger(__name__)
_BATCH = 100


def ring_after_commit(session: Session, task: str, argument: str) -> None:
    """Queues a doorbell for `task` about the row `argument`."""
    row = Outbox(task=task, argument=argument)
    session.add(row)
    session.info.setdefault("doorbells", []).append(row)


class Bell:
    """Sends what is in the outbox."""

    def __init__(self, database: Database, queue: Queue) -> None:
        self._database = database
        self._queue = queue

    def after_commit(self, session: Session) -> None:
        """Rings what this session queued. A failure leaves it to the sweeper."""
        rows = session.info.pop("doorbells", [])
        if rows:
            self._send([(row.id, row.task, row.argument) for row in rows])

    def ring_pending(self, before: float) -> int:
        """Rings what was written before `before` and is still here. Returns how many were sent."""
        with self._database.read() as session:
            query = select(Outbox.id, Outbox.task, Outbox.argument).where(Outbox.created_at < before)
            rows = list(session.execute(query.order_by(Outbox.id).limit(_BATCH)))
        return self._send(rows) if rows else 0

    def _send(self, rows: Sequence[tuple[int, str, str]]) -> int:
        sent_ids = []
        try:
            for row_id, task, argument in rows:
                self._queue.ring(task, argument)
                sent_ids.append(row_id)
        except Exception as error:  # any transport's: the row stays, the sweeper tries again
            LOG.warning("could not ring %d doorbell(s): %s", len(rows) - len(sent_ids), error)
        if sent_ids:
            with self._database.transaction() as session:
                session.execute(delete(Outbox).where(Outbox.id.in_(sent_ids)))
        return len(sent_ids)
