"""Takes what the rules of retention say, in small transactions: files from their holders, events, old log entries.

A file is taken from an organisation by a mark on its holding. When nobody holds it any more it is *released*: the
records that name it (a bundle's row, a run's) keep it no longer, and the garbage collector removes its bytes after the
grace age. Records, results and the log of results stay.

Old files of an organisation that are still needed: by open jobs and runs, by newer ones, by pinned runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Select, delete, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.base.identifiers import digest_of
from service.base.incremental import IncrementalTask
from service.base.settings import Settings
from service.operations.retention.rules import DAY_S, RuleName, days_of
from service.people.audit.command_entries import add_entry
from service.people.holdings.service import Kind
from service.store.database.engine import Database
from service.store.database.models import (
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    Attempt,
    AuditEntry,
    ComparedBundle,
    Event,
    FileUse,
    Holding,
    Job,
    ListedFile,
    Organisation,
    Run,
    Upload,
    WebhookDelivery,
)
from service.store.garbage.noting import lock_files
from service.store.garbage.references import referred

Condition = ColumnElement[bool]


def is_needed(session: Session, holding: Holding, before: float) -> bool:
    """Whether something of the organisation needs the file that came before then."""
    was_sent = exists().where(Upload.digest == holding.digest)  # its sender may not have asked for the next thing yet
    reasons = (was_sent, *REASONS[holding.kind](holding, before))  # type: ignore[index]
    return any(session.scalar(select(reason)) for reason in reasons)


def is_open_anywhere(session: Session, digest: str) -> bool:
    """Whether an open run of anybody needs the file."""
    named = or_(
        Run.bundle_digest == digest,
        Run.dataset_digest == digest,
        Run.validation_dataset_digest == digest,
        Run.weights_digest == digest,
        _compares(digest),
    )
    return bool(session.scalar(select(exists().where(named, Run.state.in_(OPEN_RUN_STATES)))))


def _compares(digest: str) -> Condition:
    return exists().where(ComparedBundle.run_id == Run.id, ComparedBundle.bundle_digest == digest)


def _counts(before: float) -> Condition:
    return or_(Run.state.in_(OPEN_RUN_STATES), Run.created_at >= before, Run.pinned_at.is_not(None))


def _run(holding: Holding, before: float, named: Condition) -> Condition:
    return exists().where(Run.organisation_id == holding.organisation_id, named, _counts(before))


def _bundle(holding: Holding, before: float) -> tuple[Condition, ...]:
    tuning = exists().where(Job.source_digest == holding.digest, Job.state.in_(OPEN_JOB_STATES))
    named = or_(Run.bundle_digest == holding.digest, _compares(holding.digest))
    return _run(holding, before, named), tuning


def _dataset(holding: Holding, before: float) -> tuple[Condition, ...]:
    columns = (Run.dataset_digest, Run.validation_dataset_digest)
    return tuple(_run(holding, before, column == holding.digest) for column in columns)


def _weights(holding: Holding, before: float) -> tuple[Condition, ...]:
    was_sent = exists().where(Attempt.run_id == Run.id, Attempt.weights_digest == holding.digest)
    return (
        _run(holding, before, Run.weights_digest == holding.digest),
        _run(holding, before, Run.trained_weights_digest == holding.digest),
        exists().where(Run.organisation_id == holding.organisation_id, Run.state.in_(OPEN_RUN_STATES), was_sent),
    )


def _model(holding: Holding, before: float) -> tuple[Condition, ...]:
    listings = select(ListedFile.listing).where(ListedFile.digest == holding.digest)
    named = or_(Job.model_digest == holding.digest, Job.model_digest.in_(listings))
    counts = or_(Job.state.in_(OPEN_JOB_STATES), Job.created_at >= before)
    compiled = exists().where(Job.organisation_id == holding.organisation_id, named, counts)
    other = aliased(Holding)
    listed = exists().where(
        other.organisation_id == holding.organisation_id,
        other.kind == "model",
        other.digest.in_(listings),
        other.digest != holding.digest,
        other.files_removed_at.is_(None),
    )
    return compiled, listed


REASONS: Mapping[Kind, Callable[[Holding, float], tuple[Condition, ...]]] = {
    "bundle": _bundle,
    "dataset": _dataset,
    "weights": _weights,
    "model": _model,
    "data": _model,
}


LOG = logging.getLogger(__name__)
BATCH = 100
KINDS: Mapping[RuleName, tuple[str, ...]] = {
    "bundles": ("bundle",),
    "datasets": ("dataset",),
    "weights": ("weights",),
    "models": ("model", "data"),
}
NAMES = {"bundle": "bundle", "dataset": "data set", "weights": "trained weights", "model": "model", "data": "data file"}


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that went, or would go. `subject`: a digest; for rows of a log, how many."""

    organisation_id: str
    what: str
    subject: str
    size_bytes: int = 0


