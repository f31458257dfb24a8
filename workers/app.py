"""The Celery application: `celery --app workers.app worker --without-mingle --without-gossip`.

Every task is listed in `TASK_FUNCTIONS`; tasks hold no state, and doorbells may come twice or never. The sweeper runs
in the API process, so a worker needs no beat. From its own event loop the worker clears away what dead processes left,
and kills a process that has stopped, so that another takes its place; a thread says that the loop turns (`alive.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.signals import setup_logging, worker_init, worker_ready, worker_shutdown, worker_shutting_down

from device_agents.wire.service_manager import tell_manager
from service.base.disk import find_temporary_folder
from service.base.logs import set_up_logs
from service.base.settings import Settings
from service.store.database.schema import refuse_other_schema
from service.store.queue import COMPILE_TASK, CeleryQueue, make_celery
from service.store.signs_of_life import ThreadedSigns
from workers.alive import LoopWatch, begin
from workers.ownership import Beats, any_dead, root_of
from workers.recovery import take_back
from workers.tasks import compile_job

LOG = logging.getLogger(__name__)
SETTINGS = Settings()
TASK_FUNCTIONS: dict[str, Callable[[str], None]] = {COMPILE_TASK: compile_job}
ROOT = Path(__file__).resolve().parents[1]
TICK_S = 2.0
TEND_S = 2.0
WATCH = LoopWatch(lambda: broker_answers())
BEATS = Beats(root_of(SETTINGS.state), os.getpid)
_signs: list[threading.Event] = []
_recovery: list[subprocess.Popen[bytes]] = []

find_temporary_folder()
app = make_celery(SETTINGS)
for name, function in TASK_FUNCTIONS.items():
    app.task(function, name=name)


SIGNS = ThreadedSigns(SETTINGS.database, "worker")


@setup_logging.connect  # type: ignore[untyped-decorator]
def write_lines(**_: Any) -> None:
    """Sets up logging in place of Celery's: one line of ours per event."""
    set_up_logs(SETTINGS, "worker")


@worker_init.connect  # type: ignore[untyped-decorator]
def clear_away(**_: Any) -> None:
    """Removes an older worker's mark, which does not count, and gives back what its processes held."""
    os.umask(0o077)
    refuse_other_schema(SETTINGS.database, "the worker")
    SETTINGS.worker_alive_path.unlink(missing_ok=True)
    try:
        take_back(SETTINGS)
    except Exception:  # whatever a driver raises: the next time may do, and the sweeper is there too
        LOG.exception("could not give back what dead processes held")


@worker_ready.connect  # type: ignore[untyped-decorator]
def take_work(sender: Any, **_: Any) -> None:
    """Reports to the process that started the worker that it takes work, and goes on reporting."""
    SETTINGS.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    SIGNS.slots = sender.pool.num_processes
    tend()
    tell_manager(b"READY=1")
    WATCH.tick()
    sender.timer.call_repeatedly(TICK_S, WATCH.tick)
    sender.timer.call_repeatedly(TEND_S, tend)
    if not _signs:
        _signs.append(begin(SETTINGS.worker_alive_path, WATCH))


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def fall_silent(**_: Any) -> None:
    """Its loop stands still while it waits for its last compile; after one more sign, systemd would expect others."""
    for sign in _signs:
        sign.set()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def end(**_: Any) -> None:
    """Removes the sign of life of a worker that ends."""
    fall_silent()
    SETTINGS.worker_alive_path.unlink(missing_ok=True)


def tend() -> None:
    """Kills hung processes, gives the sign of life and starts the recovery of dead ones. Runs every few seconds in the
    worker's main process, which must not wait for the database meanwhile.
    """
    for pid in BEATS.silent():
        LOG.error("process %d has stopped in the middle of a compile: killed, so that another takes its place", pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    SIGNS.give()
    _recovery[:] = [process for process in _recovery if process.poll() is None]
    if not _recovery and any_dead(root_of(SETTINGS.state)):
        words = [sys.executable, "-m", "workers.recovery"]
        _recovery.append(subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL))


def broker_answers() -> bool:
    """Whether the broker does, within a second."""
    try:
        CeleryQueue(SETTINGS).check(within_s=1.0)
    except Exception:  # whatever a transport raises
        return False
    return True
