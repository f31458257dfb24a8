"""Puts right what nobody else will: lost doorbells, silent workers and devices, clocks that ran out, stale secrets.

Every step is a transaction of its own on rows that it re-checks, so any number of sweepers may run, in any process.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from device_agents.wire.log_lines import bind
from service.artefacts.jobs import claims
from service.artefacts.uploads import service as uploads
from service.boards.canary import sending as canaries
from service.boards.canary import timed
from service.boards.fleet import tokens
from service.devices import conditions
from service.devices.conditions import Conditions
from service.devices.sightings import Sightings
from service.operations.gaps import Gaps
from service.operations.result_log.log import keep_head, log_results
from service.operations.retention.removal import RetentionTask
from service.people.keys.service import KeyUses
from service.store.database.models import (
    IS_QUEUED,
    LIVE_ATTEMPT_STATES,
    NO_LANE_YET,
    Attempt,
    Base,
    DashboardLink,
    DashboardSession,
    DeviceCredential,
    IdempotencyRecord,
    Job,
    Run,
)
from service.store.farm import Farm
from service.store.garbage.collecting import GarbageTask
from service.store.outbox import ring_after_commit
from service.store.queue import COMPILE_TASK
from service.store.signs_of_life import Signs
from service.work.lanes.entering import enter_queued
from service.work.runs import attempts

LOG = logging.getLogger(__name__)
Step = Callable[[Farm], None]
"""A part of a sweep: transactions of its own on rows that it re-checks."""
BATCH = 100
LANE_BATCH = 500
OUTBOX_GRACE_S = 2.0
SECRETS: tuple[type[Base], ...] = (
    DashboardLink,
    DashboardSession,
    DeviceCredential,
    IdempotencyRecord,
)
FORGET_AFTER_S = 3600.0
ABOUT = {"job_": "job", "run_": "run", "att_": "attempt"}
LOST_AFTER_S = 4.0
"""A doorbell that was rung so long ago is in the broker, or was taken, or is lost."""
STUCK_S = 600.0
"""A pass that takes longer has a step that hangs: every step waits for the database with a time-out."""


def sweep(farm: Farm, gaps: Gaps | None = None, *, urgent_only: bool = False, more: Sequence[Step] = ()) -> None:
    """Makes one pass over everything, or over what runs, jobs and devices wait for. A step that fails is logged and
    does not keep the others from running. `more`: steps of optional features. `gaps` is looked at before each step, so
    that none believes a clock that has jumped.
    """
    for step in (*STEPS, *more) if urgent_only else (*STEPS, *more, *CALM_STEPS):
        try:
            if gaps is not None:
                gaps.look()
            if gaps is None or gaps.may_delete or step not in DELETING:
                step(farm)
        except Exception:
            LOG.exception("sweep step %s failed", step.__name__)


def _act_on_each(farm: Farm, ids: list[str], act: Callable[[Session, str], None]) -> None:
    """Acts on each row in a transaction of its own: a bad one does not hold up the rest."""
    for row_id in ids:
        try:
            with bind(**{ABOUT.get(row_id[:4], "row"): row_id}), farm.database.transaction() as session:
                act(session, row_id)
        except Exception:
            LOG.exception("sweeping %s failed", row_id)


def ring_outbox(farm: Farm) -> None:
    """Rings doorbells that could not be rung at their commit."""
    farm.bell.ring_pending(before=time.time() - OUTBOX_GRACE_S)


def ring_waiting_jobs(farm: Farm) -> None:
    """Rings again for jobs that have been queued for long, or once the broker holds fewer messages than jobs wait: some
    are lost. A second message does no harm.
    """
    now = time.time()
    with farm.database.read() as session:
        query = select(func.count()).where(Job.state == "queued", Job.rung_at < now - LOST_AFTER_S)
        count = session.scalar(query) or 0
    if count == 0:
        return
    before = now - (LOST_AFTER_S if _has_lost_some(farm, count) else farm.settings.doorbell_s)
    with farm.database.read() as session:
        ids = list(session.scalars(select(Job.id).where(Job.state == "queued", Job.rung_at < before).limit(BATCH)))

    def ring(session: Session, job_id: str) -> None:
        job = session.scalar(
            select(Job)
            .where(Job.id == job_id, Job.state == "queued", Job.rung_at < before)
            .with_for_update(skip_locked=True)
        )
        if job is not None:
            job.rung_at = time.time()
            ring_after_commit(session, COMPILE_TASK, job.id)

    _act_on_each(farm, ids, ring)


def _has_lost_some(farm: Farm, count: int) -> bool:
    try:
        return farm.queue.waiting() < count
    except Exception as error:  # any transport's: its messages cannot be counted now
        LOG.warning("could not ask the broker how many messages wait: %s", error)
        return False


def recover_jobs(farm: Farm) -> None:
    """Queues jobs again whose worker went silent; after the last try they fail."""
    now = time.time()
    is_silent = (Job.state == "compiling", Job.lease_expires_at < now)
    with farm.database.read() as session:
        ids = list(session.scalars(select(Job.id).where(*is_silent).limit(BATCH)))

    def recover(session: Session, job_id: str) -> None:
        job = session.scalar(select(Job).where(Job.id == job_id, *is_silent).with_for_update(skip_locked=True))
        if job is not None:
            claims.lose(session, job, attempts=farm.settings.compile_attempts, reason="its worker went silent")

    _act_on_each(farm, ids, recover)


def expire_jobs(farm: Farm) -> None:
    """Ends jobs that have waited too long."""
    is_late = (Job.state == "queued", Job.queue_deadline_at < time.time())
    with farm.database.read() as session:
        ids = list(session.scalars(select(Job.id).where(*is_late).limit(BATCH)))

    def expire(session: Session, job_id: str) -> None:
        job = session.scalar(select(Job).where(Job.id == job_id, *is_late).with_for_update(skip_locked=True))
        if job is not None:
            claims.end_with(
                session,
                job,
                "expired",
                claims.Failure(
                    "infra",
                    "infra.queue-time",
                    f"no worker took it within {farm.settings.queue_s:.0f} s",
                    hint="see that a worker is up, then send the request again",
                ),
            )

    _act_on_each(farm, ids, expire)


def expire_leases(farm: Farm) -> None:
    """Takes runs away from devices that went silent, or that take longer than their clocks allow."""
    now = time.time()
    overdue = now - farm.settings.lease_s  # heartbeats tell the device to stop; this is for one that does not
    is_over = (
        Attempt.state.in_(LIVE_ATTEMPT_STATES),
        (Attempt.lease_expires_at < now) | (Attempt.deadline_at < overdue),
    )
    with farm.database.read() as session:
        ids = list(session.scalars(select(Attempt.id).where(*is_over).limit(BATCH)))

    def expire(session: Session, attempt_id: str) -> None:
        query = select(Attempt).where(Attempt.id == attempt_id, *is_over).with_for_update(skip_locked=True)
        attempt = session.scalar(query)
        if attempt is not None:
            ending = attempts.LEASE_EXPIRED if attempt.lease_expires_at < now else attempts.OUT_OF_TIME
            attempts.lose(session, farm.settings, attempt, ending)

    _act_on_each(farm, ids, expire)


def fill_lanes(farm: Farm) -> None:
    """Puts runs into lanes that older code has queued, before or during the upgrade to this code."""
    is_there = select(Run.id).where(NO_LANE_YET).limit(1)
    with farm.database.read() as session:
        count = LANE_BATCH if session.scalar(is_there) is not None else 0
    while count == LANE_BATCH:
        with farm.database.transaction() as session:
            count = enter_queued(session, most=LANE_BATCH)


def expire_runs(farm: Farm) -> None:
    """Ends runs that have waited too long for a device."""
    is_late = (IS_QUEUED, Run.queue_deadline_at < time.time())
    with farm.database.read() as session:
        ids = list(session.scalars(select(Run.id).where(*is_late).limit(BATCH)))

    def expire(session: Session, run_id: str) -> None:
        run = session.scalar(select(Run).where(Run.id == run_id, *is_late).with_for_update(skip_locked=True))
        if run is None:
            return
        tried = attempts.tried_on(session, run)
        other, since = ("other ", f"; it failed on {tried}") if tried else ("", "")
        attempts.end_run(
            session,
            run,
            attempts.Ending(
                "expired",
                "device",
                "device.none",
                f"no {other}device that runs {run.target} took it within {farm.settings.queue_s:.0f} s{since}",
                "enrol such a device, or release one from quarantine",
            ),
        )

    _act_on_each(farm, ids, expire)


def send_canaries(farm: Farm) -> None:
    """Queues canary runs with which quarantined devices show that they work again."""

    def give(session: Session, device_id: str) -> None:
        canaries.send(session, farm, device_id)

    _act_on_each(farm, canaries.due(farm), give)


def send_timed_canaries(farm: Farm) -> None:
    """Queues canary runs with which working devices measure the farm's models again."""

    def give(session: Session, device_id: str) -> None:
        timed.send(session, farm, device_id)

    _act_on_each(farm, timed.due(farm), give)


