"""Those who share the farm: organisations, their people, the files they hold, what they may spend, and what they
did.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id, OfOrganisation, one_of

HOME = "org_home"
"""The farm's own organisation: it is there from the first migration on, and has all that nobody else owns."""
HOLDING_KINDS = ("bundle", "dataset", "model", "data", "weights")


class Organisation(Base):
    """A tenant. `quotas`: its limits by name (`service/people/quotas/`); an absent limit is the farm's default."""

    __tablename__ = "organisations"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("org"))
    name: Mapped[str] = mapped_column(String(200), unique=True)
    quotas: Mapped[dict[str, Any]] = mapped_column(default=dict)
    retention: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Days by rule (`service/operations/retention/`), null for ever; what is absent is the farm's default."""
    runs_served_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """When a device last began a run of it: who has waited longest is served first."""
    created_at: Mapped[float] = mapped_column(default=time.time)
    closed_at: Mapped[float | None]
    """When it was closed: since then none of its keys is accepted."""


class User(OfOrganisation, Base):
    """A person of an organisation, to whom keys may belong."""

    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("organisation_id", "name"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("usr"))
    organisation_id: Mapped[str] = mapped_column(Id, ForeignKey("organisations.id"))
    name: Mapped[str]
    created_at: Mapped[float] = mapped_column(default=time.time)
    removed_at: Mapped[float | None]
    """When the person was removed: since then none of the person's keys is accepted."""


class Holding(OfOrganisation, Base):
    """A file that an organisation has: it sent the bytes, or its work made them.

    Files are stored once, by digest; a digest says nothing to who does not hold it. Names and times are the holder's.
    """

    __tablename__ = "holdings"
    __table_args__ = (
        one_of("kind", "kind", HOLDING_KINDS),
        Index("ix_holdings_organisation_id_kind_id", "organisation_id", "kind", "id"),
        Index("ix_holdings_digest", "digest"),
    )

    organisation_id: Mapped[str] = mapped_column(Id, primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), primary_key=True)
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    id: Mapped[str] = mapped_column(Id)
    """Sorts by age."""
    name: Mapped[str] = mapped_column(default="", server_default="")
    """A data set's, or that of the model in a bundle."""
    plan_name: Mapped[str] = mapped_column(default="", server_default="")
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(default=time.time)
    pinned_at: Mapped[float | None]
    """Retention leaves it alone from then on."""
    files_removed_at: Mapped[float | None]
    """When retention took the file; the row stays for its name. Null: it is held."""


class AuditEntry(OfOrganisation, Base):
    """An entry of the audit log: who did what, to what, and with what outcome. Nothing changes or deletes one but the
    retention of old entries.
    """

    __tablename__ = "audit_entries"
    __table_args__ = (Index("ix_audit_entries_organisation_id_id", "organisation_id", "id"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("aud"))
    """Sorts by age, and does not tell how many entries others have."""
    organisation_id: Mapped[str] = mapped_column(Id)
    """Whose caller it was."""
    at: Mapped[float] = mapped_column(default=time.time)
    key_id: Mapped[str | None] = mapped_column(Id)
    user_id: Mapped[str | None] = mapped_column(Id)
    address: Mapped[str] = mapped_column(String(100))
    """Address from which the request came."""
    action: Mapped[str]
    """Method and path, as `service/people/permissions.py` has them."""
    subject: Mapped[str] = mapped_column(String(200), default="")
    """Ids and digests that the request named in its path, or the id of what it made."""
    outcome: Mapped[str] = mapped_column(String(20))
    """done, refused or failed."""
    status: Mapped[int]
    code: Mapped[str] = mapped_column(String(100), default="")
    """Code of the problem, if the request was refused."""
    detail: Mapped[str] = mapped_column(Text, default="")


class Allowance(Base):
    """The requests that an organisation may still make: a bucket of tokens that fills with time
    (`service/people/quotas/rates.py`).
    """

    __tablename__ = "allowances"

    organisation_id: Mapped[str] = mapped_column(Id, primary_key=True)
    tokens: Mapped[float]
    filled_at: Mapped[float]
