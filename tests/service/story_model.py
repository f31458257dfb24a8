"""What the rule-based test believes of runs, leases and boards, and how it moves the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import Float, case, delete, update
from sqlalchemy.orm import Session

from device_agents import wire as p
from service.store.database.models import (
    ApiKey,
    Base,
    Bundle,
    Holding,
    Job,
    LoggedResult,
    LogHead,
    LogNode,
    Organisation,
    SigningKey,
)
from service.store.states import Machine
from tests.service.board import Board

OPEN = frozenset({"queued", "leased", "running"})
RUN_ATTEMPTS = 3
NOT_RECEIVED, SILENT, ABANDONED = "infra.not-received", "infra.lease-expired", "infra.abandoned"
OUT_OF_TIME = "limits.run-time"
ALIKE = {
    SILENT: "death",
    ABANDONED: "death",
    "step.killed": "death",
    "download.digest": "damage",
    "agent.internal": "defect",
}
"""Ends of which two devices make a verdict on the run, by what they have in common."""
VERDICTS = {"death": "failed", "damage": "failed", "defect": "inconclusive", "overrun": "failed"}
LEASE_S, QUEUE_S, CANARY_S, KEY_S = 60.0, 6 * 3600.0, 900.0, 24 * 3600.0
LOG: tuple[type[Base], ...] = (LoggedResult, LogNode, LogHead)
"""The log of results: the database refuses every change to it."""
KEPT: tuple[type[Base], ...] = (ApiKey, Bundle, Holding, Job, Organisation, SigningKey, *LOG)
"""Tables whose rows outlive an example."""


class End(NamedTuple):
    """How an attempt ended."""

    state: str
    cause: str | None = None
    code: str | None = None

    @property
    def doubt(self) -> str | None:
        """What it has in common with ends that leave open whether the run or the device is to blame."""
        if (self.state, self.code) == ("lost", OUT_OF_TIME):
            return "overrun"
        return ALIKE.get(self.code or "")

    @property
    def fault(self) -> str:
        """Whose it is (docs/protocol.md)."""
        code = self.code or ""
        if self.state == "cancelled" or code in ("agent.stopped", NOT_RECEIVED):
            return "nobody's"
        if self.doubt is not None:
            return "either's"
        if code.startswith("envelope.") or self.cause == "device":
            return "device's"
        return "passing" if self.cause in ("infra", "service") else "run's"


OVERDUE = End("failed", "limits", OUT_OF_TIME)
"""What a board stops of which nobody but its clock has cancelled the run."""


def lost(code: str) -> End:
    """The end of an attempt that the farm took back."""
    return End("lost", "limits" if code == OUT_OF_TIME else "infra", code)


@dataclass
class Lease:
    """One attempt, as the farm's answer told it; whether the board has heard of it or not."""

    run: Track
    n: int
    board: Board
    work: p.Assignment
    expires_at: float
    overdue_at: float
    """When its clock runs out."""
    is_live: bool = True
    report: p.Envelope | None = None
    """What was accepted."""
    end: End | None = None
    is_heard: bool = True

    def taken_back(self, now: float) -> End | None:
        """The end that a sweep makes of it; None if it may go on. Whoever says that it is alive has its clock, and as
        long as a lease to stop by itself."""
        if self.expires_at <= now:
            return lost(SILENT)
        return lost(OUT_OF_TIME) if self.overdue_at + LEASE_S <= now else None


@dataclass
class Track:
    """One run: the state that it must be in now, and what is certain about it."""

    id: str
    body: dict[str, object]
    since: float
    """When it last began to wait anew."""
    foretold: str = "queued"
    state: str = "queued"
    """That it was last seen in."""
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

    def settle(self, lease: Lease, end: End, now: float) -> None:
        """The attempt ended so, and it counts: what becomes of the run."""
        lease.end, lease.is_live = end, False
        self.foretold = self._after(lease, end)
        if self.foretold == "queued" and (lease.n <= RUN_ATTEMPTS or end.fault in ("either's", "device's")):
            self.since = now

    def _after(self, lease: Lease, end: End) -> str:
        if self.is_canary and end.code != NOT_RECEIVED:  # one attempt settles it
            return "failed" if end.state == "lost" else end.state
        if end.state == "succeeded" or end.fault == "run's":
            return end.state
        if self.is_cancelled:
            return "cancelled"
        if end.fault == "either's":
            alike = {one.board.device_id for one in self.leases if one.end and one.end.doubt == end.doubt}
            return VERDICTS[str(end.doubt)] if len(alike) > 1 else "queued"
        if end.fault == "device's" or end.code == NOT_RECEIVED:
            return "queued"
        received = [one.board.device_id for one in self.leases if one.end is None or one.end.code != NOT_RECEIVED]
        return "inconclusive" if len(received) >= RUN_ATTEMPTS and len(set(received)) > 1 else "queued"


def check_history(machine: Machine, told: list[str], state: str) -> None:
    """That what was told leads from the first state to the last, each step a line of the table."""
    ways = {(source, one.target) for one in machine.transitions for source in one.sources}
    assert (told[0], told[-1]) == (machine.first, state), told
    assert all(step in ways for step in pairwise(told)), told


def let_time_pass(session: Session, seconds: float) -> None:
    """Every moment in the database is so much longer ago: as good as a clock that goes on, and nobody sleeps."""
    signed = {kind.__tablename__ for kind in LOG}
    for table in Base.metadata.sorted_tables:
        moments = [
            column
            for column in table.columns
            if isinstance(column.type, Float) and (column.name == "at" or column.name.endswith("_at"))
        ]
        if moments and table.name not in signed:
            moved = {column: case((column > 0, column - seconds), else_=column) for column in moments}  # 0: never
            session.execute(update(table).values(moved))


def forget_everything(session: Session) -> None:
    """Rows of one example; keys and bundles stay, with the jobs that made them."""
    kept = {kind.__tablename__ for kind in KEPT}
    for table in reversed(Base.metadata.sorted_tables):
        if table.name not in kept:
            session.execute(delete(table))
    session.execute(delete(Job).where(Job.bundle_digest.is_(None)))
