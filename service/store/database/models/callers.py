"""The callers of the API, and the answers that they got."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    ForeignKey,
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Id, OfOrganisation, one_of
from service.store.database.models.tenants import HOME


class ApiKey(OfOrganisation, Base):
    """A key of the public API: what it may do are its `scopes`, in its organisation.

    `role` is `operator` for a key with the scope `operate`, else `user`.
    """

    __tablename__ = "api_keys"
    __table_args__ = (one_of("role", "role", ("user", "operator")),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("key"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    user_id: Mapped[str | None] = mapped_column(Id)
    """Whose it is; null: a program's."""
    name: Mapped[str]
    role: Mapped[str] = mapped_column(String(20))
    scopes: Mapped[str] = mapped_column(String(100), default="", server_default="")
    """Words of `service/people/permissions.py`; empty: those of the role."""
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(default=time.time)
    revoked_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    """When the key expires; null: never."""
    last_used_at: Mapped[float | None]
    """When the key was last used, to the minute."""
    unconfirmed_at: Mapped[float | None]
    """Since when, after a restore, it waits for somebody who says that it is still good (`service/operations/backup/`);
    null: it is.
    """


class DashboardLink(Base):
    """A one-time link into the dashboard."""

    __tablename__ = "dashboard_links"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    expires_at: Mapped[float]
    used_at: Mapped[float | None]


class DashboardSession(Base):
    """A browser that opened a one-time link; the cookie holds the secret."""

    __tablename__ = "dashboard_sessions"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    created_at: Mapped[float] = mapped_column(default=time.time)
    expires_at: Mapped[float]


class IdempotencyRecord(Base):
    """The answer already given to one `Idempotency-Key` of one API key."""

    __tablename__ = "idempotency_records"

    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any] | None]
    body: Mapped[dict[str, Any] | None]
    expires_at: Mapped[float]
