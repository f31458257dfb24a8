"""Lanes of the queue."""

from __future__ import annotations

import time

from sqlalchemy import Boolean, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, Id


class Lane(Base):
    """Runs that exactly the same devices may take (`service/work/lanes/key.py`). Its id is a digest of the other
    columns.

    Rows are written once and stay: there are as many as there have been kinds of wishes, not as there are runs. Devices
    come to a lane through the runs that wait in it, so that an empty one costs nothing.
    """

    __tablename__ = "lanes"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    organisation_id: Mapped[str] = mapped_column(Id)
    """Whose runs they are."""
    target: Mapped[str] = mapped_column(String(100))
    features: Mapped[list[str]]
    """Features that a device must have."""
    device_class: Mapped[str] = mapped_column(String(100))
    """Empty: of any class; as `device_id`."""
    device_id: Mapped[str] = mapped_column(Id)
    is_canary: Mapped[bool] = mapped_column(Boolean)
    wants: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Further offers that a device must make (`service/devices/wants.py`), a line for each."""
    created_at: Mapped[float] = mapped_column(default=time.time)
