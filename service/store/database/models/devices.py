"""Devices: who they are, how they fare, what they may do, and the keys that they trust."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    SQLColumnExpression,
    String,
    Text,
    UniqueConstraint,
    false,
    func,
    text,
    true,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, BigId, Id, OfDevice, OfOrganisation, one_of
from service.store.database.models.tenants import HOME

DEVICE_STATES = ("active", "quarantined", "removed")


class Device(Base):
    """A board (or this computer, or an emulator) with its agent. Fields as in the agent's own description."""

    __tablename__ = "devices"
    __table_args__ = (one_of("state", "state", DEVICE_STATES),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("dev"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    """Its owner, whose operators decide about it."""
    is_shared: Mapped[bool] = mapped_column(Boolean, default=True, server_default=true())
    """Everybody's runs may come to it; else its owner's only."""
    told_name: Mapped[str] = mapped_column("name")
    """Name that its agent gives, as it enrols and at each renewal."""
    given_name: Mapped[str | None]
    """Name that an operator has given it; null: its agent's word counts."""
    state: Mapped[str] = mapped_column(String(20), default="active")
    state_reason: Mapped[str] = mapped_column(Text, default="")
    device_class: Mapped[str] = mapped_column(String(100), index=True)
    measurement_class: Mapped[str] = mapped_column(String(20))
    targets: Mapped[list[str]]
    architecture: Mapped[str] = mapped_column(String(40))
    cpu_model: Mapped[str]
    features: Mapped[list[str]]
    cores: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    sensors: Mapped[list[str]]
    isolation_level: Mapped[int]
    agent_version: Mapped[str] = mapped_column(String(100))
    runner: Mapped[str | None]
    environment: Mapped[dict[str, Any]]
    public_key: Mapped[str] = mapped_column(String(64), unique=True)
    session: Mapped[str] = mapped_column(String(100))
    """The agent's current start; another one's writes are refused."""
    quarantined_for: Mapped[str] = mapped_column(String(20), default="", server_default="")
    """`strikes` or `clock`; empty: by an operator, or not at all."""
    strikes: Mapped[int] = mapped_column(default=0)
    """Attempts that failed because of the device, without a success between."""
    released_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When an operator last said that it is mended: runs that failed on it before may come back."""
    bound_targets: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Targets that its enrolment token named: it may run these and no others. Null: any."""
    succeeded_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When an attempt last succeeded on it."""
    canary_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When it may be given a canary run, while strikes quarantine it."""
    timed_canary_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When its next timed canaries are due; 0: nothing has been planned."""
    canary_deviation: Mapped[float] = mapped_column(default=0.0, server_default="0")
    canary_freedom: Mapped[int] = mapped_column(default=0, server_default="0")
    """Variation of its timed canaries from one to the next, between changes (`figures.apart.Variation`): its deviation
    and its degrees of freedom.
    """
    canary_failures: Mapped[int] = mapped_column(default=0, server_default="0")
    """Canary runs in a row that were not right."""
    canary_off: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    """An operator wants none for it."""
    drained_at: Mapped[float | None]
    """Since when an operator wants nothing new on it; null: it takes work."""
    drain_reason: Mapped[str] = mapped_column(Text, default="", server_default="")
    tags: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict, server_default=text("'{}'"))
    """The device's tags by key; a value may be empty. Operators set them."""
    own_datasets: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list, server_default=text("'[]'"))
    """Data sets that stay on it (`device_agents.wire.OwnDataset`): allowed by its operator, told of by its agent."""
    modes: Mapped[list[str]] = mapped_column(JSON, default=list, server_default=text("'[]'"))
    """Modes of runs that its agent takes beside `device_agents.wire.FIRST_MODES`."""
    agent_updates: Mapped[str] = mapped_column(String(20), default="", server_default="")
    """Whether its agent updates itself (`device_agents.wire.Program`): on, off, installed (by another tool), trial;
    empty: it is older than that."""
    agent_digest: Mapped[str] = mapped_column(String(71), default="", server_default="")
    """Digest of the one file that its agent says it runs from; empty: from none."""
    unconfirmed_at: Mapped[float | None]
    """Since when, after a restore, it waits for somebody who says that it is still good (`service/operations/backup/`);
    null: it is.
    """
    created_at: Mapped[float] = mapped_column(default=time.time)
    last_seen_at: Mapped[float] = mapped_column(default=time.time)

    @hybrid_property
    def name(self) -> str:
        """Name by which people call it."""
        return self.given_name or self.told_name

    @name.inplace.expression
    @classmethod
    def _name_in_sql(cls) -> SQLColumnExpression[str]:
        return func.coalesce(cls.given_name, cls.told_name)


class Strike(OfDevice, Base):
    """A run that failed on a device because of the device; gone when the device succeeds, or the run is to blame."""

    __tablename__ = "strikes"
    __table_args__ = (UniqueConstraint("device_id", "run_id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    code: Mapped[str] = mapped_column(String(100))
    at: Mapped[float] = mapped_column(default=time.time)


class DeviceEvent(OfDevice, Base):
    """A line of a device's health history: enrolled, restarted, struck, quarantined, released, removed."""

    __tablename__ = "device_events"
    __table_args__ = (Index("ix_device_events_device_id_id", "device_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    at: Mapped[float] = mapped_column(default=time.time)
    kind: Mapped[str] = mapped_column(String(40))
    message: Mapped[str] = mapped_column(Text, default="")


class EnrolmentToken(OfOrganisation, Base):
    """A right to enrol a device, or several, perhaps of one class or of some targets only."""

    __tablename__ = "enrolment_tokens"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    is_shared: Mapped[bool] = mapped_column(Boolean, default=True, server_default=true())
    """Whether the device that uses it becomes shared."""
    id: Mapped[str | None] = mapped_column(Id, unique=True)
    """Id by which people name the token; null: an older release made it."""
    name: Mapped[str] = mapped_column(default="", server_default="")
    device_class: Mapped[str | None] = mapped_column(String(100))
    created_at: Mapped[float] = mapped_column(default=time.time)
    expires_at: Mapped[float]
    device_id: Mapped[str | None] = mapped_column(Id, ForeignKey("devices.id"))
    """The device that used it last."""
    targets: Mapped[list[str] | None] = mapped_column(JSON)
    """A device may run these only; null: any."""
    max_uses: Mapped[int] = mapped_column(default=1, server_default="1")
    uses: Mapped[int] = mapped_column(default=0, server_default="0")
    revoked_at: Mapped[float | None]


class EnrolmentUse(OfOrganisation, Base):
    """A device that used a token."""

    __tablename__ = "enrolment_uses"
    __table_args__ = (UniqueConstraint("token_id", "device_id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    token_id: Mapped[str] = mapped_column(Id)
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"))
    at: Mapped[float] = mapped_column(default=time.time)


class DeviceCredential(Base):
    """A short-lived bearer token of one session of one device."""

    __tablename__ = "device_credentials"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    device_id: Mapped[str] = mapped_column(Id, ForeignKey("devices.id"), index=True)
    session: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[float]


class UsedChallenge(Base):
    """A challenge that a device has answered: it is good once. Kept until it is too old to be answered."""

    __tablename__ = "used_challenges"

    challenge_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    expires_at: Mapped[float] = mapped_column(index=True)


class SigningKey(Base):
    """A key that the farm signs, or has signed, assignments with; the private half is a file
    (`service/store/signing.py`).
    """

    __tablename__ = "signing_keys"

    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_key: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(default=time.time)
    retired_at: Mapped[float | None]
