"""Answers that this process holds open for an organisation: long polls that wait, and streams of events.

Each takes memory and a connection for as long as its reader likes, so they have a limit; in each API process its own,
for nothing else knows of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from service.people.quotas.limits import exceeded


class HeldAnswers:
    """Held answers of one process; all of it belongs to the event loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._held.total()

    @contextmanager
    def another(self, organisation_id: str, *, limit: float | None) -> Iterator[None]:
        """Counts an answer while it is open. Raises: TooMany if there are as many as the limit says."""
        use = self._held[organisation_id]
        if limit is not None and use + 1 > limit:
            raise exceeded("open_streams", limit=limit, use=use)
        self._held[organisation_id] += 1
        try:
            yield
        finally:
            self._held[organisation_id] -= 1
            if not self._held[organisation_id]:
                del self._held[organisation_id]
