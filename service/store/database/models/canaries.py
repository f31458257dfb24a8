"""The times of timed canaries on each device, and the points where they changed."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id, OfDevice


class CanaryTime(OfDevice, Base):
    """A timed canary run. Retention leaves it alone: a history is worth its few bytes."""

    __tablename__ = "canary_times"
    __table_args__ = (Index("ix_canary_times_device_id_series_run_id", "device_id", "series", "run_id"),)

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    series: Mapped[str] = mapped_column(Digest)
    """Digest of what must be the same for two times to be of one thing: model, plan, spec, target, settings."""
    canary: Mapped[str] = mapped_column(String(40))
    target: Mapped[str] = mapped_column(String(100))
    model_digest: Mapped[str] = mapped_column(Digest)
    plan_digest: Mapped[str] = mapped_column(Digest)
    spec_digest: Mapped[str] = mapped_column(Digest)
    median_us: Mapped[float]
    verdict: Mapped[str] = mapped_column(String(20))
    """Only what is valid is judged."""
    facts: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Facts that may explain a change (`service/boards/canary/history.py`): compiler, commit, bundle, and what the
    device said.
    """
    at: Mapped[float] = mapped_column(default=time.time)


class CanaryChange(OfDevice, Base):
    """A change of a device's times of one series by more than the device's noise."""

    __tablename__ = "canary_changes"
    __table_args__ = (UniqueConstraint("device_id", "series", "after_run_id"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("chg"))
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    series: Mapped[str] = mapped_column(Digest)
    canary: Mapped[str] = mapped_column(String(40))
    target: Mapped[str] = mapped_column(String(100))
    before_run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"))
    """The last run before it."""
    after_run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"))
    ratio: Mapped[float]
    """Ratio of the time after it to the time before."""
    ratio_low: Mapped[float]
    ratio_high: Mapped[float]
    deviation: Mapped[float]
    """Relative deviation of one run from the next: the noise that the change exceeds."""
    differences: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Other changes at that point: `what`, `before`, `after`, and how many runs `away`."""
    found_at: Mapped[float] = mapped_column(default=time.time)
    acknowledged_at: Mapped[float | None]
    acknowledgement: Mapped[str] = mapped_column(Text, default="", server_default="")
