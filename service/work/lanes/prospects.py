"""Counts how many runs come before a given one, in the lanes of the devices that fit it."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.people.quotas.rates import Share, shares_of
from service.store.database.models import Device, Lane, Run
from service.store.database.scope import EVERYONES
from service.work.lanes.finding import in_parts, waiting_lanes
from service.work.lanes.key import Taker


@dataclass(frozen=True, slots=True)
class Line:
    """The waiting runs of one organisation in the lanes of certain devices."""

    runs: int
    oldest_at: float


NOTHING = Line(0, math.inf)


@dataclass(frozen=True, slots=True)
class Prospect:
    """The runs that come before a run; of other organisations nothing but this is told."""

    ahead: int
    is_shared: bool
    """Other organisations wait for the same devices: they take turns."""


def prospect(session: Session, settings: Settings, run: Run, devices: Sequence[Device], *, most: int) -> Prospect:
    """Returns the runs that one of the devices takes before it, by age within its organisation and by fair share among
    several (`claim.in_turn`); counting ends above `most`. Organisations that may have no more are not counted.
    """
    lines = _lines(session, run, devices, most=most)
    own_line = lines.pop(run.organisation_id, Line(0, run.created_at))
    if not lines:
        return Prospect(own_line.runs, is_shared=False)
    shares = shares_of(session, settings, {run.organisation_id, *lines})
    others = {owner_id: line for owner_id, line in lines.items() if not shares[owner_id].is_full}
    return Prospect(turns_before(run.organisation_id, own_line, others, shares, most=most), is_shared=bool(others))


def own_before(session: Session, run: Run, devices: Sequence[Device], *, most: int) -> int:
    """Returns the runs of its own organisation that one of the devices takes before it; counting ends above `most`."""
    return _lines(session, run, devices, most=most, only=run.organisation_id).get(run.organisation_id, NOTHING).runs


def turns_before(
    organisation_id: str, own_line: Line, others: Mapping[str, Line], shares: Mapping[str, Share], *, most: int
) -> int:
    """Counts the turns that others and earlier runs of the organisation have before its run that comes after
    `own_line.runs`, if whoever took a turn keeps its device; counting ends above `most`."""
    remaining = {owner_id: line.runs for owner_id, line in others.items()} | {organisation_id: own_line.runs + 1}
    turns = [
        (shares[owner_id].live, shares[owner_id].served_at, line.oldest_at, owner_id)
        for owner_id, line in (*others.items(), (organisation_id, own_line))
    ]
    heapq.heapify(turns)
    for ahead in count():
        live, _, oldest_at, turn_of = heapq.heappop(turns)
        remaining[turn_of] -= 1
        if ahead > most or (turn_of == organisation_id and not remaining[turn_of]):
            return ahead
        if remaining[turn_of]:
            heapq.heappush(turns, (live + 1, time.time() + ahead, oldest_at, turn_of))
    raise AssertionError("the count has no end")


def _lines(
    session: Session, run: Run, devices: Sequence[Device], *, most: int, only: str | None = None
) -> dict[str, Line]:
    """Returns the runs that wait, by organisation: of the run's organisation those before it, of the others all."""
    lines: dict[str, Line] = {}
    for lane in _busy_lanes(session, devices):
        owner_id = lane.organisation_id
        so_far = lines.get(owner_id, NOTHING)
        if only not in (None, owner_id) or so_far.runs > most:
            continue
        more = _count(session, lane.id, most + 1 - so_far.runs, before=run if owner_id == run.organisation_id else None)
        if more.runs:
            lines[owner_id] = Line(so_far.runs + more.runs, min(so_far.oldest_at, more.oldest_at))
    return lines


def _busy_lanes(session: Session, devices: Sequence[Device]) -> list[Lane]:
    """Returns the lanes in which something waits, and which one of the devices fits."""
    takers = [Taker.of(device) for device in devices]
    lane_ids = waiting_lanes(session, frozenset[str]().union(*(taker.wishes for taker in takers)))
    parts = (session.scalars(select(Lane).where(Lane.id.in_(part), ~Lane.is_canary)) for part in in_parts(lane_ids))
    return [lane for part in parts for lane in part if any(taker.may_take(lane) for taker in takers)]


def _count(session: Session, lane_id: str, most: int, *, before: Run | None) -> Line:
    query = select(Run.created_at).where(Run.queued_in == lane_id, Run.queue_deadline_at > time.time())
    if before is not None:
        is_older = and_(Run.created_at == before.created_at, Run.id < before.id)
        query = query.where(or_(Run.created_at < before.created_at, is_older))
    first = query.order_by(Run.created_at, Run.id).limit(most).subquery()
    runs, oldest_at = session.execute(
        select(func.count(), func.min(first.c.created_at)), execution_options=EVERYONES
    ).one()
    return Line(runs, oldest_at or 0.0)
