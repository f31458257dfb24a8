"""The door to Celery: task names, the application's settings, and sending a doorbell.

A message holds a row's id and nothing else. It may be lost or doubled without harm: the task claims its row, and the
sweeper rings again.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

from celery import Celery
from kombu import Connection
from kombu.exceptions import ChannelError

from service.base.settings import Settings

LOG = logging.getLogger(__name__)
COMPILE_TASK = "pockfarm.compile"
TASKS = (COMPILE_TASK,)
QUEUE = "pockfarm"
SEND_WITHIN_S = 5.0
"""A request waits for its doorbell; one that cannot be rung stays in the outbox."""


class Queue(Protocol):
    """The queue of doorbells."""

    def ring(self, task: str, argument: str) -> None:
        """Sends one doorbell. Raises: any error of the transport, quickly."""
        ...

    def check(self) -> None:
        """Raises if the broker does not answer."""
        ...

    def waiting(self) -> int:
        """Returns how many doorbells nobody has taken yet. Raises: any error of the transport, quickly."""
        ...


def make_celery(settings: Settings, *, socket_timeout_s: float = 30.0) -> Celery:
    """Makes the Celery application of this farm, for senders and workers alike."""
    app = Celery("pockfarm", broker=settings.broker, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=False,  # the sweeper rings again, with a cap; Celery would loop for ever
        worker_prefetch_multiplier=1,
        worker_concurrency=max(2, os.cpu_count() or 1),  # two at least, so that organisations can share them
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            # Above twice the longest task, else running work is delivered again.
            "visibility_timeout": int(2 * settings.compile_s + 600),
            "socket_connect_timeout": 3,
            "socket_timeout": socket_timeout_s,
        },
        worker_send_task_events=False,
        worker_enable_remote_control=False,  # whoever reached the broker could stop a worker, or have it take no work
        worker_hijack_root_logger=False,
    )
    return app


class CeleryQueue:
    """A `Queue` on the farm's broker. One try, a few seconds: what fails stays in the outbox."""

    def __init__(self, settings: Settings) -> None:
        self._app = make_celery(settings, socket_timeout_s=SEND_WITHIN_S)

    def ring(self, task: str, argument: str) -> None:
        """See `Queue.ring`."""
        self._app.send_task(task, args=(argument,), ignore_result=True, retry=False)

    def check(self, within_s: float = 3.0) -> None:
        """See `Queue.check`."""
        with self._connection(within_s) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=within_s)

    def waiting(self) -> int:
        """See `Queue.waiting`."""
        with self._connection(SEND_WITHIN_S) as connection:
            try:
                return int(connection.default_channel.queue_declare(queue=QUEUE, passive=True).message_count)
            except ChannelError:  # there is no list of messages where there are none
                return 0

    def _connection(self, within_s: float) -> Connection:
        limits = {"socket_connect_timeout": within_s, "socket_timeout": within_s}  # a stopped broker takes connections
        return self._app.connection_for_write(connect_timeout=within_s, transport_options=limits)
