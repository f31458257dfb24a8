"""Maintenance windows."""

from __future__ import annotations

import time

from sqlalchemy import CheckConstraint, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Id, OfOrganisation
from service.store.database.models.tenants import HOME


class MaintenanceWindow(OfOrganisation, Base):
    """A time in which devices get no work: one device, a class of devices, or (both null) all of them."""

    __tablename__ = "maintenance_windows"
    __table_args__ = (CheckConstraint("ends_at > starts_at", name="order"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("mnt"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"))
    device_class: Mapped[str | None] = mapped_column(String(100))
    starts_at: Mapped[float]
    """Start of its first time."""
    ends_at: Mapped[float]
    every_s: Mapped[float | None]
    """Seconds between two starts, for ever; null: the window comes once."""
    reason: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float] = mapped_column(default=time.time)