@dataclass(slots=True)
class Retention:
    """A pass of retention. `steps` may be left at any point, and another pass begun."""

    database: Database
    settings: Settings
    dry_run: bool = False
    removals: list[Removal] = field(default_factory=list)
    now: float = field(default_factory=time.time)

    def run(self) -> list[Removal]:
        """Runs the whole pass. Returns what it removed."""
        for _ in self.steps():
            pass
        return self.removals

    def say(self) -> None:
        """Logs what it did."""
        if self.removals:
            size_bytes = sum(removal.size_bytes for removal in self.removals)
            LOG.info("retention took %d things (files of %d bytes)", len(self.removals), size_bytes)

    def steps(self) -> Iterator[None]:
        """Runs the pass, and yields after each step, which takes little time."""
        with self.database.read() as session:
            rows = session.execute(select(Organisation.id, Organisation.retention).order_by(Organisation.id))
            owners = [(organisation_id, dict(overrides)) for organisation_id, overrides in rows]
        for organisation_id, overrides in owners:
            for name, act in RULES.items():
                days = days_of(self.settings, overrides, name)
                if days is not None:
                    yield from act(self, organisation_id, name, self.now - days * DAY_S)

    def files(self, organisation_id: str, rule: RuleName, before: float) -> Iterator[None]:
        """Marks holdings of the rule's kinds."""
        for kind in KINDS[rule]:
            query = select(Holding.digest).where(
                Holding.organisation_id == organisation_id, Holding.kind == kind, *_is_due(before)
            )
            for batch in self._batches(query.add_columns(Holding.id), Holding.id):
                for digest in batch:
                    self._take_file((organisation_id, kind, digest), before)
                    yield
        if rule == "models":
            yield from self._models_of_jobs(organisation_id, before)

    @contextmanager
    def _trial(self) -> Iterator[Session]:
        """Yields a transaction, which a dry run undoes at its end."""
        with self.database.transaction() as session:
            yield session
            if self.dry_run:
                session.rollback()

    def _take_file(self, key: tuple[str, str, str], before: float) -> None:
        digest = key[2]
        with self._trial() as session:
            files = lock_files(session, digest)  # before the holding, as whoever holds a file does
            holding = session.get(Holding, key, with_for_update=True)
            if holding is None or not _is_still_due(holding, before) or is_needed(session, holding, before):
                return
            removal = Removal(key[0], NAMES[holding.kind], digest, holding.size_bytes)
            self.removals.append(removal)
            holding.files_removed_at = time.time()
            if holding.kind == "bundle":
                _answer_no_more(session, digest, key[0])
            session.flush()
            release_free(session, files)
            note(session, removal)

    def _models_of_jobs(self, organisation_id: str, before: float) -> Iterator[None]:
        """Removes models that were sent with their requests. The jobs that compiled such a model protect it until they
        are old enough.
        """
        old = (
            Job.organisation_id == organisation_id,
            Job.state.not_in(OPEN_JOB_STATES),
            Job.created_at < before,
            Job.files_removed_at.is_(None),
        )
        query = select(Job.model_digest, Job.model_digest).where(*old).distinct()
        for batch in self._batches(query, Job.model_digest):
            for digest in batch:
                self._take_model(organisation_id, digest, old)
                yield

    def _take_model(self, organisation_id: str, digest: str, old: Sequence[ColumnElement[bool]]) -> None:
        with self._trial() as session:
            files = lock_files(session, digest)
            size_bytes = session.scalar(select(func.max(Job.model_bytes)).where(Job.model_digest == digest, *old))
            session.execute(update(Job).where(Job.model_digest == digest, *old).values(files_removed_at=time.time()))
            is_noted = session.get(Holding, (organisation_id, "model", digest)) is not None  # as that was taken
            if digest in release_free(session, files) and not is_noted:
                removal = Removal(organisation_id, "model", digest, size_bytes or 0)
                self.removals.append(removal)
                note(session, removal)

    def events(self, organisation_id: str, _: RuleName, before: float) -> Iterator[None]:
        """Deletes events of what ended before then."""
        run = (Run.pinned_at.is_(None), Run.state.not_in(OPEN_RUN_STATES))
        for kind, more in ((Run, run), (Job, (Job.state.not_in(OPEN_JOB_STATES),))):
            query = select(kind.id, kind.id).where(
                kind.organisation_id == organisation_id,
                kind.finished_at < before,
                kind.events_removed_at.is_(None),
                *more,
            )
            for batch in self._batches(query, kind.id):
                self._forget(organisation_id, f"events of {kind.__tablename__}", batch, _forget_events(kind))
                yield

    def audit(self, organisation_id: str, _: RuleName, before: float) -> Iterator[None]:
        """Deletes old entries of the audit log."""
        old = (AuditEntry.organisation_id == organisation_id, AuditEntry.at < before)
        for batch in self._batches(select(AuditEntry.id, AuditEntry.id).where(*old), AuditEntry.id):
            self._forget(organisation_id, "entries of the audit log", batch, _forget_rows(AuditEntry))
            yield

    def deliveries(self, organisation_id: str, _: RuleName, before: float) -> Iterator[None]:
        """Deletes the log of deliveries that have long been over."""
        old = (WebhookDelivery.organisation_id == organisation_id, WebhookDelivery.finished_at < before)
        for batch in self._batches(select(WebhookDelivery.id, WebhookDelivery.id).where(*old), WebhookDelivery.id):
            self._forget(organisation_id, "deliveries", batch, _forget_rows(WebhookDelivery))
            yield

    def _forget(
        self, organisation_id: str, what: str, ids: Sequence[str], act: Callable[[Session, Sequence[str]], None]
    ) -> None:
        removal = Removal(organisation_id, what, f"{len(ids)}")
        self.removals.append(removal)
        if self.dry_run:
            return
        with self.database.transaction() as session:
            act(session, ids)
            note(session, removal)

    def _batches(self, query: Select[str, str], order: InstrumentedAttribute[str]) -> Iterator[list[str]]:
        """Yields the first columns of `query`, whose second one is `order`, a few at a time."""
        last = ""
        while True:
            with self.database.read() as session:
                rows = session.execute(query.where(order > last).order_by(order).limit(BATCH)).all()
            if not rows:
                return
            last = rows[-1][1]
            yield [row[0] for row in rows]


