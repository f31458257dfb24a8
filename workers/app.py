"""The Celery application: `celery --app workers.app worker --without-mingle --without-gossip`.

Every task is listed in `TASK_FUNCTIONS`; tasks hold no state, and doorbells may come twice or never. The sweeper runs
in the API process, so a worker needs no beat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.signals import worker_init, worker_ready

from service.queue import COMPILE_TASK, make_celery
from service.settings import Settings
from workers.tasks import compile_job

SETTINGS = Settings()
TASK_FUNCTIONS: dict[str, Callable[[str], None]] = {COMPILE_TASK: compile_job}

app = make_celery(SETTINGS)
for name, function in TASK_FUNCTIONS.items():
    app.task(function, name=name)


@worker_init.connect  # type: ignore[untyped-decorator]
def forget_readiness(**_: Any) -> None:
    """An older worker's mark does not count."""
    (SETTINGS.state / "worker-ready").unlink(missing_ok=True)


@worker_ready.connect  # type: ignore[untyped-decorator]
def mark_readiness(**_: Any) -> None:
    """Tell whoever started the worker that it takes work."""
    SETTINGS.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    (SETTINGS.state / "worker-ready").touch()
