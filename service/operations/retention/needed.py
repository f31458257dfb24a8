"""Old files of an organisation that are still needed: by open jobs and runs, by newer ones, by pinned runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session, aliased

from service.people.holdings.service import Kind
from service.store.database.models import (
    OPEN_JOB_STATES,
    OPEN_RUN_STATES,
    Attempt,
    ComparedBundle,
    Holding,
    Job,
    ListedFile,
    Run,
    Upload,
)

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
