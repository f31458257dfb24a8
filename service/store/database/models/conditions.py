"""The reports of devices about themselves between and during runs: storage, and how warm they are."""

from __future__ import annotations

import time

from sqlalchemy import BigInteger, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, Id, OfDevice

QUARTER_S = 900
"""A temperature is kept for each quarter of an hour."""
LEAST_FREE_BYTES = 1 << 30
"""Free bytes that an agent's self-test asks for."""
ENOUGH_FREE_BYTES = 4 << 30
FEW = 20
"""Divisor of the storage: one part in so many is little room."""


class DeviceCondition(OfDevice, Base):
    """The condition that a device told last. Null: it did not tell that."""

    __tablename__ = "device_conditions"

    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), primary_key=True)
    storage_total_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Size of the file system where its agent keeps its work."""
    storage_free_bytes: Mapped[int | None] = mapped_column(BigInteger)
    kept_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Bytes of it that the agent's own files take: results to be sent, checkpoints, programs."""
    temperature_c: Mapped[float | None]
    problem: Mapped[str] = mapped_column(String(200), default="", server_default="")
    """Why what it told was not taken; empty: it was."""
    at: Mapped[float] = mapped_column(default=time.time)

    @property
    def storage_is_nearly_full(self) -> bool:
        """Less than 1 GiB is free, or less than a twentieth where that is less than 4 GiB."""
        if self.storage_total_bytes is None or self.storage_free_bytes is None:
            return False
        few_bytes = min(self.storage_total_bytes // FEW, ENOUGH_FREE_BYTES)
        return self.storage_free_bytes < max(LEAST_FREE_BYTES, few_bytes)


class DeviceTemperature(OfDevice, Base):
    """The hottest that a device has told of in a quarter of an hour; kept for some days."""

    __tablename__ = "device_temperatures"

    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), primary_key=True)
    quarter: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, index=True)
    """Quarters of an hour since 1970."""
    hottest_c: Mapped[float]
