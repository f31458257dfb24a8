"""Webhooks and what was sent to them."""

from __future__ import annotations

import time

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Id, OfOrganisation, one_of
from service.store.database.models.tenants import HOME

DELIVERY_STATES = ("waiting", "delivered", "failed")


class Webhook(OfOrganisation, Base):
    """An address that is told of its owner's jobs and runs."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("hook"))
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    """The key that made it."""
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME, index=True)
    """Whose jobs and runs it is told of."""
    url: Mapped[str] = mapped_column(String(1000))
    events: Mapped[list[str]]
    secret: Mapped[str] = mapped_column(String(100))
    """Secret with which both ends sign, so it is stored as it is."""
    created_at: Mapped[float] = mapped_column(default=time.time)
    removed_at: Mapped[float | None]
    removed_because: Mapped[str] = mapped_column(Text, default="")
    unconfirmed_at: Mapped[float | None]
    """Since when, after a restore, it waits for somebody who says that it is still good (`service/operations/backup/`);
    null: it is.
    """
    failures: Mapped[int] = mapped_column(default=0)
    """Deliveries in a row that failed."""
    resting_until: Mapped[float] = mapped_column(default=0.0)
    """Until when nothing is sent there after failures."""


class WebhookDelivery(OfOrganisation, Base):
    """A message to a webhook: written in the transaction of what it tells, so that neither is without the other.

    `next_at`: when it is sent (again), or, while a process sends it, when another may take it over; null: it is over.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        one_of("state", "state", DELIVERY_STATES),
        Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("dlv"))
    webhook_id: Mapped[str] = mapped_column(Id, ForeignKey("webhooks.id"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    event: Mapped[str] = mapped_column(String(40))
    subject: Mapped[str] = mapped_column(Id)
    """Id of the job or run."""
    state: Mapped[str] = mapped_column(String(20), default="waiting")
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[float | None] = mapped_column(default=time.time, index=True)
    status: Mapped[int | None]
    """Status that the address answered last."""
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float] = mapped_column(default=time.time)
    finished_at: Mapped[float | None] = mapped_column(index=True)
