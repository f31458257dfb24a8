"""Schedules chosen by measurement."""

from __future__ import annotations

import time

from sqlalchemy import (
    ForeignKey,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Id, OfOrganisation
from service.store.database.models.tenants import HOME


class Tuning(OfOrganisation, Base):
    """The schedule that won when a kernel was measured on a board; compiles for its target use it.

    `choice` is empty where the default won. `version` is the compiler's identity: another one builds other code.
    """

    __tablename__ = "tunings"
    __table_args__ = (UniqueConstraint("organisation_id", "target", "version", "kernel", "threads"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("tun"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    """Whose measurements chose it: what others measure says what they build."""
    target: Mapped[str] = mapped_column(String(100))
    version: Mapped[str] = mapped_column(String(64))
    kernel: Mapped[str] = mapped_column(String(64))
    """The kernel's signature."""
    threads: Mapped[int]
    choice: Mapped[str] = mapped_column(String(500))
    default_us: Mapped[float]
    tuned_us: Mapped[float]
    device_class: Mapped[str] = mapped_column(String(100))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"))
    """The run that measured it: its report holds every variant's times."""
    measured_at: Mapped[float] = mapped_column(default=time.time)
