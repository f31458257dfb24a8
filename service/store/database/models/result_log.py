"""The log of results. Rows are added and never changed; nothing refers to them, and nothing removes them."""

from __future__ import annotations

from sqlalchemy import BigInteger, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, Id


class LoggedResult(Base):
    """An entry (`device_agents/wire/receipt.py`), with the bytes that its leaf is of."""

    __tablename__ = "logged_results"

    place: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Place in the log, from 0 and without gaps, so that of two processes that append at once only one succeeds."""
    attempt_id: Mapped[str] = mapped_column(Id, unique=True)
    entry: Mapped[str] = mapped_column(Text)


class LogNode(Base):
    """A complete subtree of 2^level leaves; level 0: a leaf."""

    __tablename__ = "log_nodes"

    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(String(64))


class LogHead(Base):
    """A head that the farm signed now and then, so that it can be held to it (`device_agents/wire/receipt.py`)."""

    __tablename__ = "log_heads"

    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    paper: Mapped[str] = mapped_column(Text)
    """`Signed`, with the keys' way to the root of that time."""
    at: Mapped[float]
