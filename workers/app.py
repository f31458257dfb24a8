"""The Celery application: `celery --app workers.app worker --without-mingle --without-gossip`.

Every task is listed in `TASK_FUNCTIONS`; tasks hold no state, and doorbells may come twice or never. The sweeper runs
in the API process, so a worker needs no beat. From its own event loop the worker clears away what dead processes left,
and touches a file: who watches it sees that the worker lives, and is neither stopped nor stuck in a stopped task.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from celery.signals import setup_logging, worker_init, worker_ready, worker_shutdown

from service.database.schema import refuse_other_schema
from service.health.signs import INTERVAL_S, give_sign_to
from service.logs import set_up_logs
from service.queue import COMPILE_TASK, make_celery
from service.settings import Settings
from workers.ownership import is_stuck, root_of
from workers.recovery import take_back
from workers.tasks import compile_job

LOG = logging.getLogger(__name__)
SETTINGS = Settings()
TASK_FUNCTIONS: dict[str, Callable[[str], None]] = {COMPILE_TASK: compile_job}
TEND_S = INTERVAL_S

app = make_celery(SETTINGS)
for name, function in TASK_FUNCTIONS.items():
    app.task(function, name=name)


class Sign:
    """Says in the database too that the worker lives, for parts of the farm on other machines.

    By a thread: a database that hangs must not look like a worker that does. One at a time.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def give(self) -> None:
        """Begin to say so, unless the last time is still under way."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._give, name="sign", daemon=True)
            self._thread.start()

    def _give(self) -> None:
        try:
            give_sign_to(SETTINGS.database, "worker")
        except Exception:  # whatever a driver raises: the file has been touched, and the next time may do
            LOG.exception("could not give a sign of life")


SIGN = Sign()


@setup_logging.connect  # type: ignore[untyped-decorator]
def write_lines(**_: Any) -> None:
    """In place of Celery's own: one line of ours per event."""
    set_up_logs(SETTINGS, "worker")


@worker_init.connect  # type: ignore[untyped-decorator]
def begin(**_: Any) -> None:
    """An older worker's mark does not count, and what its processes held goes back."""
    os.umask(0o077)
    refuse_other_schema(SETTINGS.database, "the worker")
    SETTINGS.worker_alive_path.unlink(missing_ok=True)
    _take_back()


@worker_ready.connect  # type: ignore[untyped-decorator]
def take_work(sender: Any, **_: Any) -> None:
    """Tell whoever started the worker that it takes work, and go on telling."""
    SETTINGS.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    tend()
    sender.timer.call_repeatedly(TEND_S, tend)


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def end(**_: Any) -> None:
    """A worker that is gone has no sign of life."""
    SETTINGS.worker_alive_path.unlink(missing_ok=True)


def tend() -> None:
    """Once every few seconds, in the worker's main process."""
    if not is_stuck(root_of(SETTINGS.state), os.getpid()):
        SETTINGS.worker_alive_path.touch()
        SIGN.give()
    _take_back()


def _take_back() -> None:
    try:
        take_back(SETTINGS)
    except Exception:  # whatever a driver raises: the next time may do, and the sweeper is there too
        LOG.exception("could not give back what dead processes held")