def note_key_uses(farm: Farm) -> None:
    """Writes when this process last saw each key used."""
    farm.part(KeyUses).write(farm.database)


def note_sightings(farm: Farm) -> None:
    """Writes when this process last saw each device."""
    farm.part(Sightings).write(farm.database)


def note_conditions(farm: Farm) -> None:
    """Writes the devices' conditions, as they reported them to this process."""
    farm.part(Conditions).write(farm.database)


def forget_temperatures(farm: Farm) -> None:
    """Deletes temperatures that are older than a week."""
    with farm.database.read() as session:
        is_due = conditions.is_to_be_forgotten(session)
    if is_due:
        with farm.database.transaction() as session:
            conditions.forget(session)


def forget_secrets(farm: Farm) -> None:
    """Deletes links, sessions, credentials and idempotency records an hour after they ran out."""
    before = time.time() - FORGET_AFTER_S
    with farm.database.read() as session:
        stale = [table for table in SECRETS if session.scalar(_stale(table, before)) is not None]
    for table in stale:
        with farm.database.transaction() as session:
            session.execute(delete(table).where(table.__table__.c.expires_at < before))


def forget_tokens(farm: Farm) -> None:
    """Deletes enrolment tokens that ran out a season ago."""
    with farm.database.read() as session:
        is_due = tokens.is_to_be_forgotten(session)
    if is_due:
        with farm.database.transaction() as session:
            tokens.forget(session)


