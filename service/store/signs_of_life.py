"""Signs of life in the database, by which one part of the farm knows of the others, on whatever machine they are."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Literal

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.store.database.engine import Database
from service.store.database.models import SignOfLife

LOG = logging.getLogger(__name__)
Kind = Literal["api", "sweeper", "worker", "courier"]
INTERVAL_S = 5.0
"""Seconds between two signs of a process."""
FRESH_S = 30.0
"""Older than this, it is taken for dead or hung."""
FORGET_AFTER_S = 3600.0
GAP_S = 30.0
"""A longer time without a sign of any sweeper is a gap: the farm was off, or its clock was set."""


def own_name(kind: Kind) -> str:
    """Names this process; a container's process number says little, so the machine's name is part of it."""
    return f"{kind}@{socket.gethostname()[:150]}:{os.getpid()}"


def give_sign(session: Session, kind: Kind, *, slots: int = 0) -> None:
    """Records that this process lives, and how many compiles it runs at once. Only the process itself writes its
    row.
    """
    now, name = time.time(), own_name(kind)
    row = update(SignOfLife).where(SignOfLife.name == name).values(seen_at=now, slots=slots).returning(SignOfLife.name)
    if session.scalar(row) is None:
        session.add(SignOfLife(name=name, kind=kind, seen_at=now, slots=slots))


def newest(session: Session, kind: Kind) -> float | None:
    """Returns when any process of the kind last gave a sign; None if there is none."""
    return session.scalar(select(func.max(SignOfLife.seen_at)).where(SignOfLife.kind == kind))


def count_alive(session: Session, kind: Kind) -> int:
    """Returns how many processes of the kind have a fresh sign."""
    fresh = (SignOfLife.kind == kind, SignOfLife.seen_at >= time.time() - FRESH_S)
    return session.scalar(select(func.count()).select_from(SignOfLife).where(*fresh)) or 0


def count_slots(session: Session) -> int:
    """Returns how many compiles all workers with a fresh sign run at once."""
    fresh = (SignOfLife.kind == "worker", SignOfLife.seen_at >= time.time() - FRESH_S)
    return session.scalar(select(func.sum(SignOfLife.slots)).where(*fresh)) or 0


def forget_silent(session: Session) -> None:
    """Deletes signs that are an hour old, but the newest of a sweeper: a gap begins there."""
    last = newest(session, "sweeper") or 0.0
    is_old = (
        SignOfLife.seen_at < time.time() - FORGET_AFTER_S,
        (SignOfLife.kind != "sweeper") | (SignOfLife.seen_at < last),
    )
    session.execute(delete(SignOfLife).where(*is_old))


def give_sign_to(url: str, kind: Kind, *, slots: int) -> None:
    """Gives the sign on a connection that is closed again: for a process that forks others."""
    database = Database(url)
    try:
        with database.transaction() as session:
            give_sign(session, kind, slots=slots)
    finally:
        database.close()


class Signs:
    """Gives this process's sign when the last is `INTERVAL_S` old."""

    def __init__(self, database: Database, kind: Kind) -> None:
        self._database = database
        self._kind: Kind = kind
        self._next_s = 0.0

    def give(self) -> None:
        """Gives the sign if it is time. Raises: the driver's errors; then the next call tries again."""
        if time.monotonic() < self._next_s:
            return
        with self._database.transaction() as session:
            give_sign(session, self._kind)
            forget_silent(session)
        self._next_s = time.monotonic() + INTERVAL_S


class ThreadedSigns:
    """Gives the signs of a process that forks others and must not wait: if it waited for a database that hangs, it
    would itself look hung.

    One thread at a time, a connection of its own each time; what fails is logged, and tried again after `INTERVAL_S`.
    """

    def __init__(self, url: str, kind: Kind) -> None:
        self.slots = 0
        """Compiles at once, as soon as that is known."""
        self._url = url
        self._kind: Kind = kind
        self._next_s = 0.0
        self._thread: threading.Thread | None = None

    def give(self) -> None:
        """Begins to give the sign, unless that was just done or is still under way."""
        if time.monotonic() < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = time.monotonic() + INTERVAL_S
        self._thread = threading.Thread(target=self._give, name="sign", daemon=True)
        self._thread.start()

    def _give(self) -> None:
        try:
            give_sign_to(self._url, self._kind, slots=self.slots)
        except Exception:  # whatever a driver raises: the process lives all the same
            LOG.exception("could not give a sign of life")
