"""The events that happened, and the doorbells that are still to ring."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    Index,
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, BigId, Id


class Outbox(Base):
    """A doorbell to ring after the commit: written with the row it is about, deleted once sent."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    task: Mapped[str] = mapped_column(String(100))
    argument: Mapped[str] = mapped_column(Id)
    created_at: Mapped[float] = mapped_column(default=time.time)


class Event(Base):
    """Something that happened to a job or run (`subject` is its id); streams replay these in order of id."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_subject_id", "subject", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    subject: Mapped[str] = mapped_column(Id)
    at: Mapped[float] = mapped_column(default=time.time)
    kind: Mapped[str] = mapped_column(String(20))
    body: Mapped[dict[str, Any]]
