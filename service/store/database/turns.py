"""How many threads of a process use the database at the same time.

A request is many short statements with Python between them, and Python runs one thread at a time: with dozens of
requests in their transactions each waits for all the others after each statement, holds its locks meanwhile, and more
connections are opened than are kept. A few at once, one after the other, are done sooner.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 4
PATIENCE_S = 10.0
"""Who has waited so long goes on without a turn: whoever holds one may wait for a lock or for the storage."""


class Turns:
    """Turns of one process, first come, first served. A thread that has one needs no second."""

    def __init__(self, at_once: int = AT_ONCE, patience_s: float = PATIENCE_S) -> None:
        self._free = threading.BoundedSemaphore(at_once)
        self._patience_s = patience_s
        self._holders: set[int] = set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Have a turn during the block."""
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
