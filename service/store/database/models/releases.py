"""Agents that the farm offers to its devices, and what came of it on each."""

from __future__ import annotations

import time

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id, one_of

RELEASE_STATES = ("offered", "halted")
UPDATE_STATES = ("given", "done", "failed")


class AgentRelease(Base):
    """A file, and to whom it is offered. The same file published again is another release."""

    __tablename__ = "agent_releases"
    __table_args__ = (one_of("state", "state", RELEASE_STATES),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("rel"))
    sequence: Mapped[int] = mapped_column(BigInteger, unique=True)
    """Goes up with each; devices take none that is not above those that they are done with."""
    version: Mapped[str] = mapped_column(String(40))
    digest: Mapped[str] = mapped_column(Digest)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    oldest_python: Mapped[str] = mapped_column(String(20))
    protocol: Mapped[str] = mapped_column(String(40))
    is_rollback: Mapped[bool] = mapped_column(Boolean)
    """Meant also for devices that run a newer version."""
    conditions: Mapped[list[str]]
    """Conditions on tags, like a run's `where`: only devices that meet all of them are offered the release."""
    state: Mapped[str] = mapped_column(String(20), default="offered")
    share: Mapped[float | None]
    """Share that `most_devices` was computed from, if it was a share of those that could take it."""
    most_devices: Mapped[int | None]
    """Most devices that may have it at this stage; null: all."""
    most_failures: Mapped[int | None]
    """The failure that halts it; null: the first of fewer than ten devices, else a tenth of them."""
    halt_reason: Mapped[str] = mapped_column(Text, default="")
    halted_at: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=time.time)


class AgentUpdate(Base):
    """A release that a device was given, and what came of it."""

    __tablename__ = "agent_updates"
    __table_args__ = (one_of("state", "state", UPDATE_STATES), Index("ix_agent_updates_device_id", "device_id"))

    release_id: Mapped[str] = mapped_column(Id, ForeignKey("agent_releases.id"), primary_key=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="given")
    reason: Mapped[str] = mapped_column(Text, default="")
    """Why it failed, as the device says."""
    given_at: Mapped[float] = mapped_column(default=time.time)
    ended_at: Mapped[float | None]
