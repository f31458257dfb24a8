"""Values that were worked out of rows that never change (a recorded report, a bundle's plan): kept while there is room
for them.

Nothing of it grows old, so only room ends it: what was asked for least lately goes first. A key names the row and its
content's digest; who may see the row is asked of the database each time, before anything is looked for here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

T = TypeVar("T")
ROOM_BYTES = 48 << 20
"""Room for the values of one process and database."""


@dataclass(slots=True)
class Lasting:
    """Values by key. They must not be changed by whoever gets them, and be no rows of a session. Thread-safe."""

    room_bytes: int = ROOM_BYTES
    _kept: OrderedDict[Hashable, tuple[object, int]] = field(default_factory=OrderedDict)
    _filled_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def filled_bytes(self) -> int:
        """Bytes of the room that are filled."""
        return self._filled_bytes

    def get(self, key: Hashable) -> object | None:
        """Returns the value of this key; None where there is none (any more)."""
        with self._lock:
            cached = self._kept.get(key)
            if cached is None:
                return None
            self._kept.move_to_end(key)
            return cached[0]

    def keep(self, key: Hashable, value: object, size_bytes: int) -> None:
        """Caches a value that takes about so many bytes; a value that takes more than a quarter of the room is not
        cached.
        """
        if size_bytes > self.room_bytes // 4:
            return
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, size_bytes)
            self._filled_bytes += size_bytes - before
            while self._filled_bytes > self.room_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._filled_bytes -= freed

    def recall(self, key: Hashable, work_out: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """Returns the value of this key, computed if it is not known. None is not cached."""
        cached = self.get(key)
        if cached is not None:
            return cast(T, cached)
        value = work_out()
        if value is not None:
            self.keep(key, value, size_of(value))
        return value
