"""Requests that are held open until a job or run changes: called at its commit, in whatever API process that was.

Workers and broken brokers call nobody, so whoever waits looks now and then too. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Bell:
    """A request that waits."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Rings, since the subject has changed."""
        self._rung.set()

    async def wait(self, seconds: float) -> bool:
        """Waits until the bell has rung since the last wait, or for so many seconds. Returns whether it has rung."""
        try:
            await asyncio.wait_for(self._rung.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        self._rung.clear()
        return True


class Watchers:
    """The watchers in this process and the subjects that they watch."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._bells.values()))

    @contextmanager
    def held(self, subject: str) -> Iterator[Bell]:
        """Yields a bell that rings when the subject changes, within the block."""
        bell = Bell()
        self._bells.setdefault(subject, set()).add(bell)
        try:
            yield bell
        finally:
            bells = self._bells[subject]
            bells.discard(bell)
            if not bells:
                del self._bells[subject]

    def call(self, subjects: Collection[str]) -> None:
        """Rings the bells of everybody who watches one of these."""
        for subject in self._bells.keys() & subjects:
            for bell in self._bells[subject]:
                bell.ring()
