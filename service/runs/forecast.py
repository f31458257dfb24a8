"""When a waiting run may start: from the runs ahead of it, and how long such runs took on the devices that fit.

A forecast, no promise: runs that come later may be shorter, devices may go. It says how sure it is.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.models import Attempt, Run
from service.lanes.prospects import ahead_of
from service.runs.fitting import Standing, spoken

Sureness = Literal["fair", "rough", "unknown"]
MOST_AHEAD = 1000
MOST_FREE = 5
"""Free devices that are asked whether a run ahead would come to them first."""
FREE_BASIS = "a device that fits is free, and asks for work every few seconds"
LOOKED_AT = 30
"""Finished attempts that the length of a run is estimated from."""
ENOUGH = 5
SPREAD = 3.0
"""Longest over shortest: above it the forecast is rough."""
DONE = ("succeeded", "failed")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where a run stands in the queue of the devices that fit it, and when it may start."""

    ahead: int
    is_more: bool
    """There are more ahead than were counted."""
    start_at: float | None
    sureness: Sureness
    basis: str
    """What the forecast rests on, in words."""
    taker: str = ""
    """The free device that gets it when it asks."""


def forecast(session: Session, run: Run, fitting: Sequence[Standing]) -> Forecast | None:
    """None when no device fits: then nothing is known."""
    if not fitting:
        return None
    for one in [one for one in fitting if one.busy_since is None][:MOST_FREE]:
        if not _ahead(session, run, [one]):
            return Forecast(0, False, time.time(), "fair", FREE_BASIS, one.device.name)
    ahead = _ahead(session, run, fitting)
    lengths, are_alike = _lengths(session, run, fitting)
    return estimate(ahead, lengths, [one.busy_since for one in fitting], now=time.time(), are_alike=are_alike)


def estimate(
    ahead: int, lengths: Sequence[float], busy_since: Sequence[float | None], *, now: float, are_alike: bool = True
) -> Forecast:
    """The forecast from figures alone: each device takes the next run when it has done the one before."""
    is_more, free = ahead > MOST_AHEAD, sum(since is None for since in busy_since)
    ahead = min(ahead, MOST_AHEAD)
    if not is_more and ahead < free:
        return Forecast(ahead, False, now, "fair", FREE_BASIS)
    if not lengths:
        return Forecast(
            ahead,
            is_more,
            None,
            "unknown",
            "no run has ended on these devices yet, so it is not known how long one takes",
        )
    typical = statistics.median(lengths)
    times = [now if since is None else max(now, since + typical) for since in busy_since]
    heapq.heapify(times)
    for _ in range(ahead):
        heapq.heappush(times, max(now, heapq.heappop(times)) + typical)
    is_fair = len(lengths) >= ENOUGH and max(lengths) <= SPREAD * min(lengths) and are_alike and not is_more
    kind = "runs of this bundle" if are_alike else "runs on these devices (none of this bundle yet)"
    basis = f"{len(lengths)} earlier {kind} took {spoken(min(lengths))} to {spoken(max(lengths))}"
    return Forecast(ahead, is_more, times[0], "fair" if is_fair else "rough", basis)


def _ahead(session: Session, run: Run, fitting: Sequence[Standing]) -> int:
    return ahead_of(session, run, [one.device for one in fitting], most=MOST_AHEAD)


def _lengths(session: Session, run: Run, fitting: Sequence[Standing]) -> tuple[list[float], bool]:
    """Seconds that the newest attempts took, of the same bundle if there were any; whether they are of the same."""
    query = (
        select(Attempt.finished_at - Attempt.created_at, Run.bundle_digest)
        .join(Run, Run.id == Attempt.run_id)
        .where(Attempt.device_id.in_([one.device.id for one in fitting]), Attempt.state.in_(DONE))
        .where(Attempt.finished_at.is_not(None), Run.is_canary.is_(False))
        .order_by(Attempt.id.desc())
        .limit(LOOKED_AT)
    )
    rows = [(max(0.0, took or 0.0), digest == run.bundle_digest) for took, digest in session.execute(query)]
    alike = [took for took, is_same in rows if is_same]
    return (alike, True) if alike else ([took for took, _ in rows], False)
