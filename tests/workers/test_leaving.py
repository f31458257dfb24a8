"""What a worker tells whoever keeps it up when it was asked to end."""

from __future__ import annotations

import threading

from celery.signals import worker_shutting_down

from workers import app


def test_a_worker_that_is_told_to_end_gives_no_sign_any_more() -> None:
    """It may compile for two minutes more with a loop that stands still: a last sign would set a watchdog going."""
    sign = threading.Event()
    app._signs.append(sign)
    try:
        worker_shutting_down.send(sender="worker", sig="SIGTERM", how="Warm", exitcode=0)
        assert sign.is_set()
    finally:
        app._signs.remove(sign)
