"""What the rule-based test believes of runs, leases and boards, and how it moves the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from sqlalchemy import Float, case, delete, update
from sqlalchemy.orm import Session

from device_agents import wire as p
from service.database.models import ApiKey, Base, Bundle, Holding, Job, Organisation, SigningKey
from service.states import Machine
from tests.service.board import Board

OPEN = frozenset({"queued", "leased", "running"})
AGAIN = frozenset({"queued", "failed", "inconclusive"})
"""What may become of a run whose attempt ended for a reason that another device may not have."""
LEASE_S, QUEUE_S, CANARY_S, KEY_S = 60.0, 6 * 3600.0, 900.0, 24 * 3600.0
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
    is_canary: bool = False
    asked_at: float = 0.0

    @property
    def waits_until(self) -> float:
        """When it expires if it is still queued then. A canary waits for its device for a shorter time at first."""
        return self.since + (CANARY_S if self.is_canary and not self.leases else QUEUE_S)

    @property
    def live(self) -> Lease | None:
        return next((lease for lease in self.leases if lease.is_live), None)

    def lost(self) -> None:
        """Its attempt ended without a result that settles it."""
        for lease in self.leases:
            lease.is_live = False
        if self.is_canary:
            self.allowed = frozenset({"failed"})
            return
        self.allowed = frozenset({"cancelled"}) if self.is_cancelled else AGAIN


def after_report(track: Track, outcome: p.Outcome) -> frozenset[str]:
    """The states that a report which counts may leave the run in."""
    if track.is_canary:  # one attempt settles it
        return frozenset({outcome.state})
    if outcome.state == "succeeded":
        return frozenset({"succeeded"})
    if outcome.state == "cancelled":
        return frozenset({"cancelled"}) if track.is_cancelled else AGAIN
    if outcome.cause in OF_THE_RUN and not str(outcome.code).startswith(("envelope.", "download.")):
        return frozenset({outcome.state})
    return frozenset({"cancelled"}) if track.is_cancelled else AGAIN


def check_history(machine: Machine, told: list[str], state: str) -> None:
    """That what was told leads from the first state to the last, each step a line of the table."""
    ways = {(source, one.target) for one in machine.transitions for source in one.sources}
    assert (told[0], told[-1]) == (machine.first, state), told
    assert all(step in ways for step in pairwise(told)), told


def let_time_pass(session: Session, seconds: float) -> None:
    """Every moment in the database is so much longer ago: as good as a clock that goes on, and nobody sleeps."""
    for table in Base.metadata.sorted_tables:
        moments = [
            column for column in table.columns
            if isinstance(column.type, Float) and (column.name == "at" or column.name.endswith("_at"))
        ]  # fmt: skip
        if moments:
            moved = {column: case((column > 0, column - seconds), else_=column) for column in moments}  # 0: never
            session.execute(update(table).values(moved))


def forget_everything(session: Session) -> None:
    """Rows of one example; keys and bundles stay, with the jobs that made them."""
    kept = {kind.__tablename__ for kind in KEPT}
    for table in reversed(Base.metadata.sorted_tables):
        if table.name not in kept:
            session.execute(delete(table))
    session.execute(delete(Job).where(Job.bundle_digest.is_(None)))
