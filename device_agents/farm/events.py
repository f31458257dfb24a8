"""Events of a run to the farm: numbered, batched once a second from a thread, kept until the farm has them.

A farm that is away costs the run nothing: events wait; past a limit, further steps are left out (the report has them).
A batch that the farm refuses is dropped, with a line in the log: it must not hold up those behind it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from device_agents.errors import AgentError, FarmError, Refused, Stale
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.wire import MAX_EVENTS_PER_BATCH, Event, EventBatch, dumps

log = logging.getLogger("device_agents")

FLUSH_S = 1.0
CLOSE_TIMEOUT_S = 10.0
MIN_STEP_INTERVAL_S = 0.1
"""Seconds between two step (or progress) events, at least; the report has every step."""
MAX_WAITING = 20_000
MAX_LOG_LINES = 500
MAX_BATCH_BYTES = 1 << 19
"""The farm takes a megabyte at once; lines in another script have six bytes a letter as JSON."""


class EventSender:
    """Takes events from the run (`add`), sends them in order. One per attempt."""

    def __init__(self, client: FarmClient, lease_token: str) -> None:
        self._client = client
        self._lease_token = lease_token
        self._lock = threading.Lock()
        self._waiting: deque[Event] = deque()
        self._held: dict[str, Event] = {}
        self._sent_at: dict[str, float] = {}
        self._sequence = 0
        self._log_lines = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def __enter__(self) -> EventSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sends what is left, for at most `CLOSE_TIMEOUT_S`."""
        self._closing.set()
        self._thread.join(timeout=CLOSE_TIMEOUT_S + 1)

    def add(self, kind: Any, **fields: Any) -> None:
        """Queues one event; steps and progress are thinned to one per `MIN_STEP_INTERVAL_S`, the last always sent."""
        event = Event(sequence=0, at=time.time(), kind=kind, **fields)
        with self._lock:
            if kind in ("step", "progress", "log") and len(self._waiting) >= MAX_WAITING:
                return
            if kind in ("step", "progress"):
                if event.at - self._sent_at.get(kind, 0.0) < MIN_STEP_INTERVAL_S:
                    self._held[kind] = event
                    return
                self._held.pop(kind, None)
                self._sent_at[kind] = event.at
            elif kind == "log":
                self._log_lines += 1
                if self._log_lines > MAX_LOG_LINES:
                    return
            else:
                self._release_held()
            self._append(event)

    def _append(self, event: Event) -> None:
        self._sequence += 1
        self._waiting.append(replace(event, sequence=self._sequence))

    def _release_held(self) -> None:
        for event in self._held.values():
            self._append(event)
        self._held.clear()

    def _run(self) -> None:
        waits = retry.waits_s(retry.EVENTS)
        while not self._closing.wait(FLUSH_S):
            try:
                self._flush()
                waits = retry.waits_s(retry.EVENTS)
            except Stale:
                return
            except FarmError as error:
                self._closing.wait(retry.wait_after(error, next(waits, FLUSH_S)))
            except AgentError:
                return
        with self._lock:
            self._release_held()
        self._flush_at_end()

    def _flush_at_end(self) -> None:
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self._flush()
                return
            except FarmError as error:
                if not retry.is_worth_retrying(error):
                    return
                time.sleep(0.5)
            except AgentError:
                return

    def _flush(self) -> None:
        """Sends everything that waits, batch by batch. Raises: `FarmError`."""
        while True:
            with self._lock:
                batch = _first_batch(self._waiting)
            if not batch:
                return
            is_refused = False
            try:
                self._client.send_events(self._lease_token, EventBatch(batch))
            except (Refused, ValueError) as error:
                log.warning("the farm refused %d events, which are dropped: %s", len(batch), error)
                is_refused = True
            with self._lock:
                while self._waiting and self._waiting[0].sequence <= batch[-1].sequence:
                    self._waiting.popleft()
                if is_refused:
                    self._number_again(batch[0].sequence)

    def _number_again(self, first: int) -> None:
        """Numbers the waiting events anew without a gap, behind which the farm takes nothing."""
        self._waiting = deque(replace(event, sequence=first + index) for index, event in enumerate(self._waiting))
        self._sequence = first + len(self._waiting) - 1


def _first_batch(waiting: deque[Event]) -> tuple[Event, ...]:
    """Returns as many events as go into one request."""
    batch: list[Event] = []
    left_bytes = MAX_BATCH_BYTES
    for event in waiting:
        left_bytes -= len(dumps(event)) + 1
        if batch and (left_bytes < 0 or len(batch) == MAX_EVENTS_PER_BATCH):
            break
        batch.append(event)
    return tuple(batch)
