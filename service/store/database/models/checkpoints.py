"""The newest checkpoint of each open run."""

from __future__ import annotations

import time

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database.models.base import Base, Digest, Id, OfRun


class Checkpoint(OfRun, Base):
    """A state of a run from which another attempt may go on. The row is deleted with the end of its run, and the file
    when nothing names it.
    """

    __tablename__ = "checkpoints"

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    attempt_id: Mapped[str] = mapped_column(Id, ForeignKey("attempts.id"))
    """The attempt that uploaded it."""
    step: Mapped[int]
    """Steps of the run that are done."""
    digest: Mapped[str] = mapped_column(Digest, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    tries: Mapped[int] = mapped_column(default=0)
    """Attempts that it was handed to, none of which has sent a newer one."""
    stored_at: Mapped[float] = mapped_column(default=time.time)
