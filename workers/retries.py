"""Retries, for a while, of what fails for now (a database that is away, a disk that is full)."""

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


def is_away(error: Exception) -> bool:
    """Returns whether the database did not answer, rather than that it understood and refused."""
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or type(error).__name__ in ("OperationalError", "InterfaceError")
    )


def retry_transient_errors(
    act: Callable[[], T],
    what: str,
    *,
    passes: Callable[[Exception], bool] = is_away,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Calls `act`, and again after 0.5, 1 ... 5 s for up to `patience_s` while it fails with an error that `passes`
    accepts. `act` may have been carried out before its answer was lost, so it must be harmless to repeat: a claim is,
    by its fencing token.

    Raises: what it raised.
    """
    pause_s, gives_up_at = FIRST_S, time.monotonic() + patience_s
    while True:
        try:
            return act()
        except Exception as error:
            if not passes(error) or time.monotonic() + pause_s > gives_up_at:
                raise
            LOG.warning("%s: trying again: %s", what, error.orig if isinstance(error, DBAPIError) else error)
        sleep(pause_s)
        pause_s = min(MOST_S, 2 * pause_s)
