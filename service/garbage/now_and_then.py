"""The collector that each sweeper carries along: a pass now and then, a little of it in each sweep."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from service.database.engine import Database
from service.garbage.collecting import Collection
from service.storage import Storage

LOG = logging.getLogger(__name__)
FIRST_S = 60.0
"""After its process has started, at most."""
SLICE_S = 0.2
"""Of a sweep: its other steps are waited for."""


class Garbage:
    """One process's collector. Any number may work on a farm at once."""

    def __init__(self, database: Database, storage: Storage, *, every_s: float, grace_s: float) -> None:
        self._database, self._storage = database, storage
        self._every_s, self._grace_s = every_s, grace_s
        self._next_at = time.monotonic() + min(every_s, FIRST_S)
        self._collection: Collection | None = None
        self._steps: Iterator[None] = iter(())

    def advance(self) -> None:
        """Do a slice of the pass that is under way, or begin one when it is time. A pass that fails is given up."""
        if self._collection is None:
            if self._every_s <= 0 or time.monotonic() < self._next_at:
                return
            self._collection = Collection(self._database, self._storage, self._grace_s)
            self._steps = self._collection.steps()
        until = time.monotonic() + SLICE_S
        try:
            for _ in self._steps:
                if time.monotonic() >= until:
                    return
        except Exception:
            self._end()
            raise
        self._say(self._collection)
        self._end()

    def _end(self) -> None:
        self._collection, self._steps = None, iter(())
        self._next_at = time.monotonic() + self._every_s

    def _say(self, done: Collection) -> None:
        found = done.found
        if found.removed or found.unfinished:
            LOG.info("removed %d stored files (%d bytes) and %d unfinished ones of %d", len(found.removed),
                     found.removed_bytes, len(found.unfinished), found.files)  # fmt: skip
