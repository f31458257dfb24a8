"""Compile jobs."""

from __future__ import annotations

import time

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    String,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id, OfOrganisation, one_of
from service.store.database.models.tenants import HOME

JOB_STATES = ("queued", "compiling", "succeeded", "failed", "cancelled", "expired")
OPEN_JOB_STATES = ("queued", "compiling")
_CURRENT_JOB = text("state IN ('queued', 'compiling', 'succeeded')")


class Job(OfOrganisation, Base):
    """A compile. At most one job per `request_digest` is open or has succeeded, so repeats find it."""

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("state", "state", JOB_STATES),
        Index("ix_jobs_state_created_at", "state", "created_at"),
        Index("ix_jobs_organisation_id_id", "organisation_id", "id"),
        Index(
            "uq_jobs_current_request",
            "request_digest",
            unique=True,
            sqlite_where=_CURRENT_JOB,
            postgresql_where=_CURRENT_JOB,
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("job"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    state: Mapped[str] = mapped_column(String(20), default="queued")
    request_digest: Mapped[str] = mapped_column(Digest)
    model_name: Mapped[str]
    model_digest: Mapped[str] = mapped_column(Digest, index=True)
    model_bytes: Mapped[int] = mapped_column(BigInteger)
    plan_name: Mapped[str]
    plan_digest: Mapped[str] = mapped_column(Digest)
    plan_json: Mapped[str] = mapped_column(Text)
    spec_digest: Mapped[str] = mapped_column(Digest)
    spec_json: Mapped[str] = mapped_column(Text)
    source_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("bundles.digest"))
    """The bundle whose kernels are to be measured: the job makes a tuning bundle of it. Null: it compiles the model."""
    tuning_json: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Measured schedules of the target when the job was submitted (`pockfarm.tuning/1`); empty: none."""
    target: Mapped[str] = mapped_column(String(100))
    compiler_version: Mapped[str] = mapped_column(String(100))
    stage: Mapped[str] = mapped_column(String(100), default="")
    fraction: Mapped[float] = mapped_column(default=0.0)
    """Progress of the compile, 0 to 1."""
    bundle_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("bundles.digest"), index=True)
    cause: Mapped[str | None] = mapped_column(String(20))
    code: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str] = mapped_column(Text, default="")
    place: Mapped[str] = mapped_column(Text, default="")
    hint: Mapped[str] = mapped_column(Text, default="")
    attempts: Mapped[int] = mapped_column(default=0)
    claim_hash: Mapped[str | None] = mapped_column(String(64))
    """Fencing token of the worker that has it."""
    worker: Mapped[str | None] = mapped_column(String(200))
    """The worker process that has it: who finds that process dead gives the job back at once."""
    lease_expires_at: Mapped[float | None]
    cpu_s: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Processor time of all its compiles, as far as workers told."""
    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    rung_at: Mapped[float] = mapped_column(default=time.time)
    """When its doorbell was last rung."""
    queue_deadline_at: Mapped[float]
    created_at: Mapped[float] = mapped_column(default=time.time)
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None] = mapped_column(index=True)
    files_removed_at: Mapped[float | None]
    """When retention took its model; the row refers to it no more."""
    events_removed_at: Mapped[float | None]
    """When retention took its events."""
    version: Mapped[int] = mapped_column(default=1, onupdate=text("version + 1"))
