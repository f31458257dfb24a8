"""The checks of `/readyz`: a named one for each part, each with its time limit, all at once, kept for a moment.

A check that does not come back is left behind, and not asked again until it has: many probes of a hung part cost one
thread. What a driver says goes into the log; the answer, which anyone may read, has words of ours only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.artefacts.jobs.shares import count_under_way, most_at_once
from service.base.disk import DiskFull, check_room, is_disk_full
from service.store.database.models import Job
from service.store.database.schema import SchemaMismatch, check_schema
from service.store.farm import Farm
from service.store.queue import QUEUE
from service.store.signs_of_life import count_alive, count_slots, give_sign

LOG = logging.getLogger(__name__)
UNHEARD_DOORBELLS = 2


class NotReady(Exception):
    """A part is not fit for work. `word` says it; the message may be read by anyone."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one part. `act` raises if the part is not fit for work."""

    name: str
    limit_s: float
    act: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a check. `state`: ok, down, full, behind, ahead, none, idle or slow."""

    state: str
    why: str = ""


OK = Finding("ok")


@dataclass(slots=True)
class PendingCheck:
    """A check being carried out by a thread of its own, or its last answer."""

    started_s: float
    finished: threading.Event = field(default_factory=threading.Event)
    finding: Finding = OK


class Readiness:
    """Carries the checks out, and keeps what they found for `keep_s`."""

    def __init__(self, checks: Sequence[Check], *, keep_s: float) -> None:
        self.checks = tuple(checks)
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._asked: dict[str, PendingCheck] = {}

    def findings(self, without: Iterable[str] = ()) -> dict[str, Finding]:
        """Returns the finding of each check but the excluded ones, within the longest of their limits."""
        checks = [check for check in self.checks if check.name not in set(without)]
        pending = {check.name: self._ask(check) for check in checks}
        return {check.name: _wait(check, pending[check.name]) for check in checks}

    def _ask(self, check: Check) -> PendingCheck:
        now = time.monotonic()
        with self._lock:
            last = self._asked.get(check.name)
            if last is not None and (not last.finished.is_set() or now - last.started_s < self._keep_s):
                return last
            pending = self._asked[check.name] = PendingCheck(now)
        threading.Thread(target=_carry_out, args=(check, pending), name=f"check-{check.name}", daemon=True).start()
        return pending


def _carry_out(check: Check, pending: PendingCheck) -> None:
    try:
        check.act()
    except Exception as error:  # whatever a driver raises: this is the place that reports it
        pending.finding = _finding(check.name, error)
        LOG.warning("%s is not ready: %s", check.name, error)
    pending.finished.set()


def _wait(check: Check, pending: PendingCheck) -> Finding:
    left_s = pending.started_s + check.limit_s - time.monotonic()
    if pending.finished.wait(max(0.0, left_s)):
        return pending.finding
    return Finding("slow", f"no answer within {check.limit_s:g} s")


def _finding(name: str, error: Exception) -> Finding:
    if isinstance(error, NotReady):
        return Finding(error.word, str(error))
    if isinstance(error, SchemaMismatch):
        return Finding(error.state, str(error))
    if isinstance(error, DiskFull) or is_disk_full(error) or is_disk_full(getattr(error, "orig", None)):
        return Finding("full", "a disk that the farm writes to is full, or nearly; the log names the folder")
    return Finding("down", f"the {name} check failed with {type(error).__name__}; the log says more")


def farm_checks(farm: Farm) -> tuple[Check, ...]:
    """Returns all checks, with their time limits in seconds."""
    return (
        Check("database", 3.0, lambda: _write(farm)),
        Check("migrations", 3.0, lambda: check_schema(farm.database)),
        Check("storage", 5.0, farm.storage.check),
        Check("broker", 4.0, farm.queue.check),
        Check("disk", 3.0, lambda: check_room(farm.settings)),
        Check("workers", 3.0, lambda: _see_workers(farm)),
    )


def _write(farm: Farm) -> None:
    """Checks that the database accepts a write, which records that this process lives."""
    with farm.database.transaction() as session:
        give_sign(session, "api")


def _see_workers(farm: Farm) -> None:
    """Checks that some worker lives and takes work: a sign of life alone says nothing about the queue.

    Each waiting job rings once in `doorbell_s`. One that has waited for `UNHEARD_DOORBELLS` of them is not heard, if in
    that time no compile has begun, fewer are under way than workers can run, and its organisation may have another.
    """
    unheard_s = UNHEARD_DOORBELLS * farm.settings.doorbell_s
    before = time.time() - unheard_s
    with farm.database.read() as session:
        alive = count_alive(session, "worker")
        if not alive:
            raise NotReady("none", "no worker has given a sign of life: jobs wait until one is started")
        waiting = _count_startable(session, before)
        if not waiting or _has_begun_since(session, before):
            return
        idle = (count_slots(session) or alive) - _count(session, Job.state == "compiling")
    if idle > 0:
        raise NotReady(
            "idle",
            f"{waiting} job(s) wait in the queue {QUEUE!r} for more than {unheard_s:g} s, and the {alive} worker(s) "
            f"could run {idle} more: restart the workers; their log says more",
        )


def _count_startable(session: Session, before: float) -> int:
    """Jobs queued before that time whose organisation may have another compile under way."""
    most = most_at_once(session)
    by_organisation = (
        select(Job.organisation_id, func.count())
        .where(Job.state == "queued", Job.created_at < before)
        .group_by(Job.organisation_id)
    )
    return sum(
        count
        for organisation_id, count in session.execute(by_organisation)
        if most is None or count_under_way(session, organisation_id) < most
    )


def _count(session: Session, *where: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count()).select_from(Job).where(*where)) or 0


def _has_begun_since(session: Session, since: float) -> bool:
    """Whether a compile has: it is under way, queued again, or has ended since."""
    is_recent = Job.state.in_(("queued", "compiling")) | (Job.finished_at >= since)
    return _count(session, Job.started_at >= since, is_recent) > 0
