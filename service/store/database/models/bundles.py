"""Bundles: what compiles gave."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id


class Bundle(Base):
    """A training bundle in the storage. `manifest` and `compile_report` are the files of those names in it."""

    __tablename__ = "bundles"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    id: Mapped[str] = mapped_column(Id, unique=True, default=lambda: new_id("bun"))
    """Sorts by age."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    target: Mapped[str] = mapped_column(String(100), index=True)
    model_name: Mapped[str]
    model_digest: Mapped[str] = mapped_column(Digest, index=True)
    plan_name: Mapped[str]
    plan_digest: Mapped[str] = mapped_column(Digest)
    spec_digest: Mapped[str] = mapped_column(Digest)
    required_features: Mapped[list[str]] = mapped_column(JSON, default=list)
    """CPU features that a device must report; from the manifest, for the scheduler reads them often."""
    manifest: Mapped[dict[str, Any]]
    compile_report: Mapped[dict[str, Any]] = mapped_column(JSON, deferred=True)
    created_at: Mapped[float] = mapped_column(default=time.time)
