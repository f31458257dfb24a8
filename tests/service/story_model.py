"""What the rule-based test believes of runs, leases and boards, and how it moves the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Float, delete, update
from sqlalchemy.orm import Session

from device_agents import wire as p
from service.database.models import ApiKey, Base, Bundle, Holding, Job, Organisation, SigningKey
from tests.service.board import Board

OPEN = frozenset({"queued", "leased", "running"})
AGAIN = frozenset({"queued", "failed", "inconclusive"})
"""What may become of a run whose attempt ended for a reason that another device may not have."""
LEASE_S, QUEUE_S = 60.0, 6 * 3600.0
KEPT: tuple[type[Base], ...] = (ApiKey, Bundle, Holding, Job, Organisation, SigningKey)
"""Tables whose rows outlive an example."""
OF_THE_RUN = ("user", "model", "limits", "compiler", "policy")


@dataclass
class Lease:
    """One attempt, as the farm's answer told it; whether the board has heard of it or not."""

    run: Track
    n: int
    board: Board
    work: p.Assignment
    expires_at: float
    is_live: bool = True
    report: p.Envelope | None = None
    """What was accepted."""
    is_heard: bool = True


@dataclass
class Track:
    """One run: the states that it may be in now, and what is certain about it."""

    id: str
    body: dict[str, object]
    since: float
    """When it last began to wait."""
    allowed: frozenset[str] = frozenset({"queued"})
    state: str = "queued"
    leases: list[Lease] = field(default_factory=list)
    is_cancelled: bool = False
    is_won: bool = False
    """A successful report was recorded."""

    @property
    def live(self) -> Lease | None:
        return next((lease for lease in self.leases if lease.is_live), None)

    def lost(self) -> None:
        """Its attempt ended without a result that settles it."""
        for lease in self.leases:
            lease.is_live = False
        self.allowed = frozenset({"cancelled"}) if self.is_cancelled else AGAIN


def after_report(track: Track, outcome: p.Outcome) -> frozenset[str]:
    """The states that a report which counts may leave the run in."""
    if outcome.state == "succeeded":
        return frozenset({"succeeded"})
    if outcome.state == "cancelled":
        return frozenset({"cancelled"}) if track.is_cancelled else AGAIN
    if outcome.cause in OF_THE_RUN and not str(outcome.code).startswith(("envelope.", "download.")):
        return frozenset({outcome.state})
    return frozenset({"cancelled"}) if track.is_cancelled else AGAIN


def let_time_pass(session: Session, seconds: float) -> None:
    """Every moment in the database is so much longer ago: as good as a clock that goes on, and nobody sleeps."""
    for table in Base.metadata.sorted_tables:
        moments = [
            column for column in table.columns
            if isinstance(column.type, Float) and (column.name == "at" or column.name.endswith("_at"))
        ]  # fmt: skip
        if moments:
            session.execute(update(table).values({column: column - seconds for column in moments}))


def forget_everything(session: Session) -> None:
    """Rows of one example; keys and bundles stay."""
    kept = {kind.__tablename__ for kind in KEPT}
    for table in reversed(Base.metadata.sorted_tables):
        if table.name not in kept:
            session.execute(delete(table))