def _is_due(before: float) -> tuple[ColumnElement[bool], ...]:
    return Holding.created_at < before, Holding.files_removed_at.is_(None), Holding.pinned_at.is_(None)


def _is_still_due(holding: Holding, before: float) -> bool:
    return holding.created_at < before and holding.files_removed_at is None and holding.pinned_at is None


def _answer_no_more(session: Session, bundle: str, organisation_id: str) -> None:
    """Makes the same request compile anew from now on: the job that made the bundle no longer answers it."""
    conditions = (Job.bundle_digest == bundle, Job.organisation_id == organisation_id)
    for job_id in session.scalars(select(Job.id).where(*conditions)).all():
        session.execute(update(Job).where(Job.id == job_id).values(request_digest=digest_of(job_id.encode())))


def release_free(session: Session, files: Sequence[str]) -> set[str]:
    """Releases those locked files that nobody holds and no open run needs: records that name them no longer protect
    them. Returns the files that were released.
    """
    open_files = {digest for digest in files if is_open_anywhere(session, digest)}
    free = sorted(set(files) - open_files)
    noted = update(FileUse).where(FileUse.digest.in_(free), FileUse.released_at.is_(None))
    session.execute(noted.values(released_at=time.time(), used_at=time.time()))  # the grace of their bytes begins now
    still = referred(session, free)
    session.execute(update(FileUse).where(FileUse.digest.in_(still)).values(released_at=None))
    return set(free) - still


def note(session: Session, removal: Removal) -> None:
    """Adds the removal to the audit log, in the same transaction."""
    size = f", {removal.size_bytes:,} bytes" if removal.size_bytes else ""
    detail = f"{removal.what}{size}: removed by the rules of retention"
    add_entry(session, removal.organisation_id, "retention", subject=removal.subject, detail=detail)


def _forget_events(kind: type[Run | Job]) -> Callable[[Session, Sequence[str]], None]:
    def act(session: Session, ids: Iterable[str]) -> None:
        session.execute(delete(Event).where(Event.subject.in_(ids)))
        session.execute(update(kind).where(kind.id.in_(ids)).values(events_removed_at=time.time()))

    return act


def _forget_rows(kind: type[AuditEntry | WebhookDelivery]) -> Callable[[Session, Sequence[str]], None]:
    def act(session: Session, ids: Iterable[str]) -> None:
        session.execute(delete(kind).where(kind.id.in_(ids)))

    return act


RULES: Mapping[RuleName, Callable[[Retention, str, RuleName, float], Iterator[None]]] = {
    "weights": Retention.files,
    "bundles": Retention.files,
    "datasets": Retention.files,
    "models": Retention.files,
    "events": Retention.events,
    "audit": Retention.audit,
    "deliveries": Retention.deliveries,
}


class RetentionTask(IncrementalTask):
    """Applies the rules of retention every `retention_s` seconds."""

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(lambda: Retention(database, settings), every_s=settings.retention_s)
