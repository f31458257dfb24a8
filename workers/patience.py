"""A database that is away comes back: what a worker has to write is tried again for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

T = TypeVar("T")
LOG = logging.getLogger(__name__)
FIRST_S, MOST_S = 0.5, 5.0
PATIENCE_S = 600.0


def with_patience(act: Callable[[], T], what: str, *, sleep: Callable[[float], object] = time.sleep) -> T:
    """Do it, again after 0.5, 1 ... 5 s if the database fails, for ten minutes. `act` may have been carried out before
    its answer was lost, so it must be harmless to repeat: a claim is, by its fencing token. Raises: what it raised."""
    pause_s, gives_up_at = FIRST_S, time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except DBAPIError as error:
            if not _may_pass(error) or time.monotonic() + pause_s > gives_up_at:
                raise
            LOG.warning("%s: the database is away, trying again: %s", what, error.orig)
        sleep(pause_s)
        pause_s = min(MOST_S, 2 * pause_s)


def _may_pass(error: DBAPIError) -> bool:
    """Not for what the database understood and refused."""
    return error.connection_invalidated or type(error).__name__ in ("OperationalError", "InterfaceError")
