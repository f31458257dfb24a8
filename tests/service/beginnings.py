"""Empty databases of any revision: each is made once, from the newest before it, and copied."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import make_url

from service.store.database.schema import migrate
from tests.service.postgres import PostgresServer


class Beginnings:
    """On SQLite, or on a PostgreSQL server."""

    def __init__(self, folder: Path, server: PostgresServer | None, revisions: Sequence[str]) -> None:
        """`revisions`: all that there are, the oldest first."""
        self._folder, self._server, self._revisions = folder, server, revisions
        self._count = 0
        self._made: dict[str, str] = {}

    def empty(self) -> str:
        """The URL of a database with nothing in it."""
        if self._server is not None:
            return self._server.make_database()
        self._count += 1
        return f"sqlite:///{self._folder / f'{self._count}.db'}"

    def of(self, revision: str) -> str:
        """The URL of a database as the migrations up to `revision` make it."""
        if revision not in self._made:
            older = [one for one in self._revisions[: self._revisions.index(revision)] if one in self._made]
            url = self._copy(self._made[older[-1]] if older else None)
            migrate(url, revision)
            self._made[revision] = url
        return self._copy(self._made[revision])

    def _copy(self, url: str | None) -> str:
        if url is None:
            return self.empty()
        if self._server is not None:
            return self._server.make_database(template=str(make_url(url).database))
        copied = self.empty()
        shutil.copy(str(make_url(url).database), str(make_url(copied).database))
        return copied
