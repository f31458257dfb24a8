"""Data sets."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    BigInteger,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id


class Dataset(Base):
    """A checked npz in the storage. `arrays`: name -> {dtype, shape}; the first axis is samples."""

    __tablename__ = "datasets"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    id: Mapped[str] = mapped_column(Id, unique=True, default=lambda: new_id("dat"))
    """Sorts by age."""
    name: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int] = mapped_column(BigInteger)
    arrays: Mapped[dict[str, Any]]
    created_at: Mapped[float] = mapped_column(default=time.time)
