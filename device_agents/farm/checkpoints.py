"""Takes checkpoints of a run to where they are kept, while it goes on: one at a time, and of those that wait only the
newest. That is the farm, or a folder of the board's own where what is learned there has to stay (`unfinished.py`)."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from device_agents.errors import EnrolmentError, FarmError
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.wire import Past

log = logging.getLogger("device_agents")
CHUNK_BYTES = 1 << 20
LAST_S = 20.0
"""Seconds for the last checkpoint of a run that has to be given up here."""
Deliver = Callable[[Path, Past, retry.Sleep], None]
"""Brings a whole checkpoint there, while it may: it sleeps by the last argument. The file is removed afterwards."""


def to_farm(client: FarmClient, lease_token: str) -> Deliver:
    """Checkpoints of an attempt go to the farm."""

    def deliver(checkpoint: Path, past: Past, sleep: retry.Sleep) -> None:
        digest = _digest(checkpoint)
        retry.call(retry.UPLOAD, lambda: client.send_checkpoint(lease_token, checkpoint, digest), sleep=sleep)

    return deliver


class CheckpointSender:
    """The sender of one attempt. What cannot be sent is missed by nobody but a later attempt."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._waiting: tuple[Path, Past] | None = None
        self._is_over = False
        self._is_refused = False
        self._changed = threading.Condition()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)

    def __enter__(self) -> CheckpointSender:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(last=False)

    def send(self, checkpoint: Path, past: Past) -> None:
        """Takes over a file, in place of one that still waits."""
        with self._changed:
            older, self._waiting = self._waiting, (checkpoint, past)
            if self._is_over or self._is_refused:
                older, self._waiting = self._waiting, None
            self._changed.notify_all()
        if older is not None:
            older[0].unlink(missing_ok=True)

    def end(self, *, last: bool) -> None:
        """Ends the sending: nothing more will come. `last`: another attempt will want the newest, so it gets some time
        to leave.
        """
        with self._changed:
            self._is_over = True
            if not last and self._waiting is not None:
                self._waiting[0].unlink(missing_ok=True)
                self._waiting = None
            self._changed.notify_all()
        if last:
            self._thread.join(LAST_S)
        self._give_up.set()
        self._thread.join(LAST_S)

    def _next(self) -> tuple[Path, Past] | None:
        with self._changed:
            while self._waiting is None and not self._is_over:
                self._changed.wait()
            waiting, self._waiting = self._waiting, None
            return waiting

    def _work(self) -> None:
        while job := self._next():
            path, past = job
            try:
                self._deliver(path, past, self._give_up.wait)
            except (FarmError, EnrolmentError, OSError) as error:
                log.warning("the checkpoint of step %d was not kept: %s", past.step, error)
                self._is_refused = isinstance(error, (EnrolmentError,)) or getattr(error, "status", 0) in (
                    404,
                    405,
                    409,
                )
            finally:
                path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
