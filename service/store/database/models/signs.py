"""Signs of life of the farm's own processes."""

from __future__ import annotations

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, one_of

SIGN_KINDS = ("api", "sweeper", "worker", "courier")


class SignOfLife(Base):
    """When a process last did what it is there for; it writes so every few seconds. Gone an hour after the last."""

    __tablename__ = "signs_of_life"
    __table_args__ = (one_of("kind", "kind", SIGN_KINDS), Index("ix_signs_of_life_kind_seen_at", "kind", "seen_at"))

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Kind, machine and process."""
    kind: Mapped[str] = mapped_column(String(20))
    seen_at: Mapped[float]
    slots: Mapped[int] = mapped_column(default=0, server_default="0")
    """Compiles that a worker runs at once; 0 of other kinds."""