def forget_uploads(farm: Farm) -> None:
    """Deletes uploads that got no bytes for long."""
    uploads.forget_expired(farm)


def collect_garbage(farm: Farm) -> None:
    """Removes stored files that nothing refers to, a few in each sweep."""
    farm.part(GarbageTask).advance()


def apply_retention(farm: Farm) -> None:
    """Removes what the rules of retention say, a little in each sweep."""
    farm.part(RetentionTask).advance()


def _stale(table: type[Base], before: float):  # type: ignore[no-untyped-def]
    return select(table.__table__.c.expires_at).where(table.__table__.c.expires_at < before).limit(1)


STEPS: tuple[Step, ...] = (
    note_sightings,
    note_conditions,
    ring_outbox,
    ring_waiting_jobs,
    recover_jobs,
    expire_jobs,
    expire_leases,
    fill_lanes,
    expire_runs,
    send_canaries,
    note_key_uses,
    log_results,
    apply_retention,
    collect_garbage,
)
CALM_STEPS: tuple[Step, ...] = (
    send_timed_canaries,
    forget_secrets,
    forget_tokens,
    forget_temperatures,
    forget_uploads,
    keep_head,
)
"""Steps that nobody waits for."""
DELETING = (
    apply_retention,
    collect_garbage,
    forget_secrets,
    forget_tokens,
    forget_temperatures,
    forget_uploads,
)
CALM_EVERY = 5
"""Passes."""


class Sweeper:
    """A thread that sweeps now and then."""

    def __init__(self, farm: Farm, more: Sequence[Step] = ()) -> None:
        self._farm, self._more = farm, more
        self._signs = Signs(farm.database, "sweeper")
        self._gaps = Gaps(farm)
        self._stopping = threading.Event()
        self._moved_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        """Starts the sweeper, unless the settings turn sweeping off."""
        if self._farm.settings.sweep_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Stops after the step that is running."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def is_well(self) -> bool:
        """Whether it sweeps, unless it is not to; a pass may take long while the database is away or locked."""
        if self._farm.settings.sweep_s <= 0:
            return True
        return self._thread.is_alive() and time.monotonic() - self._moved_at < STUCK_S + self._farm.settings.sweep_s

    def _run(self) -> None:
        passes = itertools.count()
        while not self._stopping.wait(self._farm.settings.sweep_s):
            sweep(self._farm, self._gaps, urgent_only=next(passes) % CALM_EVERY != 0, more=self._more)
            try:
                self._signs.give()
            except Exception:
                LOG.exception("the sweeper could not give a sign of life")
            self._moved_at = time.monotonic()


__all__ = ["STEPS", "Sweeper", "sweep"]
