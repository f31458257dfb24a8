"""The machines that agents of a device have run on: two at a time are a copied memory card or state folder."""

from __future__ import annotations

import time

from sqlalchemy import Boolean, ForeignKey, Index, String, false
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, BigId, Id, OfDevice


class DeviceMachine(OfDevice, Base):
    """A boot of a machine whose agent used a device's identity. Fields as in `device_agents.wire.Machine`."""

    __tablename__ = "device_machines"
    __table_args__ = (Index("ix_device_machines_device_id_seen_at", "device_id", "seen_at"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    serial: Mapped[str] = mapped_column(String(100))
    boot_id: Mapped[str] = mapped_column(String(40))
    host: Mapped[str] = mapped_column(String(100))
    folder: Mapped[str] = mapped_column(String(300))
    folder_id: Mapped[str] = mapped_column(String(40))
    address: Mapped[str] = mapped_column(String(100))
    """Address from which its newest request came."""
    is_present: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    """Whether it is the machine that works as the device."""
    waits_since: Mapped[float] = mapped_column(default=time.time)
    """When it first asked, of the requests that it has been repeating since, to become the one that works."""
    seen_at: Mapped[float] = mapped_column(default=time.time)
    """When it last enrolled, renewed, or asked to."""
    refused_at: Mapped[float | None] = mapped_column(index=True)
    """When it was last refused because another machine works."""
