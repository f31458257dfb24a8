"""When keys were last used: noted in memory by each process, written by its sweeper: no request waits for that."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from sqlalchemy import or_, update

from service.store.database.engine import Database
from service.store.database.memory import UNREMEMBERED
from service.store.database.models import ApiKey

EVERY_S = 60.0
"""A key's last use is written at most so often."""


@dataclass(slots=True)
class KeyUses:
    """Uses that the database has not been told of."""

    _new: dict[str, float] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, key_id: str) -> None:
        """The key is being used."""
        now = time.time()
        if now - self._told.get(key_id, 0.0) >= EVERY_S:
            with self._lock:
                self._new[key_id] = now

    def write(self, database: Database) -> None:
        """Tell the database; what it does not take now is told the next time."""
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        try:
            with database.transaction() as session:
                for key_id, at in sorted(new.items()):
                    is_newer = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < at)
                    statement = update(ApiKey).where(ApiKey.id == key_id, is_newer)
                    session.execute(statement.values(last_used_at=at), execution_options=UNREMEMBERED)
        except BaseException:
            with self._lock:
                self._new = new | self._new
            raise
        before = time.time() - EVERY_S
        self._told = {key: at for key, at in (self._told | new).items() if at > before}
