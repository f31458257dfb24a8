# Made from pockfarm/client/asynchronous/looks.py by scripts/synchronous.py: change that one, then `make golden`.
"""Looks at something of a farm that changes, by long polls; a farm that is away for minutes ends none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx

from pockfarm.client.answers import BUSY, json_of
from pockfarm.client.calls import Look
from pockfarm.errors import Refused, Unreachable
from pockfarm.values import Json

Seen = TypeVar("Seen")
POLL_INTERVAL_S = 0.2
LONG_POLL_S = 5.0
PATIENCE_S = 300.0
"""Silence of a farm that has answered before: it is upgraded, perhaps."""


def looks(ask: Look, read: Callable[[Json], Seen]) -> Iterator[Seen]:
    """Yields the current state, and again whenever it has changed, or every few seconds, without end.

    Raises: Unreachable, Refused: at once for the first look, after `PATIENCE_S` for another.
    """
    etag: str | None = None
    now: Seen | None = None
    heard_at = time.monotonic()
    while True:
        try:
            answer = ask({"wait": LONG_POLL_S} if etag else None, etag)
        except (Unreachable, Refused) as problem:
            is_away = isinstance(problem, Unreachable) or problem.status in BUSY
            if now is None or not is_away or time.monotonic() - heard_at > PATIENCE_S:
                raise
            continue
        heard_at = time.monotonic()
        if answer.status_code != httpx.codes.NOT_MODIFIED or now is None:
            now = read(json_of(answer))
            etag = answer.headers.get("ETag")
        yield now
        time.sleep(POLL_INTERVAL_S)
