"""Files on their way."""

from __future__ import annotations

import time

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.base.identifiers import new_id
from service.store.database.models.base import Base, Digest, Id, OfOrganisation, one_of
from service.store.database.models.tenants import HOME

UPLOAD_KINDS = ("model", "data", "dataset")


class Upload(OfOrganisation, Base):
    """A file that comes in pieces; the storage keeps them under this row's id until the file is whole.

    `received_bytes` is the truth: what the storage has beyond it is written again.
    """

    __tablename__ = "uploads"
    __table_args__ = (
        one_of("kind", "kind", UPLOAD_KINDS),
        Index("ix_uploads_api_key_id_declared_digest", "api_key_id", "declared_digest"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=lambda: new_id("upl"))
    organisation_id: Mapped[str] = mapped_column(Id, default=HOME, server_default=HOME)
    api_key_id: Mapped[str] = mapped_column(Id, ForeignKey("api_keys.id"))
    kind: Mapped[str] = mapped_column(String(20))
    """Intended use: its limit follows from it."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    declared_digest: Mapped[str | None] = mapped_column(String(71))
    """Digest of the whole file, as its sender says; nothing may be there under it yet."""
    digest: Mapped[str | None] = mapped_column(Digest)
    """Once it is finished."""
    received_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[float] = mapped_column(default=time.time)
    expires_at: Mapped[float] = mapped_column(index=True)
    """When the upload expires. Each piece postpones it."""
    finished_at: Mapped[float | None]


class FileUse(Base):
    """When something last began to refer to a stored file, or when the file was removed because nothing does.

    Whoever makes a reference and whoever removes the file lock this row, so one of them sees what the other did.
    """

    __tablename__ = "file_uses"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    used_at: Mapped[float]
    released_at: Mapped[float | None]
    """When retention took it from the last that held it: what is only a record of it keeps it no more. Any new
    reference makes this null again."""
    removed_at: Mapped[float | None]


class ListedFile(Base):
    """A file that a model's listing names (`compiler/external.py`); of a model in one file, that file itself."""

    __tablename__ = "listed_files"

    listing: Mapped[str] = mapped_column(Digest, primary_key=True)
    digest: Mapped[str] = mapped_column(Digest, primary_key=True, index=True)
