"""One engine and one session type for SQLite and PostgreSQL, API and workers.

Writers commit at the edge: `with database.transaction() as session:` commits once, at its end. On SQLite it starts with
BEGIN IMMEDIATE (a deferred transaction that writes later can fail with SQLITE_BUSY whatever the time-out); reads use
`database.read()`, which never writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service.private import tighten_database

LOG = logging.getLogger(__name__)
BUSY_TIMEOUT_S = 30
STATEMENT_TIMEOUT_S = 60
LOCK_TIMEOUT_S = 20
AfterCommit = Callable[[Session], None]


class Database:
    """The farm's database. Thread-safe; sessions are not."""

    def __init__(self, url: str) -> None:
        self.engine = _sqlite_engine(url) if make_url(url).get_backend_name() == "sqlite" else _postgres_engine(url)
        self._reader = self.engine.execution_options(pockfarm_read=True)
        self.after_commit: AfterCommit | None = None
        """Called with each committed session; rings the doorbells that it queued. It must not raise."""

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end of the block, or rolls back if the block raises."""
        with Session(self.engine, expire_on_commit=False) as session:
            with session.begin():
                yield session
            if self.after_commit is not None:
                self.after_commit(session)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading: a consistent view that blocks nobody."""
        with Session(self._reader, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """A session for reading that sees one moment throughout, however long it takes."""
        options: dict[str, Any] = {"pockfarm_read": True}
        if self.engine.dialect.name != "sqlite":  # there, WAL gives any reading transaction that
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with Session(self.engine.execution_options(**options), autoflush=False) as session:
            if self.engine.dialect.name != "sqlite":
                session.execute(text("SET LOCAL statement_timeout = 0"))
            yield session

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


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
