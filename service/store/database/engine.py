"""The engine and the session type, the same for SQLite and PostgreSQL, API and workers.

Writers commit at the edge: `with database.transaction() as session:` commits once, at its end. On SQLite it starts with
BEGIN IMMEDIATE (a deferred transaction that writes later can fail with SQLITE_BUSY whatever the time-out); reads use
`database.read()`, which never writes.

How many threads of a process use the database at the same time.

A request is many short statements with Python between them, and Python runs one thread at a time: with dozens of
requests in their transactions each waits for all the others after each statement, holds its locks meanwhile, and more
connections are opened than are kept. A few at once, one after the other, are done sooner.
"""

from __future__ import annotations

import copy
import logging
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.orm import Session

from service.base.private import tighten_database
from service.store.database.memory import MEMORY, Memory, changed_tables, watch_changes
from service.store.database.models import Base
from service.store.database.scope import KEY, FarmSession

AT_ONCE = 4
PATIENCE_S = 10.0
"""Seconds after which a waiting thread goes on without a turn, since whoever holds one may wait for a lock or for the
storage.
"""


class Turns:
    """Turns of one process, first come, first served. A thread that has one needs no second."""

    def __init__(self, at_once: int = AT_ONCE, patience_s: float = PATIENCE_S) -> None:
        self._free = threading.BoundedSemaphore(at_once)
        self._patience_s = patience_s
        self._holders: set[int] = set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds a turn during the block."""
        thread = threading.get_ident()
        if thread in self._holders:
            yield
            return
        is_held = self._free.acquire(timeout=self._patience_s)
        self._holders.add(thread)
        try:
            yield
        finally:
            self._holders.discard(thread)
            if is_held:
                self._free.release()


LOG = logging.getLogger(__name__)
BUSY_TIMEOUT_S = 30
STATEMENT_TIMEOUT_S = 60
LOCK_TIMEOUT_S = 20
ASKED_AFTER_S = 5.0
"""A connection that nobody has used for so long is asked whether it lives before it is used again."""
AfterCommit = Callable[[Session], None]
HOLDER = "holder"
"""Key of `Database.holder` in `Session.info`."""
LISTENERS = "listeners"
"""Key of `Database.listeners` in `Session.info`."""
AUTOCOMMIT: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}


class Database:
    """The farm's database. Thread-safe; sessions are not."""

    def __init__(self, url: str, *, at_once: int = AT_ONCE) -> None:
        is_sqlite = make_url(url).get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(url) if is_sqlite else _postgres_engine(url)
        # PostgreSQL gives each statement a view of its own either way; without a transaction two messages less are sent
        self._reader = self.engine.execution_options(**{"pockfarm_read": True} if is_sqlite else AUTOCOMMIT)
        self.memory = Memory()
        self._turns = Turns(at_once)
        self.organisation_id: str | None = None
        """Whose rows its sessions see; None: everybody's."""
        self.after_commit: list[AfterCommit] = []
        """Called in turn with each committed session, for what is to be told of it. They must not raise."""
        self.holder: Callable[[Session], None] | None = None
        """Called before a session writes rows: keeps the stored files that they refer to (`service/store/garbage/`)."""
        self.listeners: list[Callable[[Session, Any], None]] = []
        """Called with each announcement, in its transaction (`service/store/announcements.py`)."""

    def of(self, organisation_id: str) -> Database:
        """Returns the same database as one organisation sees it (`scope.py`)."""
        narrowed = copy.copy(self)
        narrowed.organisation_id = organisation_id
        return narrowed

    @property
    def _info(self) -> dict[str, Any]:
        return {KEY: self.organisation_id, HOLDER: self.holder, MEMORY: self.memory, LISTENERS: self.listeners}

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Yields a session that commits at the end of the block, or rolls back if the block raises."""
        with FarmSession(self.engine, expire_on_commit=False, info=self._info) as session:
            with self._turns.hold(), session.begin():
                yield session
            self.memory.forget(changed_tables(session))
            for tell in self.after_commit:
                tell(session)

    def add(self, kind: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows (the other columns by default) by a statement of its own. No listener hears of the commit."""
        values: Any = [dict(row) for row in rows] if len(rows) > 1 else dict(rows[0])
        is_sqlite = self.engine.dialect.name == "sqlite"
        with self.engine.begin() if is_sqlite else self._reader.connect() as connection:
            connection.execute(insert(kind).values(values))

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yields a session for reading, which blocks nobody. SQLite shows it one moment throughout, PostgreSQL does
        not.
        """
        with (
            self._turns.hold(),
            FarmSession(self._reader, expire_on_commit=False, autoflush=False, info=self._info) as session,
        ):
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """Yields a session for reading that sees one moment throughout, however long it takes."""
        options: dict[str, Any] = {"pockfarm_read": True}
        if self.engine.dialect.name != "sqlite":  # there, WAL gives any reading transaction that
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with FarmSession(self.engine.execution_options(**options), autoflush=False, info=self._info) as session:
            if self.engine.dialect.name != "sqlite":
                session.execute(text("SET LOCAL statement_timeout = 0"))
            yield session

    def close(self) -> None:
        """Closes every pooled connection."""
        self.engine.dispose()


watch_changes(FarmSession)


@event.listens_for(FarmSession, "before_flush")
def _hold(session: Session, _context: object, _instances: object) -> None:
    holder = session.info.get(HOLDER)
    if holder is not None:
        holder(session)


def _sqlite_engine(url: str) -> Engine:
    path = make_url(url).database
    if not path or path == ":memory:":
        raise ValueError(f"the farm's SQLite database must be a file, not {url!r}")
    Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    tighten_database(Path(path))
    engine = create_engine(
        url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}, pool_size=20, max_overflow=40
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        is_read = connection.get_execution_options().get("pockfarm_read", False)
        connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")

    return engine


def _postgres_engine(url: str) -> Engine:
    options = f"-c statement_timeout={STATEMENT_TIMEOUT_S}s -c lock_timeout={LOCK_TIMEOUT_S}s -c timezone=UTC"
    engine = create_engine(
        url,
        pool_size=10,
        max_overflow=20,
        skip_autocommit_rollback=True,
        connect_args={"options": options, "connect_timeout": 10},
    )

    @event.listens_for(engine, "checkin")
    def note(_connection: Any, record: Any) -> None:
        record.info["returned_at"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def refuse_dead(connection: Any, record: Any, _proxy: object) -> None:
        rested_s = time.monotonic() - record.info.get("returned_at", time.monotonic())
        if not _is_alive(engine, connection, rested_s):
            raise InvalidatePoolError("the database has closed this connection")

    return engine


def _is_alive(engine: Engine, connection: Any, rested_s: float) -> bool:
    """Whether a pooled connection can be used. A server that goes away says so, which costs no question: then, or after
    a long rest (a network between may have forgotten it), it is asked."""
    try:
        waiting = select.poll()
        waiting.register(connection.pgconn.socket, select.POLLIN)
        if rested_s < ASKED_AFTER_S and not waiting.poll(0):
            return True
        return engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False
