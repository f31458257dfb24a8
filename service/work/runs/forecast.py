"""When a waiting run may start: from the runs ahead of it, and how long such runs took on the devices that fit.

A forecast, no promise: runs that come later may be shorter, devices may go. It says how sure it is.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.durations import format_duration_range
from service.base.schemas import Confidence
from service.base.settings import Settings
from service.people.quotas.limits import standing
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Run
from service.store.database.scope import EVERYONES
from service.work.lanes.prospects import own_before, prospect
from service.work.runs.fitting import Standing

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


TURNS_BASIS = "other organisations wait too, and take turns: a rough estimate by fair share"
QUOTA_BASIS = "when the first of its organisation's runs on devices may end"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The number of devices that a run's organisation may use at once, and uses."""

    limit: int
    live: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The place of a run in the queue of the devices that fit it, and when it may start."""

    ahead: int
    is_more: bool
    """There are more ahead than were counted."""
    start_at: float | None
    confidence: Confidence
    basis: str
    """Basis of the forecast, in words."""
    taker: str = ""
    """The free device that gets it when it asks."""
    full: Allowance | None = None
    """Its organisation may have no more runs on devices: that is what keeps it."""


def forecast(session: Session, settings: Settings, run: Run, fitting: Sequence[Standing]) -> Forecast | None:
    """Returns the forecast of a run; None if no device fits, since nothing is known then."""
    if not fitting:
        return None
    full = _allowance(session, settings, run)
    if full is not None:
        return _within_quota(session, run, fitting, full)
    for candidate in [candidate for candidate in fitting if candidate.busy_since is None][:MOST_FREE]:
        if not prospect(session, settings, run, [candidate.device], most=MOST_AHEAD).ahead:
            return Forecast(0, False, time.time(), "fair", FREE_BASIS, candidate.device.name)
    outlook = prospect(session, settings, run, [candidate.device for candidate in fitting], most=MOST_AHEAD)
    lengths, are_alike = _lengths(session, run, fitting)
    busy_since = [candidate.busy_since for candidate in fitting]
    expected = estimate(outlook.ahead, lengths, busy_since, now=time.time(), are_alike=are_alike)
    return _roughly(expected, TURNS_BASIS) if outlook.is_shared else expected


def later_starts(
    session: Session, run: Run, fitting: Sequence[Standing], first: Forecast, count: int
) -> list[float | None]:
    """Returns when the `count` runs that come after `run` in its lane may start, at the earliest: runs of other lanes
    that come between them are not counted.
    """
    if first.full is not None or not fitting:
        return [None] * count
    lengths, are_alike = _lengths(session, run, fitting)
    busy_since, now = [candidate.busy_since for candidate in fitting], time.time()
    places = range(first.ahead + 1, first.ahead + 1 + count)
    return [estimate(place, lengths, busy_since, now=now, are_alike=are_alike).start_at for place in places]


def _allowance(session: Session, settings: Settings, run: Run) -> Allowance | None:
    """Returns the used-up allowance of the run's organisation; None while it may have one more run on a device."""
    if run.is_canary:
        return None
    limit, live = standing(session, settings, "running_attempts", run.organisation_id)
    return None if limit is None or live + 1 <= limit else Allowance(int(limit), int(live))


def _within_quota(session: Session, run: Run, fitting: Sequence[Standing], full: Allowance) -> Forecast:
    """Forecasts a run that starts when enough of its organisation's runs on devices have ended, wherever they are."""
    since = (
        select(Attempt.created_at)
        .join(Run, Run.id == Attempt.run_id)
        .where(Attempt.state.in_(LIVE_ATTEMPT_STATES), Run.organisation_id == run.organisation_id)
    )
    begun = sorted(session.scalars(since, execution_options=EVERYONES))[full.live - full.limit :]  # the oldest are over
    ahead = own_before(session, run, [candidate.device for candidate in fitting], most=MOST_AHEAD)
    lengths, are_alike = _lengths(session, run, fitting)
    expected = estimate(ahead, lengths, begun, now=time.time(), are_alike=are_alike)
    return replace(_roughly(expected, QUOTA_BASIS), full=full)


def _roughly(forecast: Forecast, basis: str) -> Forecast:
    return replace(
        forecast,
        confidence="rough" if forecast.confidence == "fair" else forecast.confidence,
        basis=f"{basis}; {forecast.basis}",
    )


def estimate(
    ahead: int, lengths: Sequence[float], busy_since: Sequence[float | None], *, now: float, are_alike: bool = True
) -> Forecast:
    """Returns the forecast from figures alone: each device takes the next run when it has done the one before."""
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
    if not busy_since:
        return Forecast(ahead, is_more, None, "unknown", "nothing of it may be on a device")
    typical = statistics.median(lengths)
    times = [now if since is None else max(now, since + typical) for since in busy_since]
    heapq.heapify(times)
    for _ in range(ahead):
        heapq.heappush(times, max(now, heapq.heappop(times)) + typical)
    is_fair = len(lengths) >= ENOUGH and max(lengths) <= SPREAD * min(lengths) and are_alike and not is_more
    kind = "runs of this bundle" if are_alike else "runs on these devices (none of this bundle yet)"
    basis = f"{len(lengths)} earlier {kind} took {format_duration_range(lengths)}"
    return Forecast(ahead, is_more, times[0], "fair" if is_fair else "rough", basis)


def _lengths(session: Session, run: Run, fitting: Sequence[Standing]) -> tuple[list[float], bool]:
    """Returns the seconds that the newest attempts took, of the same bundle if there were any, and whether they are of
    the same.
    """
    query = (
        select(Attempt.finished_at - Attempt.created_at, Run.bundle_digest)
        .join(Run, Run.id == Attempt.run_id)
        .where(Attempt.device_id.in_([candidate.device.id for candidate in fitting]), Attempt.state.in_(DONE))
        .where(Attempt.finished_at.is_not(None), Run.is_canary.is_(False))
        .order_by(Attempt.id.desc())
        .limit(LOOKED_AT)
    )
    rows = [(max(0.0, took or 0.0), digest == run.bundle_digest) for took, digest in session.execute(query)]
    alike = [took for took, is_same in rows if is_same]
    return (alike, True) if alike else ([took for took, _ in rows], False)
