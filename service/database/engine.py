"""One engine and one session type for SQLite and PostgreSQL, API and workers.

Writers commit at the edge: `with database.transaction() as session:` commits once, at its end. On SQLite it starts with
BEGIN IMMEDIATE (a deferred transaction that writes later can fail with SQLITE_BUSY whatever the time-out); reads use
`database.read()`, which never writes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service.database.scope import KEY, FarmSession
from service.private import tighten_database

LOG = logging.getLogger(__name__)
BUSY_TIMEOUT_S = 30
STATEMENT_TIMEOUT_S = 60
LOCK_TIMEOUT_S = 20
AfterCommit = Callable[[Session], None]
HOLDER = "holder"
"""In `Session.info`: `Database.holder`."""


class Database:
    """The farm's database. Thread-safe; sessions are not."""

    def __init__(self, url: str) -> None:
        self.engine = _sqlite_engine(url) if make_url(url).get_backend_name() == "sqlite" else _postgres_engine(url)
        self._reader = self.engine.execution_options(pockfarm_read=True)
        self.organisation_id: str | None = None
        """Whose rows its sessions see; None: everybody's."""
        self.after_commit: list[AfterCommit] = []
        """Called in turn with each committed session, for what is to be told of it. They must not raise."""
        self.holder: Callable[[Session], None] | None = None
        """Called before a session writes rows: keeps the stored files that they refer to (`service/garbage/`)."""

    def of(self, organisation_id: str) -> Database:
        """The same database as one organisation has it (`scope.py`)."""
        narrowed = copy.copy(self)
        narrowed.organisation_id = organisation_id
        return narrowed

    @property
    def _info(self) -> dict[str, Any]:
        return {KEY: self.organisation_id, HOLDER: self.holder}

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end of the block, or rolls back if the block raises."""
        with FarmSession(self.engine, expire_on_commit=False, info=self._info) as session:
            with session.begin():
                yield session
            for tell in self.after_commit:
                tell(session)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading: a consistent view that blocks nobody."""
        with FarmSession(self._reader, expire_on_commit=False, autoflush=False, info=self._info) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """A session for reading that sees one moment throughout, however long it takes."""
        options: dict[str, Any] = {"pockfarm_read": True}
        if self.engine.dialect.name != "sqlite":  # there, WAL gives any reading transaction that
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with FarmSession(self.engine.execution_options(**options), autoflush=False, info=self._info) as session:
            if self.engine.dialect.name != "sqlite":
                session.execute(text("SET LOCAL statement_timeout = 0"))
            yield session

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


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
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}, pool_size=20,
                           max_overflow=40)  # fmt: skip

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
    return create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20,
                         connect_args={"options": options, "connect_timeout": 10})  # fmt: skip
